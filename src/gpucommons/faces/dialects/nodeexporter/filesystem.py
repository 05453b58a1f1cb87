"""node_filesystem_*: the space of each mounted file system. One that does not answer has only its error."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

_LABELS = ("device", "mountpoint", "fstype")

DEVICE_ERROR = gauge(
    "node_filesystem_device_error",
    "Error of a file system: 1 if it failed or did not answer in time and its other series are absent, else 0.",
    *_LABELS,
)
SIZE = gauge("node_filesystem_size_bytes", "Size of a file system in bytes.", *_LABELS)
FREE = gauge("node_filesystem_free_bytes", "Free bytes of a file system, including those reserved for root.", *_LABELS)
AVAIL = gauge("node_filesystem_avail_bytes", "Free bytes of a file system for users other than root.", *_LABELS)
FILES = gauge("node_filesystem_files", "Inodes of a file system.", *_LABELS)
FILES_FREE = gauge("node_filesystem_files_free", "Free inodes of a file system.", *_LABELS)
READONLY = gauge("node_filesystem_readonly", "Mode of a mount: 1 if read-only, else 0.", *_LABELS)

CATALOGUE = (DEVICE_ERROR, SIZE, FREE, AVAIL, FILES, FILES_FREE, READONLY)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.filesystems
    if reading is None:
        return
    named = [((each.device, each.mount_point, each.type), each) for each in reading.filesystems]
    answered = [(labels, each.space, each.read_only) for labels, each in named if each.space is not None]
    yield DEVICE_ERROR.of((labels, int(each.space is None)) for labels, each in named)
    yield SIZE.of((labels, space.size_bytes) for labels, space, _ in answered)
    yield FREE.of((labels, space.free_bytes) for labels, space, _ in answered)
    yield AVAIL.of((labels, space.available_bytes) for labels, space, _ in answered)
    yield FILES.of((labels, space.files) for labels, space, _ in answered)
    yield FILES_FREE.of((labels, space.files_free) for labels, space, _ in answered)
    yield READONLY.of((labels, int(read_only)) for labels, _, read_only in answered)
