"""The event log of scenario lab, as it is counted: what happens in a day of the lab, again and again."""

import math

from gpucommons.model.event_window import WINDOW_S
from gpucommons.model.events import EventsReading

# How often each happens, in seconds of the clock on the wall: a day of the log is a day.
_EVERY_S = {
    "container.create": 2900.0,
    "container.start": 2300.0,
    "container.stop": 2450.0,
    "container.remove": 3100.0,
    "gpu.allocated": 2600.0,
    "gpu.release": 2750.0,
    "gpu.reject": 9700.0,
    "maintenance.idle_kill": 14_300.0,
    "maintenance.runtime_kill": 43_000.0,
    "maintenance.cleanup": 21_500.0,
    "resource.oom_kill": 31_000.0,
    "health.check": 600.0,
    "auth.login": 1300.0,
}
_KEPT_S = 30 * WINDOW_S


def events(elapsed_s: float) -> EventsReading:
    """The log is a month old when the run begins, and one of its lines was never finished."""
    return EventsReading(
        counts_24h={
            type: _until(elapsed_s, every_s) - _until(elapsed_s - WINDOW_S, every_s)
            for type, every_s in _EVERY_S.items()
        },
        lines=sum(_until(elapsed_s, every_s) for every_s in _EVERY_S.values()),
        bad_lines={"not_json": 1},
    )


def _until(elapsed_s: float, every_s: float) -> int:
    return math.floor((_KEPT_S + elapsed_s) / every_s)
