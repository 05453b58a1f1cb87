"""ds01_events_24h_total, ds01_lifecycle_events_total: what DS01's event log held in the last 24 hours."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

EVENTS = gauge("ds01_events_24h_total", "Events of a type in the last 24 hours, truly sliding.", "event_type")
LIFECYCLE = gauge(
    "ds01_lifecycle_events_total",
    "Enforcement events (kills and warnings) of the last 24 hours, truly sliding; 0 where there were none.",
    "action",
)

CATALOGUE = (EVENTS, LIFECYCLE)

# DS01's panels sum these: another action would be counted as an enforcement.
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
        # DS01 writes the log with its first event: no log is no event. A log that cannot be read is unknown.
        counts = {}
    else:
        return
    yield LIFECYCLE.of(((action,), counts.get(type, 0)) for action, type in _ACTIONS.items())
