"""Which room on GPUs leases wait for, which parking could make, and which they were promised. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpucommons.agent.lease_memory import LeaseMemory, memory_of_leases
from gpucommons.leases.policy.values import KeptRoom
from gpucommons.model.allocations import Access, Allocation, AllocationReading, WorkloadKind
from gpucommons.model.leases import Lease, LeasesReading, WaitCause
from gpucommons.model.parking import ParkingReading
from gpucommons.model.snapshot import Readings
from gpucommons.scheduler.parking.values import RoomClaims, RoomNeed

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
        _unused([lease for lease in leases.leases if wall_s - lease.since_s < _PROMISED_S], memory),
    )


def rooms_kept(parking: ParkingReading | None) -> Mapping[str, Sequence[KeptRoom]]:
    """The memory of each GPU that parked programs are about to take."""
    found: dict[str, list[KeptRoom]] = {}
    for program in () if parking is None else parking.programs:
        if program.comes_after is not None:
            found.setdefault(program.gpu_uuid, []).append(KeptRoom(program.gpu_bytes, program.comes_after))
    return found


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
    kept = _unused(leases.leases, memory)
    for request, wait in leases.waiting:
        if wait.cause is not WaitCause.BUSY or (request.share and not request.memory_bytes):
            continue
        closed = exclusive | crowded if request.share else leased.keys()
        devices = tuple(uuid for uuid in usable if uuid not in closed)
        since_s = now_s - max(0.0, wall_s - request.arrived_s)
        amount = request.memory_bytes if request.share else None
        yield RoomNeed(devices, amount, since_s, request.gpus, request.id, kept)


def _unused(leases: Iterable[Lease], memory: LeaseMemory) -> Mapping[str, int]:
    """What leases declared, less what they use or have parked."""
    found: Counter[str] = Counter()
    for lease in leases:
        for uuid in lease.slots:
            found[uuid] += memory.unused(lease.request, uuid)
    return {uuid: amount for uuid, amount in found.items() if amount > 0}


def _usable(reading: AllocationReading) -> Iterator[str]:
    """Slots that only programs hold. What a container or job was given stays its own while it is idle."""
    given = {each.slot.uuid for each in reading.allocations if _stays(each)}
    yield from (info.slot.uuid for info in reading.slots if not info.is_rest and info.slot.uuid not in given)


def _stays(allocation: Allocation) -> bool:
    if allocation.kind is WorkloadKind.LEASE or allocation.is_access_only:
        return False
    return allocation.managed or (allocation.kind is not WorkloadKind.PROCESS and allocation.access is not Access.ALL)
