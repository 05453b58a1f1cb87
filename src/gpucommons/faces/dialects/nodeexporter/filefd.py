"""node_filefd_*: open file handles of the whole system."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

ALLOCATED = gauge("node_filefd_allocated", "Number of file handles that are open on the host.")
MAXIMUM = gauge("node_filefd_maximum", "Number of file handles that may be open on the host.")

CATALOGUE = (ALLOCATED, MAXIMUM)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    kernel = snapshot.readings.kernel
    if kernel is not None and (handles := kernel.file_handles) is not None:
        yield ALLOCATED.value(handles.allocated)
        yield MAXIMUM.value(handles.maximum)
