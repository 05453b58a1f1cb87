"""gpucommons_snapshot*, gpucommons_simulated: the snapshot that is served."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.snapshot import Snapshot

SIMULATED = gauge(
    "gpucommons_simulated", "Scenario that is simulated; 1 if present, and then no value is measured.", "scenario"
)
PUBLISHED = counter("gpucommons_snapshots_total", "Snapshots published since the agent started.")
TIME = gauge("gpucommons_snapshot_timestamp_seconds", "Unix time of the snapshot that is served.")

CATALOGUE = (SIMULATED, PUBLISHED, TIME)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    if snapshot.scenario is not None:
        yield SIMULATED.value(1, snapshot.scenario)
    yield PUBLISHED.value(snapshot.sequence + 1)
    yield TIME.value(snapshot.wall_s)
