"""Which room leases wait for, from a snapshot."""

from dataclasses import replace

from gpucommons.agent.lease_needs import lease_needs
from gpucommons.model.allocations import (
    Allocation,
    AllocationReading,
    AllocationState,
    SlotInfo,
    WorkloadKind,
)
from gpucommons.model.leases import Lease, LeaseRequest, LeasesReading, LeaseWait, WaitCause
from gpucommons.model.snapshot import Readings
from gpucommons.model.usage import Account, Slot
from gpucommons.parking.values import RoomNeed

SLOTS = [Slot(uuid, uuid, uuid) for uuid in ("GPU-a", "GPU-b", "GPU-c")]
BOB = Account(kind="user", owner="bob", id="1001", user="bob")
NOTEBOOK = Allocation(
    BOB, WorkloadKind.PROCESS, "python", "bob", SLOTS[0], "", 10**9, AllocationState.RUNNING, "process", managed=False
)
GIVEN = replace(NOTEBOOK, kind=WorkloadKind.CONTAINER, slot=SLOTS[1], managed=True)
REQUEST = LeaseRequest("l1", 1000, "alice", 1, 90.0)
BUSY = LeaseWait(1, WaitCause.BUSY)


def readings(*waiting: tuple[LeaseRequest, LeaseWait], leases: tuple[Lease, ...] = ()) -> Readings:
    slots = tuple(SlotInfo(slot, number) for number, slot in enumerate(SLOTS))
    return Readings(
        leases=LeasesReading(leases=leases, waiting=waiting),
        allocations=AllocationReading(slots, (NOTEBOOK, GIVEN), (), (), True),
    )


def test_a_request_that_waits_for_a_gpu_needs_one_that_programs_alone_hold() -> None:
    found = lease_needs(readings((REQUEST, BUSY)), 100.0, 1000.0)
    assert found == (RoomNeed(("GPU-a", "GPU-c"), None, 990.0, 1),)


def test_a_request_that_shares_needs_its_memory() -> None:
    shares = replace(REQUEST, share=True, memory_bytes=5)
    held = Lease(replace(REQUEST, id="l0"), ("GPU-c",), 1.0, 50.0)
    assert lease_needs(readings((shares, BUSY), leases=(held,)), 100.0, 1000.0) == (RoomNeed(("GPU-a",), 5, 990.0, 1),)
    assert lease_needs(readings((replace(shares, memory_bytes=None), BUSY)), 100.0, 1000.0) == ()


def test_a_request_that_waits_for_another_reason_needs_no_room() -> None:
    assert lease_needs(readings((REQUEST, LeaseWait(1, WaitCause.QUOTA))), 100.0, 1000.0) == ()
    assert lease_needs(Readings(), 100.0, 1000.0) == ()
