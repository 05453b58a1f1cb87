"""pod_gpu_*, pod_total_*: each pod's use of each GPU, in the names of k8s-vgpu-monitor.

A megabyte is 1024 x 1024 bytes. A pod has series for each GPU on which it has a process, and for each GPU that the
kubelet has allocated to it: without a process there it uses 0. That is known only where every process on the GPU is.

k8s-vgpu-monitor's README and its program differ. The dialect follows the README: `gpu_id` is the index of the GPU, the
utilization is that of the GPU, and values have fractions. With `like_the_program` it follows the program: a series for
each virtual GPU, numbered within its pod from 0; the utilization is multiplied by the allocation ratio; virtual GPUs of
one GPU each have the pod's utilization there and an equal part of its memory; values are cut to whole numbers.

exposer_*: the program's library counts its own scrapes. Here they count the responses with this dialect alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.exposition.families import Family, LabelValues, SummaryPoint, counter, gauge, summary
from gpucommons.model.gpu import Gpu
from gpucommons.model.ownership import Attribution, ProcessShare, Reason
from gpucommons.model.process_identity import PidScope
from gpucommons.model.snapshot import NO_SCRAPES, Readings, Snapshot
from gpucommons.rules.placement import pods_by_place, replicas_by_gpu

NAME = "vgpu"
PORT = 8080
_MEGABYTE = 1 << 20
_MILLIONTHS_PER_PERCENT = 10_000
_MICROSECONDS_PER_SECOND = 1_000_000
_LABELS = ("gpu_id", "pod", "namespace")
_OPTIONAL = ("namespace",)
_ENDED_PHASES = ("Succeeded", "Failed")
# Processes whose pod is not known: it may be any pod.
_UNSEEN = (Reason.PID_NAMESPACE, Reason.PROCESS_UNREADABLE)
_COMPLETE_VIEWS = (PidScope.HOST, PidScope.OWN_USER)

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
TRANSFERRED = counter("exposer_transferred_bytes_total", "Bytes of the responses with the vgpu dialect alone.")
SCRAPES = counter("exposer_scrapes_total", "Responses with the vgpu dialect alone.")
LATENCIES = summary(
    "exposer_request_latencies",
    "Time to serve the vgpu dialect alone, in microseconds; quantiles are of the last minute.",
)

CATALOGUE = (SM_UTIL, MEMORY_USED, TOTAL_MEMORY, TRANSFERRED, SCRAPES, LATENCIES)


@dataclass(slots=True)
class _PodOnGpu:
    """None is unknown. `devices` is the number of devices of this GPU that the kubelet has allocated to the pod."""

    gpu: Gpu
    sm_millionths: int | None = None
    memory_bytes: int | None = None
    instances: set[int | None] = field(default_factory=set)
    devices: int = 0
    has_process: bool = False

    def add(self, share: ProcessShare) -> None:
        self.has_process = True
        if share.sm is not None:
            self.sm_millionths = (self.sm_millionths or 0) + share.sm.amount
        if share.memory is not None:
            self.memory_bytes = (self.memory_bytes or 0) + share.memory.amount
        self.instances.add(share.place.gpu_instance_id)

    def set_idle(self) -> None:
        self.memory_bytes = 0
        # The driver has no utilization of processes on a MIG device: a pod there has none while it is busy either.
        self.sm_millionths = 0 if self.instances == {None} else None


class _PodName(NamedTuple):
    pod: str
    namespace: str


_Pods = dict[_PodName, dict[str, _PodOnGpu]]


class _Values(NamedTuple):
    sm_percent: float | None
    memory_megabytes: float | None
    total_megabytes: float | None


def vgpu_dialect(namespace_label: bool = True, like_the_program: bool = False) -> Dialect:
    """Without the namespace label, as in k8s-vgpu-monitor, pods of one name in two namespaces share a series. The
    program never has it."""
    has_namespace = namespace_label and not like_the_program
    of_pods = _of_the_program if like_the_program else _of_the_readme

    def collect(snapshot: Snapshot) -> Iterator[Family]:
        readings = snapshot.readings
        yield from _exposer(readings)
        if readings.attribution is None or readings.gpus is None:
            return
        pods = _pods(readings, readings.attribution, has_namespace)
        rows = list(of_pods(pods, _ratios(readings)))
        yield SM_UTIL.of((labels, row.sm_percent) for labels, row in rows if row.sm_percent is not None)
        yield MEMORY_USED.of((labels, row.memory_megabytes) for labels, row in rows if row.memory_megabytes is not None)
        yield TOTAL_MEMORY.of((labels, row.total_megabytes) for labels, row in rows if row.total_megabytes is not None)

    return Dialect(name=NAME, port=PORT, summary="use of each GPU by each pod", catalogue=CATALOGUE, collect=collect)


def _of_the_readme(pods: _Pods, ratio: Callable[[Gpu], float]) -> Iterator[tuple[LabelValues, _Values]]:
    for name, by_gpu in pods.items():
        for pod in by_gpu.values():
            values = _Values(
                None if pod.sm_millionths is None else pod.sm_millionths / _MILLIONTHS_PER_PERCENT,
                None if pod.memory_bytes is None else pod.memory_bytes / _MEGABYTE,
                _total_megabytes(pod, ratio(pod.gpu)),
            )
            yield (str(pod.gpu.identity.index), *name), values


def _of_the_program(pods: _Pods, ratio: Callable[[Gpu], float]) -> Iterator[tuple[LabelValues, _Values]]:
    for name, by_gpu in pods.items():
        number = 0
        for pod in sorted(by_gpu.values(), key=lambda pod: pod.gpu.identity.index):
            parts = max(pod.devices, 1)
            # The program reads a whole number, and cuts after each step.
            whole_ratio = max(int(ratio(pod.gpu)), 1)
            sm, memory, total = pod.sm_millionths, pod.memory_bytes, _total_megabytes(pod, 1.0)
            values = _Values(
                None if sm is None else sm // _MILLIONTHS_PER_PERCENT * whole_ratio,
                None if memory is None else memory // parts // _MEGABYTE,
                None if total is None else int(total) if _is_on_mig(pod) else int(total) // whole_ratio,
            )
            for _ in range(parts):
                yield (str(number), *name), values
                number += 1


def _pods(readings: Readings, attribution: Attribution, has_namespace: bool) -> _Pods:
    gpus = {gpu.identity.uuid: gpu for gpu in readings.gpus.gpus} if readings.gpus else {}
    pods: _Pods = {}
    # GPUs on which a process may belong to any pod.
    unseen: set[str] = set()
    for share in attribution.processes:
        uuid, pod = share.place.gpu_uuid, share.workload.pod
        if pod is None:
            if share.reason in _UNSEEN:
                unseen.add(uuid)
        elif uuid in gpus:
            if not pod.name:
                unseen.add(uuid)
            name = _PodName(pod.name or pod.uid, pod.namespace if has_namespace else "")
            pods.setdefault(name, {}).setdefault(uuid, _PodOnGpu(gpus[uuid])).add(share)
    for name, place_uuid, instance_id in _find_allocated(readings, has_namespace):
        row = pods.setdefault(name, {}).setdefault(place_uuid, _PodOnGpu(gpus[place_uuid]))
        row.devices += 1
        row.instances.add(instance_id)
    sees_all = attribution.view.scope in _COMPLETE_VIEWS
    for by_gpu in pods.values():
        for uuid, row in by_gpu.items():
            if not row.has_process and sees_all and uuid not in unseen and row.gpu.processes is not None:
                row.set_idle()
    return pods


def _find_allocated(readings: Readings, has_namespace: bool) -> Iterator[tuple[_PodName, str, int | None]]:
    """The GPU and the GPU instance of each device that the kubelet has allocated to a pod that has not ended."""
    if readings.gpus is None or readings.pod_devices is None:
        return
    pods = readings.pods.by_uid.values() if readings.pods else ()
    ended = {(pod.namespace, pod.name) for pod in pods if pod.phase in _ENDED_PHASES}
    for place, holders in pods_by_place(readings.gpus.gpus, readings.pod_devices).items():
        for holder in holders:
            if (holder.namespace, holder.pod) not in ended:
                name = _PodName(holder.pod, holder.namespace if has_namespace else "")
                yield name, place.gpu_uuid, place.gpu_instance_id


def _ratios(readings: Readings) -> Callable[[Gpu], float]:
    """The number of parts of each GPU: as configured, else the device plugin's replicas, else 1."""
    configured = readings.allocation_ratio.ratios if readings.allocation_ratio else None
    gpus = readings.gpus.gpus if readings.gpus else ()
    replicas: Mapping[str, int] = replicas_by_gpu(gpus, readings.pod_devices) if readings.pod_devices else {}

    def ratio(gpu: Gpu) -> float:
        by_operator = configured.of(gpu.identity.index) if configured else None
        return by_operator or replicas.get(gpu.identity.uuid) or 1.0

    return ratio


def _total_megabytes(pod: _PodOnGpu, ratio: float) -> float | None:
    """A pod on MIG instances has their whole memory; otherwise it has a share of the GPU's."""
    if _is_on_mig(pod):
        return sum(_instance_sizes(pod.gpu)[id] for id in pod.instances if id is not None) / _MEGABYTE
    total = pod.gpu.readings.memory_total_bytes
    return None if total is None else total / ratio / _MEGABYTE


def _is_on_mig(pod: _PodOnGpu) -> bool:
    sizes = _instance_sizes(pod.gpu)
    return bool(sizes) and pod.instances <= sizes.keys()


def _instance_sizes(gpu: Gpu) -> Mapping[int | None, int]:
    return {instance.gpu_instance_id: instance.memory_bytes for instance in gpu.gpu_instances()}


def _exposer(readings: Readings) -> Iterable[Family]:
    if readings.agent is None:
        return
    scrapes = readings.agent.scrapes.get(NAME, NO_SCRAPES)
    yield TRANSFERRED.value(scrapes.body_bytes)
    yield SCRAPES.value(scrapes.count)
    quantiles = tuple((quantile, seconds * _MICROSECONDS_PER_SECOND) for quantile, seconds in scrapes.quantiles_s)
    yield LATENCIES.summary([SummaryPoint((), quantiles, scrapes.sum_s * _MICROSECONDS_PER_SECOND, scrapes.count)])


VGPU = vgpu_dialect()
