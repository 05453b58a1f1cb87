"""The memory that the programs of each lease have on the slots, and in host memory while they are parked. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from gpucommons.model.allocations import AllocationReading, SlotInfo
from gpucommons.model.gpu import Gpu, GpuProcess
from gpucommons.model.leases import LeaseRequest, LeasesReading
from gpucommons.model.parking import ParkingReading
from gpucommons.model.snapshot import Readings
from gpucommons.rules.identities import job_of_lease
from gpucommons.rules.placement import lease_of_ancestors, leases_by_client, leases_of_processes
from gpucommons.scheduler.parking.values import ParkStage
from gpucommons.scheduler.programs.jobs import lease_of_program

_NONE: Final[Mapping[str, int]] = {}


class LeaseMemory(NamedTuple):
    """Bytes by the UUID of the slot, and by the id of the lease."""

    used: Mapping[str, Mapping[str, int]]
    parked: Mapping[str, Mapping[str, int]]

    def used_on(self, slot_uuid: str) -> Mapping[str, int]:
        return self.used.get(slot_uuid, _NONE)

    def parked_for(self, slot_uuid: str) -> Mapping[str, int]:
        return self.parked.get(slot_uuid, _NONE)

    def unused(self, request: LeaseRequest, slot_uuid: str) -> int:
        """What is left of the memory that a lease declared."""
        has = self.used_on(slot_uuid).get(request.id, 0) + self.parked_for(slot_uuid).get(request.id, 0)
        return max(0, (request.memory_bytes or 0) - has)


def memory_of_leases(readings: Readings) -> LeaseMemory:
    leases, allocations, sharing = readings.leases, readings.allocations, readings.sharing
    if leases is None or allocations is None:
        return LeaseMemory({}, {})
    parking = None if sharing is None else sharing.parking
    used = _summed((*_started(readings, allocations), *_billed(leases, allocations)))
    return LeaseMemory(used, _summed(() if parking is None else _parked(parking, leases)))


def processes_on(info: SlotInfo, gpu: Gpu) -> Iterator[GpuProcess]:
    """MIG devices of one GPU instance share their memory, and so their processes here."""
    return (each for each in gpu.processes or () if each.gpu_instance_id == info.gpu_instance_id)


class _Amount(NamedTuple):
    slot_uuid: str
    lease: str
    bytes: int


def _summed(amounts: Iterable[_Amount]) -> Mapping[str, Mapping[str, int]]:
    found: dict[str, Counter[str]] = {}
    for each in amounts:
        found.setdefault(each.slot_uuid, Counter())[each.lease] += each.bytes
    return found


def _started(readings: Readings, allocations: AllocationReading) -> Iterator[_Amount]:
    """The programs that a lease has started. Others of its user are billed to it, but do not use its room."""
    lease_of = leases_of_processes(readings)
    gpus = () if readings.gpus is None or not lease_of else readings.gpus.present_gpus()
    by_uuid = {gpu.identity.uuid: gpu for gpu in gpus}
    for info in allocations.slots:
        gpu = by_uuid.get(info.slot.gpu_uuid)
        for process in () if gpu is None else processes_on(info, gpu):
            if process.key is not None and process.key in lease_of:
                yield _Amount(info.slot.uuid, lease_of[process.key], process.used_memory_bytes or 0)


def _billed(leases: LeasesReading, allocations: AllocationReading) -> Iterator[_Amount]:
    """What counts for a lease of which the client is not known, and so neither the programs that it has started."""
    ids = {job_of_lease(each.request.id): each.request.id for each in leases.leases}
    for each in allocations.allocations:
        id = ids.get(each.account.job)
        if id is not None and id not in leases.clients:
            yield _Amount(each.slot.uuid, id, each.memory_bytes or 0)


def _parked(parking: ParkingReading, leases: LeasesReading) -> Iterator[_Amount]:
    """Whether it is idle or waits for its turn: others may have its room until it comes back."""
    by_client = leases_by_client(leases)
    for program in parking.programs:
        lease = lease_of_program(program.key) or lease_of_ancestors(program.ancestors, by_client)
        if lease is not None and program.stage == ParkStage.PARKED:
            yield _Amount(program.gpu_uuid, lease, program.gpu_bytes)
