"""gpucommons_container_*: CPU time and host memory of containers."""

from collections.abc import Callable, Iterator

from gpucommons.faces.exposition.families import Family, Metric, counter, gauge
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.workloads import ContainerUsage

_LABELS = ("container", "runtime")

CPU = counter("gpucommons_container_cpu_seconds_total", "CPU time of a running container.", *_LABELS)
MEMORY = gauge(
    "gpucommons_container_memory_bytes", "Memory of a running container without reclaimable file cache.", *_LABELS
)
LIMIT = gauge(
    "gpucommons_container_memory_limit_bytes", "Memory limit of a running container; absent without a limit.", *_LABELS
)

CATALOGUE = (CPU, MEMORY, LIMIT)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.container_usage
    if reading is None:
        return
    rows = reading.by_id.values()

    def family(metric: Metric, value: Callable[[ContainerUsage], float | None]) -> Family:
        known = ((row, value(row)) for row in rows)
        return metric.of(((row.name, row.runtime), number) for row, number in known if number is not None)

    yield family(CPU, lambda row: row.cpu_seconds)
    yield family(MEMORY, lambda row: row.memory_bytes)
    yield family(LIMIT, lambda row: row.memory_limit_bytes)
