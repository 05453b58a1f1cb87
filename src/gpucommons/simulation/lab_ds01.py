"""DS01 in scenario lab: the events of the last day, and the disk that holds its state."""

from gpucommons.model.events import EventsReading
from gpucommons.model.workloads import Ds01Reading
from gpucommons.simulation.scenario import DAY_S, daylight

_GIB = 2**30
# Events per day by type: most occur during working hours, some at night.
_BY_DAY = {
    "container.created": 34,
    "container.started": 41,
    "container.stopped": 29,
    "gpu.allocated": 38,
    "gpu.released": 31,
    "gpu.reject": 6,
    "auth.denied": 3,
}
_BY_NIGHT = {
    "maintenance.idle_kill": 9,
    "maintenance.runtime_kill": 2,
    "maintenance.cleanup": 12,
    "resource.oom_kill": 1,
}


def events(elapsed_s: float) -> EventsReading:
    """All days are alike, so the counts of a day change little; the number of lines only grows."""
    sun = daylight(elapsed_s)
    counts = {type: round(count * (0.85 + 0.15 * sun)) for type, count in _BY_DAY.items()}
    counts |= {type: round(count * (1.15 - 0.15 * sun)) for type, count in _BY_NIGHT.items()}
    a_day = sum(_BY_DAY.values()) + sum(_BY_NIGHT.values())
    return EventsReading(counts, lines=a_day + int(a_day * elapsed_s / DAY_S), bad_lines={"not_json": 1})


def state(elapsed_s: float) -> Ds01Reading:
    used = int((61 + elapsed_s / DAY_S) * _GIB) % (180 * _GIB)
    return Ds01Reading(None, 200 * _GIB, 200 * _GIB - used, used)
