"""Whether a program took its new configuration: it tells in its own metrics. `verdict` is pure."""

import re
import time
from dataclasses import dataclass

from gpucommons.stack.health import Answer, get

_SAMPLE = re.compile(r"^(\w+) (\S+)$", re.MULTILINE)
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ReloadState:
    """When the running configuration was last taken, and whether the last try to take one succeeded."""

    at_s: float
    ok: bool


def loaded(service: str, metrics: str) -> ReloadState | None:
    values = dict(_SAMPLE.findall(metrics))
    try:
        at = float(values[f"{service}_config_last_reload_success_timestamp_seconds"])
        ok = float(values[f"{service}_config_last_reload_successful"]) == 1
    except (KeyError, ValueError):
        return None
    return ReloadState(at, ok)


def ask(service: str, address: str) -> ReloadState | None:
    answer = get(f"http://{address}/metrics")
    if isinstance(answer, Answer) and answer.status == 200:
        return loaded(service, answer.body.decode("utf-8", "replace"))
    return None


def took_it(service: str, address: str, before: ReloadState | None, timeout_s: float = 15.0) -> bool:
    """Waits until the program has taken, or refused, what it was told to load."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        now = ask(service, address)
        if now is not None and not now.ok:
            return False
        if now is not None and (before is None or now.at_s > before.at_s):
            return True
        time.sleep(_POLL_S)
    return False
