"""gpucommons_exposition_*: series and dialects that could not be served."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter
from gpucommons.model.snapshot import Snapshot

DUPLICATES = counter(
    "gpucommons_exposition_duplicates_dropped_total",
    "Series dropped because another series has the same name and labels.",
    "dialect",
)
FAILURES = counter(
    "gpucommons_exposition_dialect_failures_total",
    "Snapshots for which a dialect failed and its families were omitted.",
    "dialect",
)

CATALOGUE = (DUPLICATES, FAILURES)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    agent = snapshot.readings.agent
    if agent is not None:
        yield DUPLICATES.of(((dialect,), count) for dialect, count in agent.duplicates_dropped.items())
        yield FAILURES.of(((dialect,), count) for dialect, count in agent.dialect_failures.items())
