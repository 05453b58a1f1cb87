"""Which pod holds a GPU, which lease a process belongs to, what memory goes with the shards of a job, and what labels
and annotations say. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from gpucommons.model.gpu import Gpu
from gpucommons.model.leases import LeasesReading
from gpucommons.model.ownership import Place
from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.snapshot import Readings
from gpucommons.model.workloads import DeviceId, PodDevicesReading

# What a label of a container or an annotation of a pod says. Pure.

_NO: Final = frozenset({"no", "false", "off", "0"})


def says_no(labels: Mapping[str, str], name: str) -> bool:
    return labels.get(name, "").strip().lower() in _NO


# The memory that goes with the shards of Slurm's jobs: the same part of the GPU as of its time. Pure.


class MemoryShare(NamedTuple):
    """Of one job on one GPU. `used_bytes` is what its processes hold there; those of unknown size are left out."""

    gpu_index: int
    bytes: int
    used_bytes: int

    @property
    def is_exceeded(self) -> bool:
        return self.used_bytes > self.bytes


def memory_shares(readings: Readings) -> Mapping[tuple[str, str], MemoryShare]:
    """Of each job with shards, by job and UUID of the GPU. A job with whole GPUs has none."""
    if readings.job_mapping is None or readings.gpus is None:
        return {}
    totals = {gpu.identity.index: (gpu.identity.uuid, gpu.readings.memory_total_bytes) for gpu in readings.gpus.gpus}
    used: dict[tuple[str, str], int] = {}
    for process in () if readings.attribution is None else readings.attribution.processes:
        # A user may name cgroups of their own like jobs.
        if process.workload.job and not process.workload.delegated and process.memory is not None:
            place = process.workload.job, process.place.gpu_uuid
            used[place] = used.get(place, 0) + process.memory.amount
    shares = {}
    for (index, _), jobs in readings.job_mapping.jobs.items():
        uuid, total = totals.get(index, ("", None))
        for job in jobs:
            if job.share < 1 and total is not None:
                shares[job.id, uuid] = MemoryShare(index, int(job.share * total), used.get((job.id, uuid), 0))
    return shares


# Which pods hold which GPU, as the kubelet reports it: the labels that dcgm-exporter sets. Pure.


class PodLabels(NamedTuple):
    """`replica` is the number of the share where one device is shared by time-slicing or MPS."""

    pod: str
    namespace: str
    container: str
    replica: int | None = None


def pods_by_place(gpus: tuple[Gpu, ...], devices: PodDevicesReading) -> Mapping[Place, tuple[PodLabels, ...]]:
    """The pods that hold each GPU or MIG GPU instance. A shared GPU has several."""
    finder = _Finder(gpus)
    by_place: dict[Place, dict[PodLabels, None]] = {}
    for given in devices.allocated:
        for device in given.devices:
            if place := finder.place(device):
                labels = PodLabels(given.pod, given.namespace, given.container, device.replica)
                by_place.setdefault(place, {})[labels] = None
    return {place: tuple(labels) for place, labels in by_place.items()}


def replicas_by_gpu(gpus: tuple[Gpu, ...], devices: PodDevicesReading) -> Mapping[str, int]:
    """The number of shares of each shared GPU, by GPU UUID."""
    finder = _Finder(gpus)
    shares: dict[str, set[str]] = {}
    for ids in (devices.allocatable or {}).values():
        for device in ids:
            place = finder.place(device)
            if place is not None and place.gpu_instance_id is None and device.replica is not None:
                shares.setdefault(place.gpu_uuid, set()).add(device.raw)
    return {uuid: len(ids) for uuid, ids in shares.items()}


class _Finder:
    """Finds the GPU of a device id, by UUID or by number."""

    def __init__(self, gpus: tuple[Gpu, ...]) -> None:
        self._by_uuid = {gpu.identity.uuid: gpu for gpu in gpus}
        # "nvidia0" contains the number of the device file, which is not always the index.
        self._by_number = {
            gpu.identity.index if gpu.identity.minor is None else gpu.identity.minor: gpu for gpu in gpus
        }
        self._by_mig_uuid = {instance.uuid: (gpu, instance) for gpu in gpus for instance in gpu.mig}

    def place(self, device: DeviceId) -> Place | None:
        if device.mig_uuid is not None and (mig := self._by_mig_uuid.get(device.mig_uuid)):
            gpu, instance = mig
            return Place(gpu.identity.uuid, gpu.identity.index, instance.gpu_instance_id)
        if device.gpu_uuid is not None:
            named = self._by_uuid.get(device.gpu_uuid)
        elif device.gpu_index is not None:
            named = self._by_number.get(device.gpu_index)
        else:
            named = None
        return Place(named.identity.uuid, named.identity.index, device.gpu_instance) if named else None


# Which lease a process belongs to: that of the `gpucommons run` from which it descends. Pure.


def leases_of_processes(readings: Readings) -> Mapping[ProcessKey, str]:
    """The id of the lease of each process on a GPU that descends from the client of a lease."""
    leases, contexts = readings.leases, readings.process_contexts
    if leases is None or not leases.clients or not contexts:
        return {}
    by_client = leases_by_client(leases)
    lease_ids = ((key, lease_of_ancestors(context.ancestors, by_client)) for key, context in contexts.items())
    return {key: id for key, id in lease_ids if id is not None}


def leases_by_client(leases: LeasesReading) -> Mapping[ProcessKey, str]:
    return {client: id for id, client in leases.clients.items()}


def lease_of_ancestors(ancestors: Iterable[ProcessKey], by_client: Mapping[ProcessKey, str]) -> str | None:
    """Of several, one run by another, that of the innermost."""
    return next((by_client[ancestor] for ancestor in ancestors if ancestor in by_client), None)
