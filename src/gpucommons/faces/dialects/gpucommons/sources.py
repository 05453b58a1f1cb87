"""gpucommons_source_*: which sources answer, how long they take, and why they fail."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.snapshot import Snapshot

UP = gauge("gpucommons_source_up", "1 if the last read of a source succeeded and is in use, else 0.", "source")
ABSENT = gauge(
    "gpucommons_source_absent",
    "1 if what a source reads is not on this node, so that it is down by nature.",
    "source",
)
DURATION = gauge("gpucommons_source_duration_seconds", "How long the last read of a source took.", "source")
FAILURES = counter("gpucommons_source_failures_total", "Reads of a source that failed, by reason.", "source", "reason")
LAST_SUCCESS = gauge(
    "gpucommons_source_last_success_timestamp_seconds", "Unix time of the last read that succeeded.", "source"
)

CATALOGUE = (UP, ABSENT, DURATION, FAILURES, LAST_SUCCESS)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    states = snapshot.sources.values()
    yield UP.of(((state.name,), int(state.up)) for state in states)
    yield ABSENT.of(((state.name,), int(state.absent)) for state in states)
    yield DURATION.of(((s.name,), s.duration_s) for s in states if s.duration_s is not None)
    yield FAILURES.of(((state.name, reason), count) for state in states for reason, count in state.failures.items())
    yield LAST_SUCCESS.of(((s.name,), s.last_success_wall_s) for s in states if s.last_success_wall_s is not None)
