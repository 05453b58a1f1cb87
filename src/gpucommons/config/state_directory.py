"""The paths of the files that the agent keeps across restarts."""

import os
from collections.abc import Mapping
from pathlib import Path

from gpucommons.config.settings import Settings


def state_directory(environment: Mapping[str, str] | None = None, uid: int | None = None) -> Path:
    """systemd's StateDirectory= if set, /var/lib/gpucommons for root, else a directory of the user."""
    environment = os.environ if environment is None else environment
    if given := environment.get("STATE_DIRECTORY", "").partition(":")[0]:
        return Path(given)
    if (os.getuid() if uid is None else uid) == 0:
        return Path("/var/lib/gpucommons")
    home = environment.get("XDG_STATE_HOME") or str(Path(environment.get("HOME", "/")) / ".local/state")
    return Path(home) / "gpucommons"


def ledger_file(settings: Settings, scenario: str | None = None) -> Path:
    """A simulated scenario has its own file: it never mixes with measured use."""
    return _named(settings.ledger.file, f"ledger{_suffix(scenario)}.sqlite", scenario)


def own_event_log(settings: Settings, scenario: str | None = None) -> Path:
    return _named(settings.events.own_file, f"events{_suffix(scenario)}.jsonl", scenario)


def lease_record(scenario: str | None = None) -> Path:
    return state_directory() / f"leases{_suffix(scenario)}.json"


def events_position_file(scenario: str | None = None) -> Path:
    return state_directory() / f"followed-events{_suffix(scenario)}.json"


def _suffix(scenario: str | None) -> str:
    return "" if scenario is None else f"-{scenario}"


def _named(given: str, name: str, scenario: str | None) -> Path:
    return Path(given) if given and scenario is None else state_directory() / name
