"""The paths of the files that the agent keeps across restarts."""

import os
from collections.abc import Mapping
from pathlib import Path

from gpucommons.config.settings import Settings

_OF_ROOT = Path("/var/lib/gpucommons")


def state_directory(environment: Mapping[str, str] | None = None, uid: int | None = None) -> Path:
    """systemd's StateDirectory= if set, /var/lib/gpucommons for root, else a directory of the user."""
    environment = os.environ if environment is None else environment
    if given := environment.get("STATE_DIRECTORY", "").partition(":")[0]:
        return Path(given)
    if (os.getuid() if uid is None else uid) == 0:
        return _OF_ROOT
    home = environment.get("XDG_STATE_HOME") or str(Path(environment.get("HOME", "/")) / ".local/state")
    return Path(home) / "gpucommons"


def ledger_file(settings: Settings, scenario: str | None = None) -> Path:
    """Unless the settings name a file, a simulated scenario has its own: it does not mix with measured use."""
    return Path(settings.ledger.file or state_directory() / f"ledger{_suffix(scenario)}.sqlite")


def own_event_log(settings: Settings, scenario: str | None = None) -> Path:
    return Path(settings.events.own_file or state_directory() / f"events{_suffix(scenario)}.jsonl")


def file_of_node(own: Path) -> Path:
    """The same file of the agent that runs as root or as a service."""
    return _OF_ROOT / own.name


def lease_record(scenario: str | None = None) -> Path:
    return state_directory() / f"leases{_suffix(scenario)}.json"


def idle_record(scenario: str | None = None) -> Path:
    return state_directory() / f"idle{_suffix(scenario)}.json"


def gpu_record() -> Path:
    return state_directory() / "gpus.json"


def events_position_file() -> Path:
    return state_directory() / "followed-events.json"


def _suffix(scenario: str | None) -> str:
    return "" if scenario is None else f"-{scenario}"
