"""ds01_events_24h_total, ds01_lifecycle_events_total: what DS01's event log held in the last 24 hours."""

from collections.abc import Iterator

from gpucommons.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

EVENTS = gauge("ds01_events_24h_total", "Events of a type in the last 24 hours, truly sliding.", "event_type")
LIFECYCLE = gauge(
    "ds01_lifecycle_events_total", "What befell containers in the last 24 hours, under one name each.", "action"
)

CATALOGUE = (EVENTS, LIFECYCLE)

# Older and newer programs write the same thing in two tenses.
_ACTIONS = {
    "idle_kill": ("maintenance.idle_kill",),
    "runtime_kill": ("maintenance.runtime_kill",),
    "cleanup": ("maintenance.cleanup",),
    "oom_kill": ("resource.oom_kill",),
    "create": ("container.create", "container.created"),
    "start": ("container.start", "container.started"),
    "stop": ("container.stop", "container.stopped"),
    "remove": ("container.remove", "container.removed"),
}


def collect(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.events
    if reading is None:
        return
    counts = reading.counts_24h
    yield EVENTS.of(((type,), count) for type, count in counts.items())
    yield LIFECYCLE.of(((action,), sum(counts.get(type, 0) for type in types)) for action, types in _ACTIONS.items())
