"""node_filefd_*: open file handles of the host."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

ALLOCATED = gauge("node_filefd_allocated", "Open file handles of the host.")
MAXIMUM = gauge("node_filefd_maximum", "Maximum number of open file handles of the host.")

CATALOGUE = (ALLOCATED, MAXIMUM)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is not None and (handles := kernel.file_handles) is not None:
        yield ALLOCATED.value(handles.allocated)
        yield MAXIMUM.value(handles.maximum)
