"""ds01_unmanaged_*: containers with access to GPUs that were not allocated to them."""

from collections.abc import Iterator

from gpucommons.faces.dialects.ds01.containers import containers_reading
from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.allocations import Access, UnmanagedContainer
from gpucommons.model.snapshot import Snapshot

CONTAINER = gauge(
    "ds01_unmanaged_gpu_container",
    "Container with access to GPUs that were not allocated to it; always 1.",
    *("container", "user", "gpu_count", "access_type", "running"),
)
COUNT = gauge("ds01_unmanaged_gpu_count", "Containers with access to GPUs that were not allocated to them.")
RUNNING = gauge("ds01_unmanaged_gpu_running", "Running containers with access to GPUs that were not allocated to them.")
ALL_ACCESS = gauge("ds01_unmanaged_gpu_all_access", "Containers with access to every GPU without an allocation.")

CATALOGUE = (CONTAINER, COUNT, RUNNING, ALL_ACCESS)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    reading = containers_reading(snapshot)
    if reading is not None:
        unmanaged = reading.unmanaged
        yield CONTAINER.of((labels, 1) for labels in dict.fromkeys(map(_labels, unmanaged)))
        yield COUNT.value(len(unmanaged))
        yield RUNNING.value(sum(each.running for each in unmanaged))
        yield ALL_ACCESS.value(sum(each.access is Access.ALL for each in unmanaged))


def _labels(each: UnmanagedContainer) -> tuple[str, ...]:
    count = "ALL" if each.access is Access.ALL else str(each.gpu_count)
    return each.name, each.user or "unknown", count, each.access.value, "true" if each.running else "false"
