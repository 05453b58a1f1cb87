"""ds01_state_disk_bytes: the disk of DS01's state directory."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

DISK = gauge(
    "ds01_state_disk_bytes",
    "Size of the disk of DS01's state directory; free includes the blocks reserved for root.",
    "type",
)

CATALOGUE = (DISK,)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    state = snapshot.readings.ds01
    if state is not None:
        sizes = (("total", state.disk_total_bytes), ("used", state.disk_used_bytes), ("free", state.disk_free_bytes))
        yield DISK.of(((name,), size) for name, size in sizes if size is not None)
