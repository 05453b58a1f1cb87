"""gpucommons_gpu_mig_*, _pipe_*, _process_*: MIG devices, pipes and processes of a GPU."""

from collections.abc import Callable, Container, Iterator
from functools import lru_cache

from gpucommons.faces.dialects.crowd import OVERFLOW, pid_label, processes_beyond_limit
from gpucommons.faces.exposition.families import Family, Metric, Point, gauge
from gpucommons.model.gpu import GpmReading, Gpu, MigInstance
from gpucommons.model.snapshot import Snapshot

_GPU = ("gpu", "uuid")

MIG_ENABLED = gauge("gpucommons_gpu_mig_enabled", "MIG mode: 1 if enabled, 0 if disabled.", *_GPU)
MIG_DEVICE = gauge(
    "gpucommons_gpu_mig_device_info",
    "Identity of a MIG device: profile, instances and placement in memory slices; always 1.",
    *_GPU,
    "mig_uuid",
    "profile",
    "gpu_instance",
    "compute_instance",
    "placement_start",
    "placement_size",
    optional=("placement_start", "placement_size"),
)
MIG_SLICES = gauge(
    "gpucommons_gpu_mig_compute_slices", "Number of compute slices of a MIG device.", *_GPU, "mig_uuid", "gpu_instance"
)
MIG_MULTIPROCESSORS = gauge(
    "gpucommons_gpu_mig_multiprocessors",
    "Number of multiprocessors of a MIG device.",
    *_GPU,
    "mig_uuid",
    "gpu_instance",
)
MIG_MEMORY = gauge(
    "gpucommons_gpu_mig_memory_bytes",
    "Memory of a GPU instance (total, used, free), which its compute instances share.",
    *_GPU,
    "gpu_instance",
    "profile",
    "which",
)
PIPE = gauge(
    "gpucommons_gpu_pipe_active_ratio",
    "Share of cycles in which a pipe of a GPU or of a GPU instance was active, 0 to 1.",
    *_GPU,
    "gpu_instance",
    "pipe",
    optional=("gpu_instance",),
)
PROCESS = gauge(
    "gpucommons_gpu_process_utilization_ratio",
    'Share of the SM, memory, encoder or decoder time of a GPU that a process used, 0 to 1; pid "overflow" is a sum.',
    *_GPU,
    "pid",
    "engine",
)

CATALOGUE = (MIG_ENABLED, MIG_DEVICE, MIG_SLICES, MIG_MULTIPROCESSORS, MIG_MEMORY, PIPE, PROCESS)

# The pipes for which DCGM has no separate names.
_PIPES: tuple[tuple[str, Callable[[GpmReading], float | None]], ...] = (
    ("integer", lambda gpm: gpm.integer_ratio),
    ("tensor_double", lambda gpm: gpm.tensor_double_ratio),
    ("tensor_half", lambda gpm: gpm.tensor_half_ratio),
    ("tensor_integer", lambda gpm: gpm.tensor_integer_ratio),
)
_ENGINES = ("sm", "memory", "encoder", "decoder")


def collect(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.gpus
    if reading is None:
        return
    gpus = [((str(gpu.identity.index), gpu.identity.uuid), gpu) for gpu in reading.present_gpus()]
    devices = [(labels, instance) for labels, gpu in gpus for instance in gpu.mig]
    yield MIG_ENABLED.of((labels, int(gpu.mig_enabled)) for labels, gpu in gpus if gpu.mig_enabled is not None)
    yield MIG_DEVICE.of(((*labels, *_device(instance)), 1) for labels, instance in devices)
    for metric, size in ((MIG_SLICES, "compute_slices"), (MIG_MULTIPROCESSORS, "multiprocessors")):
        yield _by_device(metric, devices, size)
    yield MIG_MEMORY.of(point for labels, gpu in gpus for point in _memory(labels, gpu))
    yield PIPE.of(point for labels, gpu in gpus for point in _pipes(labels, gpu))
    attribution = snapshot.readings.attribution
    beyond = processes_beyond_limit(() if attribution is None else attribution.processes)
    yield PROCESS.of(point for labels, gpu in gpus for point in _processes(labels, gpu, beyond.get(labels[1], ())))


def _device(instance: MigInstance) -> tuple[str, ...]:
    start, size = instance.placement_start, instance.placement_size
    return (
        instance.uuid,
        instance.profile,
        str(instance.gpu_instance_id),
        str(instance.compute_instance_id),
        "" if start is None else str(start),
        "" if size is None else str(size),
    )


def _by_device(metric: Metric, devices: list[tuple[tuple[str, str], MigInstance]], size: str) -> Family:
    return metric.of(((*labels, one.uuid, str(one.gpu_instance_id)), getattr(one, size)) for labels, one in devices)


def _memory(labels: tuple[str, str], gpu: Gpu) -> Iterator[Point]:
    for instance in gpu.gpu_instances():
        names = (*labels, str(instance.gpu_instance_id), instance.gpu_instance_profile)
        if instance.memory is None:
            yield (*names, "total"), instance.memory_bytes
        else:
            yield (*names, "total"), instance.memory.total_bytes
            yield (*names, "used"), instance.memory.used_bytes
            yield (*names, "free"), instance.memory.free_bytes


def _pipes(labels: tuple[str, str], gpu: Gpu) -> Iterator[Point]:
    parts = [("", gpu.gpm), *((str(i.gpu_instance_id), i.gpm) for i in gpu.gpu_instances())]
    for instance, gpm in parts:
        for name, read in _PIPES:
            value = None if gpm is None else read(gpm)
            if value is not None:
                yield (*labels, instance, name), value


@lru_cache(maxsize=101)
def _ratio(percent: int) -> float:
    """The same object for the same percentage: a node may have tens of thousands of these series."""
    return percent / 100


def _processes(labels: tuple[str, str], gpu: Gpu, beyond: Container[int]) -> list[Point]:
    """One series per process: the driver measures its utilisation of the whole GPU, not of an instance."""
    index, uuid = labels
    seen: set[int] = set()
    points: list[Point] = []
    overflow: list[tuple[int | None, ...]] = []
    for process in gpu.processes or ():
        if process.pid in seen:
            continue
        seen.add(process.pid)
        percents = (process.sm_percent, process.memory_percent, process.encoder_percent, process.decoder_percent)
        if process.pid in beyond:
            overflow.append(percents)
            continue
        pid = pid_label(process.pid)
        for engine, percent in zip(_ENGINES, percents, strict=True):
            if percent is not None:
                points.append(((index, uuid, pid, engine), _ratio(percent)))
    for engine, column in zip(_ENGINES, zip(*overflow, strict=True), strict=False):
        known = [percent for percent in column if percent is not None]
        if known:
            points.append(((index, uuid, OVERFLOW, engine), sum(known) / 100))
    return points
