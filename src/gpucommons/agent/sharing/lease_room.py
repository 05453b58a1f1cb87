"""Which room on GPUs leases wait for, which parking could make, and which they were promised. Pure.

It follows from the memory that the programs of each lease have on the slots, and in host memory while they are
parked.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from gpucommons.leases.policy.values import KeptRoom
from gpucommons.model.allocations import Access, Allocation, AllocationReading, SlotInfo, WorkloadKind
from gpucommons.model.gpu import Gpu, GpuProcess
from gpucommons.model.leases import Lease, LeaseRequest, LeasesReading, WaitCause
from gpucommons.model.names import job_of_lease
from gpucommons.model.sharing import ParkingReading
from gpucommons.model.snapshot import Readings
from gpucommons.model.words import SharingClass
from gpucommons.rules.placement import lease_of_ancestors, leases_by_client, leases_of_processes
from gpucommons.scheduler.parking.values import ParkStage, RoomClaims, RoomNeed
from gpucommons.scheduler.programs.jobs import lease_of_program

# The memory that the programs of each lease have on the slots, and in host memory while they are parked. Pure.

_NONE: Final[Mapping[str, int]] = {}


class LeaseMemory(NamedTuple):
    """Bytes by the UUID of the slot, and by the id of the lease."""

    used: Mapping[str, Mapping[str, int]]
    parked: Mapping[str, Mapping[str, int]]

    def used_bytes_on(self, slot_uuid: str) -> Mapping[str, int]:
        return self.used.get(slot_uuid, _NONE)

    def parked_bytes_for(self, slot_uuid: str) -> Mapping[str, int]:
        return self.parked.get(slot_uuid, _NONE)

    def unused_bytes(self, request: LeaseRequest, slot_uuid: str) -> int:
        """What is left of the memory that a lease declared."""
        has = self.used_bytes_on(slot_uuid).get(request.id, 0) + self.parked_bytes_for(slot_uuid).get(request.id, 0)
        return max(0, (request.memory_bytes or 0) - has)


def memory_of_leases(readings: Readings) -> LeaseMemory:
    leases, allocations, sharing = readings.leases, readings.allocations, readings.sharing
    if leases is None or allocations is None:
        return LeaseMemory({}, {})
    parking = None if sharing is None else sharing.parking
    used = _sum_by_slot((*_started_amounts(readings, allocations), *_billed_amounts(leases, allocations)))
    return LeaseMemory(used, _sum_by_slot(() if parking is None else _parked_amounts(parking, leases)))


def processes_on(info: SlotInfo, gpu: Gpu) -> list[GpuProcess]:
    """MIG devices of one GPU instance share their memory, and so their processes here."""
    instance_id = info.gpu_instance_id
    return [process for process in gpu.processes or () if process.gpu_instance_id == instance_id]


class _Amount(NamedTuple):
    slot_uuid: str
    lease: str
    bytes: int


def _sum_by_slot(amounts: Iterable[_Amount]) -> Mapping[str, Mapping[str, int]]:
    by_slot: dict[str, Counter[str]] = {}
    for amount in amounts:
        by_slot.setdefault(amount.slot_uuid, Counter())[amount.lease] += amount.bytes
    return by_slot


def _started_amounts(readings: Readings, allocations: AllocationReading) -> Iterator[_Amount]:
    """The programs that a lease has started. Others of its user are billed to it, but do not use its room."""
    lease_of = leases_of_processes(readings)
    gpus = () if readings.gpus is None or not lease_of else readings.gpus.present_gpus()
    by_uuid = {gpu.identity.uuid: gpu for gpu in gpus}
    for info in allocations.slots:
        gpu = by_uuid.get(info.slot.gpu_uuid)
        for process in () if gpu is None else processes_on(info, gpu):
            if process.key is not None and process.key in lease_of:
                yield _Amount(info.slot.uuid, lease_of[process.key], process.used_memory_bytes or 0)


def _billed_amounts(leases: LeasesReading, allocations: AllocationReading) -> Iterator[_Amount]:
    """What counts for a lease of which the client is not known, and so neither the programs that it has started."""
    ids = {job_of_lease(lease.request.id): lease.request.id for lease in leases.leases}
    for allocation in allocations.allocations:
        id = ids.get(allocation.account.job)
        if id is not None and id not in leases.clients:
            yield _Amount(allocation.slot.uuid, id, allocation.memory_bytes or 0)


def _parked_amounts(parking: ParkingReading, leases: LeasesReading) -> Iterator[_Amount]:
    """Whether it is idle or waits for its turn: others may have its room until it comes back."""
    by_client = leases_by_client(leases)
    for program in parking.programs:
        lease = lease_of_program(program.key) or lease_of_ancestors(program.ancestors, by_client)
        if lease is not None and program.stage == ParkStage.PARKED:
            yield _Amount(program.gpu_uuid, lease, program.gpu_bytes)


# A program takes its memory within this time. What it has not taken then a parked program may have, but no other lease.
_PROMISED_S = 300.0


def lease_claims(readings: Readings, share_limit: int, wall_s: float, now_s: float) -> RoomClaims:
    """`now_s` is the monotonic time at `wall_s`. `share_limit` leases share a GPU at most."""
    leases, allocations = readings.leases, readings.allocations
    if leases is None or allocations is None:
        return RoomClaims()
    memory = memory_of_leases(readings)
    return RoomClaims(
        tuple(_needs(leases, allocations, memory, share_limit, wall_s, now_s)),
        _unused_bytes([lease for lease in leases.leases if wall_s - lease.since_s < _PROMISED_S], memory),
    )


def list_kept_rooms(parking: ParkingReading | None) -> Mapping[str, Sequence[KeptRoom]]:
    """The memory of each GPU that parked programs are about to take."""
    by_gpu: dict[str, list[KeptRoom]] = {}
    for program in () if parking is None else parking.programs:
        if program.comes_after is not None:
            by_gpu.setdefault(program.gpu_uuid, []).append(KeptRoom(program.gpu_bytes, program.comes_after))
    return by_gpu


def _needs(
    leases: LeasesReading,
    allocations: AllocationReading,
    memory: LeaseMemory,
    share_limit: int,
    wall_s: float,
    now_s: float,
) -> Iterator[RoomNeed]:
    """One for each request that waits because every GPU is in use.

    A request for GPUs of its own needs them empty; one that shares needs the memory that it declares.
    """
    exclusive = {slot for lease in leases.leases if not lease.request.share for slot in lease.slots}
    leased = Counter(slot for lease in leases.leases for slot in lease.slots)
    crowded = {slot for slot, number in leased.items() if number >= share_limit}
    usable = tuple(_usable(allocations))
    kept = _unused_bytes(leases.leases, memory)
    for request, wait in leases.waiting:
        if wait.cause is not WaitCause.BUSY or (request.share and not request.memory_bytes):
            continue
        closed = exclusive | crowded if request.share else leased.keys()
        devices = tuple(uuid for uuid in usable if uuid not in closed)
        since_s = now_s - max(0.0, wall_s - request.arrived_s)
        amount = request.memory_bytes if request.share else None
        of_background = request.sharing_class == SharingClass.BACKGROUND
        yield RoomNeed(devices, amount, since_s, request.gpus, request.id, kept, of_background=of_background)


def _unused_bytes(leases: Iterable[Lease], memory: LeaseMemory) -> Mapping[str, int]:
    """What leases declared, less what they use or have parked."""
    unused: Counter[str] = Counter()
    for lease in leases:
        for uuid in lease.slots:
            unused[uuid] += memory.unused_bytes(lease.request, uuid)
    return {uuid: amount for uuid, amount in unused.items() if amount > 0}


def _usable(reading: AllocationReading) -> Iterator[str]:
    """Slots that only programs hold. What a container or job was given stays its own while it is idle."""
    given = {allocation.slot.uuid for allocation in reading.allocations if _stays(allocation)}
    yield from (info.slot.uuid for info in reading.slots if not info.is_rest and info.slot.uuid not in given)


def _stays(allocation: Allocation) -> bool:
    if allocation.kind is WorkloadKind.LEASE or allocation.is_access_only:
        return False
    return allocation.managed or (allocation.kind is not WorkloadKind.PROCESS and allocation.access is not Access.ALL)
