"""The usage of a snapshot: allocations of one account are one holding, what was not read is a gap."""

from gpucommons.ledger.integrate import usage_of
from gpucommons.model.allocations import (
    WHOLE_SHARE,
    Account,
    Allocation,
    AllocationReading,
    AllocationState,
    Holding,
    IdleCause,
    JobRequest,
    Slot,
    SlotInfo,
    SlotUsage,
    WorkloadKind,
)
from gpucommons.model.leases import Lease, LeaseRequest, LeasesReading
from gpucommons.model.process_identity import ProcessKey, ProcessTable, TreeActivity
from gpucommons.model.snapshot import Readings, Snapshot
from ledger.builders import ALICE, BOB, GPU

HALF = WHOLE_SHARE // 2


def allocation(
    account: Account, share: int, active: bool | None = True, slot: Slot = GPU, sm: int | None = 5
) -> Allocation:
    state = AllocationState.ACTIVE if active else AllocationState.RUNNING
    return Allocation(
        account, WorkloadKind.CONTAINER, "c", account.owner, slot, "", share, state, "docker", True,
        active=active, sm=sm, memory_bytes=7, milliwatts=3,
    )  # fmt: skip


def sampled(*allocations: Allocation, complete: bool = True) -> tuple[SlotUsage, ...]:
    rest = SlotInfo(Slot("GPU-1", "GPU-1", "1", 2, 7), 1, is_rest=True)
    reading = AllocationReading((SlotInfo(GPU, 0), rest), allocations, complete=complete)
    sample = usage_of(Snapshot(0, 12.5, 99.0, "host", readings=Readings(allocations=reading)))
    assert (sample.monotonic_ns, sample.wall_s) == (12_500_000_000, 99.0)
    return sample.slots


def test_one_holding_for_each_account() -> None:
    usage, rest = sampled(allocation(ALICE, HALF), allocation(BOB, HALF, False), allocation(BOB, 0))
    assert usage.holdings == (Holding(ALICE, HALF, True, 5, 7, 3), Holding(BOB, HALF, False, 5, 7, 3))
    assert rest.holdings == ()


def test_several_workloads_of_one_account_are_added_up() -> None:
    (usage, _) = sampled(allocation(ALICE, HALF, None, sm=None), allocation(ALICE, HALF, False))
    assert usage.holdings == (Holding(ALICE, WHOLE_SHARE, None, 5, 14, 6),), "one unknown: not known to be idle"
    (usage, _) = sampled(allocation(ALICE, HALF, None, sm=None), allocation(ALICE, HALF, True, sm=None))
    assert usage.holdings == (Holding(ALICE, WHOLE_SHARE, True, None, 14, 6),)
    (usage, _) = sampled(allocation(ALICE, HALF, False), allocation(ALICE, HALF, False))
    assert usage.holdings == (Holding(ALICE, WHOLE_SHARE, False, 10, 14, 6),)


def test_with_an_incomplete_list_free_time_is_unknown() -> None:
    usage, rest = sampled(allocation(ALICE, HALF), complete=False)
    assert not usage.holders_known
    assert rest.holders_known, "the part without a MIG device cannot be held"


def test_a_slot_that_the_driver_does_not_know_is_not_billed() -> None:
    (usage, _) = sampled(allocation(ALICE, WHOLE_SHARE, slot=Slot("GPU-77", "", "GPU-77", None)))
    assert usage.holdings == ()


def test_why_a_job_is_idle() -> None:
    lease = ALICE._replace(job="lease-7")
    request = LeaseRequest(1001, "alice", 100.0, id="7", number=7, memory_bytes=2 * 2**30)
    leases = LeasesReading(leases=(Lease(request, (GPU.uuid,), 1.0, 102.5),), clients={"7": ProcessKey(50, 1)})

    def cause(trees: TreeActivity | None, *rows: Allocation) -> IdleCause | None:
        table = ProcessTable({}, (), trees)
        reading = AllocationReading((SlotInfo(GPU, 0),), rows)
        readings = Readings(allocations=reading, processes=table, leases=leases)
        sample = usage_of(Snapshot(0, 1.0, 2.0, "host", readings=readings))
        assert sample.requests == {"lease-7": JobRequest(2500, 2 * 2**20)}
        (holding,) = sample.slots[0].holdings
        return holding.idle_cause

    idle = allocation(lease, WHOLE_SHARE, False)._replace(processes=(ProcessKey(60, 1), ProcessKey(61, 1)))
    nothing: frozenset[int] = frozenset()
    assert cause(None, idle) is None
    assert cause(TreeActivity(nothing, nothing), idle) is IdleCause.NEITHER
    assert cause(TreeActivity(frozenset({61}), frozenset({60})), idle) is IdleCause.CPU
    assert cause(TreeActivity(nothing, frozenset({60})), idle) is IdleCause.DISK
    assert cause(TreeActivity(frozenset({50}), nothing), idle) is IdleCause.CPU, "what run has started"
    assert cause(TreeActivity(frozenset({99}), nothing), idle) is IdleCause.NEITHER, "another program"
    assert cause(TreeActivity(frozenset({61}), nothing), idle._replace(active=True)) is None
    pod = allocation(ALICE._replace(pod="train-0"), WHOLE_SHARE, False)._replace(processes=(ProcessKey(61, 1),))
    assert cause(TreeActivity(frozenset({61}), nothing), pod) is IdleCause.CPU
    halves = [idle._replace(share=HALF, processes=(ProcessKey(pid, 1),)) for pid in (60, 61)]
    assert cause(TreeActivity(frozenset({61}), frozenset({60})), *halves) is IdleCause.CPU, "CPU comes first"
    plain = allocation(ALICE, WHOLE_SHARE, False)._replace(processes=(ProcessKey(61, 1),))
    assert cause(TreeActivity(frozenset({61}), nothing), plain) is None, "no job"
    slurm = allocation(ALICE._replace(job="4711"), WHOLE_SHARE, False)
    assert cause(TreeActivity(frozenset({61}), nothing), slurm) is None, "no process is known"


def test_a_snapshot_without_readings_has_no_slots() -> None:
    assert usage_of(Snapshot(0, 1.0, 2.0, "host")).slots == ()
