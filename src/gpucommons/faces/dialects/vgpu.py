"""pod_gpu_*, pod_total_*: each pod's use of each GPU, in the names of k8s-vgpu-monitor.

A megabyte is 1024 x 1024 bytes. A pod has series only while it has a process on the GPU.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.gpu import Gpu, GpuReading
from gpucommons.model.ownership import ProcessShare
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.rules.pod_placement import replicas_by_gpu

PORT = 8080
_MEGABYTE = 1 << 20
_MILLIONTHS_PER_PERCENT = 10_000
_LABELS = ("gpu_id", "pod", "namespace")
_OPTIONAL = ("namespace",)

SM_UTIL = gauge(
    "pod_gpu_sm_util", "SM utilization of a pod's processes on a GPU, in percent.", *_LABELS, optional=_OPTIONAL
)
MEMORY_USED = gauge(
    "pod_gpu_memory_used",
    "Memory of a GPU that a pod's processes use, in MB (1024 x 1024 bytes).",
    *_LABELS,
    optional=_OPTIONAL,
)
TOTAL_MEMORY = gauge(
    "pod_total_gpu_memory",
    "Memory of a pod's virtual GPU, in MB: the memory of the GPU divided by its allocation ratio.",
    *_LABELS,
    optional=_OPTIONAL,
)

CATALOGUE = (SM_UTIL, MEMORY_USED, TOTAL_MEMORY)


@dataclass(slots=True)
class _PodOnGpu:
    sm_millionths: int | None = None
    memory_bytes: int | None = None
    instances: set[int | None] = field(default_factory=set)

    def add(self, share: ProcessShare) -> None:
        if share.sm is not None:
            self.sm_millionths = (self.sm_millionths or 0) + share.sm.amount
        if share.memory is not None:
            self.memory_bytes = (self.memory_bytes or 0) + share.memory.amount
        self.instances.add(share.place.gpu_instance_id)


def vgpu_dialect(namespace_label: bool = True) -> Dialect:
    """Without the namespace label, as in k8s-vgpu-monitor, pods of one name in two namespaces share a series."""
    return Dialect(
        name="vgpu",
        port=PORT,
        summary="use of each GPU by each pod",
        catalogue=CATALOGUE,
        collect=_collector(namespace_label),
    )


def _collector(namespace_label: bool) -> Callable[[Snapshot], Iterator[Family]]:
    def collect(snapshot: Snapshot) -> Iterator[Family]:
        readings = snapshot.readings
        if readings.attribution is None or readings.gpus is None:
            return
        gpus = {gpu.identity.uuid: gpu for gpu in readings.gpus.gpus}
        pods: dict[tuple[str, tuple[str, str, str]], _PodOnGpu] = {}
        for share in readings.attribution.processes:
            if (pod := share.workload.pod) is not None:
                namespace = pod.namespace if namespace_label else ""
                labels = (str(share.place.gpu_index), pod.name or pod.uid, namespace)
                pods.setdefault((share.place.gpu_uuid, labels), _PodOnGpu()).add(share)
        ratio = _ratios(readings, readings.gpus)
        yield SM_UTIL.of(
            (labels, pod.sm_millionths / _MILLIONTHS_PER_PERCENT)
            for (_, labels), pod in pods.items()
            if pod.sm_millionths is not None
        )
        yield MEMORY_USED.of(
            (labels, pod.memory_bytes / _MEGABYTE) for (_, labels), pod in pods.items() if pod.memory_bytes is not None
        )
        yield TOTAL_MEMORY.of(
            (labels, total)
            for (uuid, labels), pod in pods.items()
            if uuid in gpus and (total := _total_megabytes(gpus[uuid], pod, ratio)) is not None
        )

    return collect


def _ratios(readings: Readings, gpus: GpuReading) -> Callable[[Gpu], float]:
    """The number of parts of each GPU: as configured, else the device plugin's replicas, else 1."""
    configured = readings.allocation_ratio.ratios if readings.allocation_ratio else None
    replicas = replicas_by_gpu(gpus.gpus, readings.pod_devices) if readings.pod_devices else {}

    def ratio(gpu: Gpu) -> float:
        by_operator = configured.of(gpu.identity.index) if configured else None
        return by_operator or replicas.get(gpu.identity.uuid) or 1.0

    return ratio


def _total_megabytes(gpu: Gpu, pod: _PodOnGpu, ratio: Callable[[Gpu], float]) -> float | None:
    """A pod on MIG instances has their whole memory; otherwise it has a share of the GPU's."""
    sizes = {instance.gpu_instance_id: instance.memory_bytes for instance in gpu.gpu_instances()}
    if sizes and pod.instances <= sizes.keys():
        return sum(sizes[id] for id in pod.instances if id is not None) / _MEGABYTE
    total = gpu.readings.memory_total_bytes
    return None if total is None else total / ratio(gpu) / _MEGABYTE


VGPU = vgpu_dialect()
