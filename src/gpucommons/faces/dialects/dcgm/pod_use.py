"""Each pod's use of a shared GPU: the values that dcgm-exporter's virtual-GPU mode has per pod.

They are the driver's values for the pod's processes. A pod without a process on the GPU uses 0; a pod for whose
processes the driver has no value has no series.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpucommons.faces.dialects.dcgm.labels import Labeller, PodName
from gpucommons.faces.exposition.families import LabelValues
from gpucommons.model.gpu import Gpu, GpuProcess
from gpucommons.model.ownership import Attribution

_MEBIBYTE_SHIFT = 20


@dataclass(frozen=True, slots=True)
class PodUse:
    sm_percent: int | None
    memory_mebibytes: int | None


_IDLE = PodUse(0, 0)
# The driver has no utilization of processes on a MIG device.
_IDLE_INSTANCE = PodUse(None, 0)
_Key = tuple[str, int | None, PodName]


def pod_uses(
    gpus: list[Gpu], attribution: Attribution | None, labeller: Labeller
) -> Iterator[tuple[LabelValues, PodUse]]:
    used = _by_pod(gpus, attribution)
    for gpu in gpus:
        if gpu.processes is None or attribution is None:
            continue
        for instance in (None, *gpu.gpu_instances()):
            instance_id = None if instance is None else instance.gpu_instance_id
            idle = _IDLE if instance is None else _IDLE_INSTANCE
            for pod, labels in labeller.by_pod(gpu, instance):
                yield labels, used.get((gpu.identity.uuid, instance_id, pod), idle)


def _by_pod(gpus: list[Gpu], attribution: Attribution | None) -> Mapping[_Key, PodUse]:
    of_pods = {
        (share.place.gpu_uuid, share.place.gpu_instance_id, share.pid): (pod.namespace, pod.name)
        for share in (attribution.processes if attribution else ())
        if (pod := share.workload.pod) is not None
    }
    rows: dict[_Key, list[GpuProcess]] = {}
    for gpu in gpus if of_pods else ():
        uuid = gpu.identity.uuid
        for process in gpu.processes or ():
            name = of_pods.get((uuid, process.gpu_instance_id, process.pid))
            if name is not None:
                rows.setdefault((uuid, process.gpu_instance_id, name), []).append(process)
    return {key: _use(processes) for key, processes in rows.items()}


def _use(processes: list[GpuProcess]) -> PodUse:
    shares = [p.sm_percent for p in processes if p.sm_percent is not None]
    sizes = [p.used_memory_bytes >> _MEBIBYTE_SHIFT for p in processes if p.used_memory_bytes is not None]
    return PodUse(sum(shares) if shares else None, sum(sizes) if sizes else None)
