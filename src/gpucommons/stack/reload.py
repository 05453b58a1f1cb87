"""Whether Prometheus or Alertmanager has loaded its new configuration, as its own metrics report."""

import re
import time
from dataclasses import dataclass

from gpucommons.stack.health import HttpResponse, get

_SAMPLE = re.compile(r"^(\w+) (\S+)$", re.MULTILINE)
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ReloadState:
    """The time of the last successful reload, and whether the last reload succeeded."""

    at_s: float
    ok: bool


def parse_reload_state(service: str, metrics: str) -> ReloadState | None:
    values = dict(_SAMPLE.findall(metrics))
    try:
        at = float(values[f"{service}_config_last_reload_success_timestamp_seconds"])
        ok = float(values[f"{service}_config_last_reload_successful"]) == 1
    except (KeyError, ValueError):
        return None
    return ReloadState(at, ok)


def reload_state(service: str, address: str) -> ReloadState | None:
    response = get(f"http://{address}/metrics")
    if isinstance(response, HttpResponse) and response.status == 200:
        return parse_reload_state(service, response.body.decode("utf-8", "replace"))
    return None


def wait_for_reload(service: str, address: str, before: ReloadState | None, timeout_s: float = 15.0) -> bool:
    """Waits until the program has loaded the new configuration (True) or has refused it (False)."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        now = reload_state(service, address)
        if now is not None and not now.ok:
            return False
        if now is not None and (before is None or now.at_s > before.at_s):
            return True
        time.sleep(_POLL_S)
    return False
