"""ds01_events_*, ds01_lifecycle_events_total: the events of DS01's event log in the last 24 hours."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

EVENTS = gauge("ds01_events_24h_total", "Events of a type in a sliding window of 24 hours.", "event_type")
LIFECYCLE = gauge(
    "ds01_lifecycle_events_total",
    "Enforcement events (kills and warnings) in a sliding window of 24 hours; 0 if there were none.",
    "action",
)

CATALOGUE = (EVENTS, LIFECYCLE)

# DS01's panels add these up as enforcements: no other action may be added.
_ACTIONS = {
    "idle_kill": "maintenance.idle_kill",
    "runtime_kill": "maintenance.runtime_kill",
    "oom_kill": "resource.oom_kill",
    "gpu_warning": "alert.gpu_warning",
    "memory_warning": "alert.memory_warning",
    "container_warning": "alert.container_warning",
    "bare_metal_warning": "bare_metal.warning",
}


def collect(snapshot: Snapshot) -> Iterator[Family]:
    reading, source = snapshot.readings.events, snapshot.sources.get("events")
    if reading is not None:
        counts = reading.counts_24h
        yield EVENTS.of(((type,), count) for type, count in counts.items())
    elif source is not None and source.absent:
        # DS01 creates the log with its first event, so no log means no events. An unreadable log means unknown.
        counts = {}
    else:
        return
    yield LIFECYCLE.of(((action,), counts.get(type, 0)) for action, type in _ACTIONS.items())
