"""gpucommons_source_*: the state of each source, the duration of its reads, and its failures."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.snapshot import Snapshot

UP = gauge("gpucommons_source_up", "State of a source: 1 if its last read succeeded and is in use, else 0.", "source")
ABSENT = gauge(
    "gpucommons_source_absent", "Absence of what a source reads: 1 if this node does not have it, else 0.", "source"
)
DURATION = gauge("gpucommons_source_duration_seconds", "Duration of the last read of a source.", "source")
FAILURES = counter("gpucommons_source_failures_total", "Reads of a source that failed, by reason.", "source", "reason")
LAST_SUCCESS = gauge(
    "gpucommons_source_last_success_timestamp_seconds", "Unix time of the last successful read of a source.", "source"
)

CATALOGUE = (UP, ABSENT, DURATION, FAILURES, LAST_SUCCESS)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    states = snapshot.sources.values()
    yield UP.of(((state.name,), int(state.up)) for state in states)
    yield ABSENT.of(((state.name,), int(state.absent)) for state in states)
    yield DURATION.of(((s.name,), s.duration_s) for s in states if s.duration_s is not None)
    yield FAILURES.of(((state.name, reason), count) for state in states for reason, count in state.failures.items())
    yield LAST_SUCCESS.of(((s.name,), s.last_success_wall_s) for s in states if s.last_success_wall_s is not None)
