"""Which room leases wait for and were promised, from a snapshot."""

from dataclasses import replace

from gpucommons.agent.sharing.lease_room import lease_claims
from gpucommons.model.allocations import (
    Account,
    Allocation,
    AllocationReading,
    AllocationState,
    Slot,
    SlotInfo,
    WorkloadKind,
)
from gpucommons.model.leases import Lease, LeaseRequest, LeasesReading, LeaseWait, WaitCause
from gpucommons.model.sharing import IDLE, TURN, ParkedReading, ParkingReading
from gpucommons.model.snapshot import Readings
from gpucommons.scheduler.parking.values import RoomNeed
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.lab_sharing import LabSharing

SLOTS = [Slot(uuid, uuid, uuid) for uuid in ("GPU-a", "GPU-b", "GPU-c")]
BOB = Account(kind="user", owner="bob", id="1001", user="bob")
NOTEBOOK = Allocation(
    BOB, WorkloadKind.PROCESS, "python", "bob", SLOTS[0], "", 10**9, AllocationState.RUNNING, "process", managed=False
)
GIVEN = NOTEBOOK._replace(kind=WorkloadKind.CONTAINER, slot=SLOTS[1], managed=True)
REQUEST = LeaseRequest(1000, "alice", 90.0, id="l1", number=1)
SHARING = LabSharing(LabGpus(1.7e9)).at(0.0)
BUSY = LeaseWait(1, WaitCause.BUSY)


def readings(*waiting: tuple[LeaseRequest, LeaseWait], leases: tuple[Lease, ...] = ()) -> Readings:
    slots = tuple(SlotInfo(slot, number) for number, slot in enumerate(SLOTS))
    return Readings(
        leases=LeasesReading(leases=leases, waiting=waiting),
        allocations=AllocationReading(slots, (NOTEBOOK, GIVEN), (), (), True),
    )


def _needs(given: Readings, wall_s: float, now_s: float) -> tuple[RoomNeed, ...]:
    return lease_claims(given, 2, wall_s, now_s).needs


def test_a_request_that_waits_for_a_gpu_needs_one_that_programs_alone_hold() -> None:
    found = _needs(readings((REQUEST, BUSY)), 100.0, 1000.0)
    assert found == (RoomNeed(("GPU-a", "GPU-c"), None, 990.0, 1, "l1"),)


def test_a_request_that_shares_needs_its_memory() -> None:
    shares = replace(REQUEST, share=True, memory_bytes=5)
    held = Lease(replace(REQUEST, id="l0"), ("GPU-c",), 1.0, 50.0)
    assert _needs(readings((shares, BUSY), leases=(held,)), 100.0, 1000.0) == (RoomNeed(("GPU-a",), 5, 990.0, 1, "l1"),)
    assert _needs(readings((replace(shares, memory_bytes=None), BUSY)), 100.0, 1000.0) == ()


def test_a_request_that_waits_for_another_reason_needs_no_room() -> None:
    assert _needs(readings((REQUEST, LeaseWait(1, WaitCause.QUOTA))), 100.0, 1000.0) == ()
    assert _needs(Readings(), 100.0, 1000.0) == ()


def test_a_gpu_with_as_many_leases_as_may_share_it_is_not_waited_for() -> None:
    shares = replace(REQUEST, share=True, memory_bytes=5)
    leases = tuple(Lease(replace(shares, id=f"l{n}"), ("GPU-a",), 1.0, 50.0) for n in (7, 8))
    assert _needs(readings((shares, BUSY), leases=leases), 100.0, 1000.0) == (
        RoomNeed(("GPU-c",), 5, 990.0, 1, "l1", {"GPU-a": 10}),
    )
    assert _needs(readings((shares, BUSY), leases=leases[:1]), 100.0, 1000.0) == (
        RoomNeed(("GPU-a", "GPU-c"), 5, 990.0, 1, "l1", {"GPU-a": 5}),
    )


def test_what_leases_declared_is_kept_from_a_request_however_long_ago() -> None:
    shares = replace(REQUEST, share=True, memory_bytes=50)
    leases = tuple(Lease(replace(shares, id=id), ("GPU-a",), 1.0, 90.0) for id in ("l7", "l8"))
    for wall_s in (100.0, 10_000.0):
        claims = lease_claims(readings((replace(shares, memory_bytes=5), BUSY), leases=leases), 4, wall_s, wall_s)
        assert [need.kept for need in claims.needs] == [{"GPU-a": 100}]


def test_what_a_new_lease_does_not_use_yet_is_promised() -> None:
    shares = replace(REQUEST, share=True, memory_bytes=50)
    leases = tuple(Lease(replace(shares, id=id), ("GPU-a",), 1.0, 90.0) for id in ("l7", "l8"))
    uses = NOTEBOOK._replace(kind=WorkloadKind.LEASE, account=BOB._replace(job="lease-l7"), memory_bytes=45)
    given = readings(leases=leases)
    assert given.allocations is not None
    given = given._replace(allocations=given.allocations._replace(allocations=(uses,)))
    assert lease_claims(given, 4, 100.0, 1000.0).promised == {"GPU-a": 55}
    assert lease_claims(given, 4, 1000.0, 1000.0).promised == {}, "it had its time to take it"
    turn = ParkedReading("lease:l8@1001", "a", "bob", 1001, "parked", "GPU-a", (1,), 50, 50, 0.0, TURN)
    parked = given._replace(sharing=SHARING._replace(parking=ParkingReading(programs=(turn,))))
    assert lease_claims(parked, 4, 100.0, 1000.0).promised == {"GPU-a": 5}
    other = given._replace(
        sharing=SHARING._replace(parking=ParkingReading(programs=(turn._replace(key="unit:a@1001"),)))
    )
    assert lease_claims(other, 4, 100.0, 1000.0).promised == {"GPU-a": 55}, "a program without a lease"
    idle = given._replace(sharing=SHARING._replace(parking=ParkingReading(programs=(turn._replace(cause=IDLE),))))
    assert lease_claims(idle, 4, 100.0, 1000.0).promised == {"GPU-a": 5}
