"""Which leases wait for room on GPUs that parking could make. Pure."""

from collections.abc import Iterator

from gpucommons.model.allocations import Access, Allocation, AllocationReading, WorkloadKind
from gpucommons.model.leases import WaitCause
from gpucommons.model.snapshot import Readings
from gpucommons.parking.values import RoomNeed


def lease_needs(readings: Readings, wall_s: float, now_s: float) -> tuple[RoomNeed, ...]:
    """One for each request that waits because every GPU is in use. `now_s` is the monotonic time at `wall_s`.

    A request for GPUs of its own needs them empty; one that shares needs the memory that it declares.
    """
    leases, allocations = readings.leases, readings.allocations
    if leases is None or allocations is None:
        return ()
    exclusive = {slot for lease in leases.leases if not lease.request.share for slot in lease.slots}
    leased = {slot for lease in leases.leases for slot in lease.slots}
    usable = tuple(_usable(allocations))
    found = []
    for request, wait in leases.waiting:
        if wait.cause is not WaitCause.BUSY or (request.share and not request.memory_bytes):
            continue
        devices = tuple(uuid for uuid in usable if uuid not in (exclusive if request.share else leased))
        since_s = now_s - max(0.0, wall_s - request.arrived_s)
        amount = request.memory_bytes if request.share else None
        found.append(RoomNeed(devices, amount, since_s, request.gpus))
    return tuple(found)


def _usable(reading: AllocationReading) -> Iterator[str]:
    """Slots that only programs hold. What a container or job was given stays its own while it is idle."""
    given = {each.slot.uuid for each in reading.allocations if _stays(each)}
    yield from (info.slot.uuid for info in reading.slots if not info.is_rest and info.slot.uuid not in given)


def _stays(allocation: Allocation) -> bool:
    if allocation.kind is WorkloadKind.LEASE or allocation.is_access_only:
        return False
    return allocation.managed or (allocation.kind is not WorkloadKind.PROCESS and allocation.access is not Access.ALL)
