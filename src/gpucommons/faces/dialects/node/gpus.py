"""gpu_*: each GPU by its index, and the memory of its processes, in the names of the node agent.

Used memory is all memory that is not free, including what the driver reserves: used + free = total.
"""

from collections.abc import Callable, Container, Iterator

from gpucommons.faces.dialects.crowd import OVERFLOW, pid_label, processes_beyond_limit
from gpucommons.faces.exposition.families import Family, Metric, gauge
from gpucommons.model.gpu import Gpu
from gpucommons.model.snapshot import Snapshot

UTILIZATION = gauge("gpu_utilization_percent", "Percentage of time in which a GPU was busy.", "gpu_index")
MEMORY_USED = gauge(
    "gpu_memory_used_bytes", "Memory of a GPU that is not free, including what the driver reserves.", "gpu_index"
)
MEMORY_TOTAL = gauge("gpu_memory_total_bytes", "Memory of a GPU.", "gpu_index")
TEMPERATURE = gauge("gpu_temperature_celsius", "Temperature of a GPU.", "gpu_index")
POWER = gauge("gpu_power_draw_watts", "Power draw of a GPU.", "gpu_index")
PROCESS_MEMORY = gauge(
    "gpu_process_memory_bytes",
    'Memory of a GPU that a process uses, as reported by the driver; pid "overflow" is a sum.',
    "gpu_index",
    "pid",
)

_BY_GPU: tuple[tuple[Metric, Callable[[Gpu], float | None]], ...] = (
    (UTILIZATION, lambda gpu: gpu.readings.utilization_percent),
    (MEMORY_USED, lambda gpu: gpu.readings.memory_not_free_bytes),
    (MEMORY_TOTAL, lambda gpu: gpu.readings.memory_total_bytes),
    (TEMPERATURE, lambda gpu: gpu.readings.temperature_celsius),
    (POWER, lambda gpu: gpu.readings.power_watts),
)

CATALOGUE = (*(metric for metric, _ in _BY_GPU), PROCESS_MEMORY)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    if snapshot.readings.gpus is None:
        return
    gpus = [(str(gpu.identity.index), gpu) for gpu in snapshot.readings.gpus.present_gpus()]
    for metric, read in _BY_GPU:
        yield metric.of(((index,), value) for index, gpu in gpus if (value := read(gpu)) is not None)
    attribution = snapshot.readings.attribution
    beyond = processes_beyond_limit(() if attribution is None else attribution.processes)
    yield PROCESS_MEMORY.of(
        ((index, pid), used)
        for index, gpu in gpus
        for pid, used in _memory_by_pid(gpu, beyond.get(gpu.identity.uuid, ())).items()
    )


def _memory_by_pid(gpu: Gpu, beyond: Container[int]) -> dict[str, int]:
    """A process in two MIG instances has memory in both."""
    used: dict[str, int] = {}
    for process in gpu.processes or ():
        if process.used_memory_bytes is not None:
            pid = OVERFLOW if process.pid in beyond else pid_label(process.pid)
            used[pid] = used.get(pid, 0) + process.used_memory_bytes
    return used
