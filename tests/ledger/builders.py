"""Batches and samples for the tests of the ledger."""

from gpucommons.ledger.integrate import MINUTE_S, NS, Batch, Moment
from gpucommons.model.accounts import Amounts, SlotTime
from gpucommons.model.allocations import WHOLE_SHARE, Account, Holding, Slot, SlotUsage, UsageSample

WALL_S = 1_800_000_000.0
ALICE = Account("user", "alice", user="alice", group="lab")
BOB = Account("user", "bob", user="bob", group="lab")
GPU = Slot("GPU-0", "GPU-0", "0")
MIG = Slot("MIG-0", "GPU-1", "1.0", 3, 7)


def batch(seconds: int = 10, account: Account = ALICE, wall_s: float = WALL_S, slot: Slot = GPU) -> Batch:
    ns, minute = seconds * NS, int(wall_s // MINUTE_S)
    return Batch(
        {(minute, slot, account): Amounts(ns, ns, 0, ns, ns // 2, seconds << 20, seconds * 300_000_000)},
        {(minute, slot): SlotTime(ns, 0, 0)},
        seconds=float(seconds),
    )


def moment(after_s: float, wall_s: float | None = None) -> Moment:
    return Moment(round((1000 + after_s) * NS), WALL_S + after_s if wall_s is None else wall_s)


def sample(after_s: float, *accounts: Account) -> UsageSample:
    """One GPU, shared by these accounts, all of them active."""
    now = moment(after_s)
    holdings = tuple(Holding(a, WHOLE_SHARE // len(accounts), True, 100_000, 1 << 30, 100_000) for a in accounts)
    return UsageSample(now.monotonic_ns, now.wall_s, (SlotUsage(GPU, holdings),))
