"""Which series a GPU has in dcgm-exporter's labels, and a pod's use of a shared GPU."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpucommons.faces.exposition.families import LabelValues, Metric, counter, gauge
from gpucommons.model.gpu import Gpu, GpuProcess, MigInstance
from gpucommons.model.ownership import Attribution, Place
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.workloads import JobMappingReading
from gpucommons.rules.placement import PodLabels, pods_by_place

# The labels of a dcgm series: the GPU or GPU instance, its pod, and its batch job.
#
# As in dcgm-exporter, a GPU has one series per holder: per job that a mapping file names, and with `shared = "per_pod"`
# per pod.

PER_POD = "per_pod"

LABELS = (
    "gpu",
    "UUID",
    "pci_bus_id",
    "device",
    "modelName",
    "GPU_I_PROFILE",
    "GPU_I_ID",
    "Hostname",
    "hostname",
    "DCGM_FI_DRIVER_VERSION",
    "container",
    "namespace",
    "pod",
    "pod_uid",
    "vgpu",
    "hpc_job",
)
_ALWAYS = frozenset({"gpu", "UUID", "pci_bus_id", "device", "modelName", "DCGM_FI_DRIVER_VERSION"})
OPTIONAL = tuple(name for name in LABELS if name not in _ALWAYS)


class DcgmOptions(NamedTuple):
    """`hostname_label` is Hostname, hostname, both or none; `shared` is once or per_pod. `pod_uid` adds the UID to all
    series of a pod; without it only values of a single pod have it."""

    hostname_label: str = "Hostname"
    shared: str = "once"
    xid_window_ms: int = 300_000
    clock_events_window_ms: int = 300_000
    pod_uid: bool = False
    dashes_in_model_name: bool = False


def field_gauge(name: str, help: str) -> Metric:
    return gauge(f"DCGM_FI_{name}", help, *LABELS, optional=OPTIONAL)


def field_counter(name: str, help: str) -> Metric:
    return counter(f"DCGM_FI_{name}", help, *LABELS, optional=OPTIONAL)


class _PodPart(NamedTuple):
    """The labels of a pod, in the order of LABELS."""

    container: str = ""
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    vgpu: str = ""


_NO_POD = _PodPart()
PodName = tuple[str, str]


def only_pod(holders: tuple[PodLabels, ...]) -> tuple[str, str, str]:
    """Container, namespace and pod of a GPU that a single pod holds; empty if several pods hold it.

    dcgm-exporter names an arbitrary pod of them, to which dashboards then attribute the use of all.
    """
    if len({(labels.namespace, labels.pod) for labels in holders}) != 1:
        return "", "", ""
    containers = {labels.container for labels in holders}
    return containers.pop() if len(containers) == 1 else "", holders[0].namespace, holders[0].pod


class Labeller:
    """The label values of GPUs and GPU instances in one snapshot."""

    def __init__(self, snapshot: Snapshot, options: DcgmOptions) -> None:
        readings = snapshot.readings
        gpus, devices = readings.gpus, readings.pod_devices
        self.per_pod = options.shared == PER_POD
        self._pod_uid = options.pod_uid
        self._dashes = options.dashes_in_model_name
        self._driver_version = "" if gpus is None else gpus.driver_version
        self._hostnames = (
            snapshot.hostname if options.hostname_label in ("Hostname", "both") else "",
            snapshot.hostname if options.hostname_label in ("hostname", "both") else "",
        )
        self._pods: Mapping[Place, tuple[PodLabels, ...]] = (
            {} if gpus is None or devices is None else pods_by_place(gpus.gpus, devices)
        )
        self._jobs = readings.job_mapping or JobMappingReading()
        pods = () if readings.pods is None else readings.pods.by_uid.values()
        self._uids: Mapping[PodName, str] = {(pod.namespace, pod.name): pod.uid for pod in pods}

    def of(self, gpu: Gpu, instance: MigInstance | None = None) -> list[LabelValues]:
        """The label values of one GPU or GPU instance, one per pod and job; at least one."""
        holders = self._pods.get(_place(gpu, instance), ())
        if self.per_pod and holders:
            pods = [_PodPart(h.container, h.namespace, h.pod, self._uid(h.namespace, h.pod), _vgpu(h)) for h in holders]
        else:
            container, namespace, pod = only_pod(holders)
            pods = [_PodPart(container, namespace, pod, self._uid(namespace, pod))]
        return [labels for pod in pods for labels in self._with(gpu, instance, pod)]

    def _uid(self, namespace: str, pod: str) -> str:
        return self._uids.get((namespace, pod), "") if self._pod_uid else ""

    def without_pods(self, gpu: Gpu, instance: MigInstance | None = None) -> list[LabelValues]:
        return list(self._with(gpu, instance, _NO_POD))

    def by_pod(self, gpu: Gpu, instance: MigInstance | None = None) -> Iterator[tuple[PodName, LabelValues]]:
        """For values of a single pod: its namespace and name, and the labels of its series, including its UID."""
        for holder in self._pods.get(_place(gpu, instance), ()):
            name = (holder.namespace, holder.pod)
            part = _PodPart(holder.container, holder.namespace, holder.pod, self._uids.get(name, ""), _vgpu(holder))
            for labels in self._with(gpu, instance, part):
                yield name, labels

    def _with(self, gpu: Gpu, instance: MigInstance | None, pod: _PodPart) -> Iterator[LabelValues]:
        identity = gpu.identity
        base = (
            str(identity.index),
            identity.uuid,
            identity.pci_bus_id,
            identity.device,
            "-".join(identity.name.split()) if self._dashes else identity.name,
            "" if instance is None else instance.gpu_instance_profile,
            "" if instance is None else str(instance.gpu_instance_id),
            *self._hostnames,
            self._driver_version,
            *pod,
        )
        for job in self._jobs.ids(identity.index, _instance_id(instance)) or ("",):
            yield (*base, job)


def _instance_id(instance: MigInstance | None) -> int | None:
    return None if instance is None else instance.gpu_instance_id


def _place(gpu: Gpu, instance: MigInstance | None) -> Place:
    return Place(gpu.identity.uuid, gpu.identity.index, _instance_id(instance))


def _vgpu(holder: PodLabels) -> str:
    return "" if holder.replica is None else str(holder.replica)


# Each pod's use of a shared GPU: the values that dcgm-exporter's virtual-GPU mode has per pod.
#
# They are the driver's values for the pod's processes. A pod without a process on the GPU uses 0; a pod for whose
# processes the driver has no value has no series.

_MEBIBYTE_SHIFT = 20


class PodUse(NamedTuple):
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
