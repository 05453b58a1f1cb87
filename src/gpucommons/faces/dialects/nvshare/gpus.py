"""nvshare_gpu_* and nvshare_nvml_up: the GPUs as nvshare's scheduler reports them."""

from collections.abc import Callable, Iterator

from gpucommons.faces.exposition.families import Family, Metric, gauge
from gpucommons.model.gpu import Gpu
from gpucommons.model.snapshot import Snapshot

# nvshare_nvml_up: whether NVML answers.

UP = gauge("nvshare_nvml_up", "State of NVML: 1 if it answers, else 0.")

NVML_CATALOGUE = (UP,)


def collect_nvml(snapshot: Snapshot) -> Iterator[Family]:
    yield UP.value(0 if snapshot.readings.gpus is None else 1)


# nvshare_gpu_*: the GPUs in the names of nvshare's exporter.
#
# Used memory is all memory that is not free, including what the driver reserves: used + free = total.

_GPU = ("gpu_uuid", "gpu_index")

INFO = gauge("nvshare_gpu_info", "Name of a GPU; always 1.", *_GPU, "gpu_name")
MEMORY_TOTAL = gauge("nvshare_gpu_memory_total_bytes", "Memory of a GPU.", *_GPU)
MEMORY_USED = gauge(
    "nvshare_gpu_memory_used_bytes", "Memory of a GPU that is not free, including what the driver reserves.", *_GPU
)
MEMORY_FREE = gauge("nvshare_gpu_memory_free_bytes", "Free memory of a GPU.", *_GPU)
UTILIZATION = gauge("nvshare_gpu_utilization_ratio", "Share of time in which a GPU was busy, 0 to 1.", *_GPU)
MEMORY_UTILIZATION = gauge(
    "nvshare_gpu_memory_utilization_ratio",
    "Share of time in which the memory of a GPU was read or written, 0 to 1.",
    *_GPU,
)
PROCESSES = gauge("nvshare_gpu_process_count", "Compute processes on a GPU as reported by NVML.", *_GPU)


def _ratio(percent: int | None) -> float | None:
    return None if percent is None else percent / 100


def _compute_processes(gpu: Gpu) -> int | None:
    if gpu.processes is None:
        return None
    return len({process.pid for process in gpu.processes if "compute" in process.kind})


_BY_GPU: tuple[tuple[Metric, Callable[[Gpu], float | None]], ...] = (
    (MEMORY_TOTAL, lambda gpu: gpu.readings.memory_total_bytes),
    (MEMORY_USED, lambda gpu: gpu.readings.memory_not_free_bytes),
    (MEMORY_FREE, lambda gpu: gpu.readings.memory_free_bytes),
    (UTILIZATION, lambda gpu: _ratio(gpu.readings.utilization_percent)),
    (MEMORY_UTILIZATION, lambda gpu: _ratio(gpu.readings.memory_utilization_percent)),
    (PROCESSES, _compute_processes),
)

GPUS_CATALOGUE = (INFO, *(metric for metric, _ in _BY_GPU))


def collect_gpus(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.gpus
    if reading is None:
        return
    gpus = [((gpu.identity.uuid, str(gpu.identity.index)), gpu) for gpu in reading.present_gpus()]
    yield INFO.of(((*labels, gpu.identity.name), 1) for labels, gpu in gpus)
    for metric, read in _BY_GPU:
        yield metric.of((labels, value) for labels, gpu in gpus if (value := read(gpu)) is not None)


CATALOGUE = (
    *NVML_CATALOGUE,
    *GPUS_CATALOGUE,
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield from collect_nvml(snapshot)
    yield from collect_gpus(snapshot)
