"""The ledger and its accounts at an instant: what each owner was billed, and the state of the ledger file.

Amounts are integers. Their sums are exact and fit 64 bits for centuries. A face converts a sum once, when it prints it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from typing import NamedTuple, Self

from gpucommons.model.prices import NO_CHARGE, NO_PRICES, Charge, Prices


class Amounts(NamedTuple):
    """What was billed. held = active + idle + what could not be judged.

    `held_ns` counts each slot, whole GPU or MIG device, as one; `equivalent_ns` weighs it by its slices.
    """

    held_ns: int = 0
    active_ns: int = 0
    idle_ns: int = 0
    equivalent_ns: int = 0
    sm_ns: int = 0
    memory_kib_s: int = 0
    energy_uj: int = 0

    @property
    def unjudged_ns(self) -> int:
        return self.held_ns - self.active_ns - self.idle_ns

    def plus(self, other: Self) -> "Amounts":
        return Amounts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def at_least(self, other: Self) -> "Amounts":
        """The maximum of each field, so that a published counter never decreases."""
        return Amounts(*map(max, self, other))


def sum_amounts(rows: Iterable[Amounts]) -> Amounts:
    return Amounts(*map(sum, zip(*rows, strict=True)))


class SlotTime(NamedTuple):
    """How the time of one slot was spent. `unknown_ns`: not known to be held, while a source of holders was down."""

    held_ns: int = 0
    free_ns: int = 0
    unknown_ns: int = 0

    @property
    def elapsed_ns(self) -> int:
        return self.held_ns + self.free_ns + self.unknown_ns

    def plus(self, other: Self) -> "SlotTime":
        return SlotTime(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class OwnerKey(NamedTuple):
    """The identity of an owner's counters: the first three fields of an Account."""

    kind: str
    owner: str
    namespace: str


@dataclass(frozen=True, slots=True)
class LedgerState:
    """`begun`: the node has slots to keep accounts of. `writing`: the last flush reached the disk.
    `durable`: the published counters survive a crash.

    `backlog_s` is usage in memory that is not written yet, `lost_s` usage that was dropped after an hour of waiting.
    `disk_free_bytes` is what the agent may still write on the file system of the ledger.
    """

    begun: bool = False
    writing: bool = False
    durable: bool = False
    detail: str = "not opened yet"
    failures: Mapping[str, int] = field(default_factory=dict)
    last_flush_wall_s: float | None = None
    backlog_s: float = 0.0
    lost_s: float = 0.0
    gap_ns: Mapping[str, int] = field(default_factory=dict)
    file_bytes: int | None = None
    disk_free_bytes: int | None = None


class HoldingQuota(NamedTuple):
    """The maximum of GPU-equivalents that one user may hold at a time."""

    gpu_equivalents: float


@dataclass(frozen=True, slots=True)
class LedgerReading:
    """The state of the ledger and the counters of recent owners; `totals` is None until the ledger was read."""

    ledger: LedgerState
    totals: Mapping[OwnerKey, Amounts] | None
    quotas: Mapping[str, HoldingQuota] = field(default_factory=dict)
    event_log_writing: bool = True


PERIODS = ("today", "7d", "30d")


class By(StrEnum):
    """What the rows of the accounts are. A day begins at midnight UTC, as in the ledger."""

    USER = "user"
    GROUP = "group"
    NAMESPACE = "namespace"
    POD = "pod"
    JOB = "job"
    DAY = "day"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class PeriodAccounts:
    """What was billed in [since_s, until_s), one row for each name. `slot_time` is set for rows by GPU only.

    `charges` has what the rows cost at `prices`; a row that is not in it has no held time.
    """

    by: By
    since_s: int
    until_s: int
    rows: Mapping[str, Amounts]
    slot_time: Mapping[str, SlotTime] | None = None
    gap_ns: Mapping[str, int] = field(default_factory=dict)
    charges: Mapping[str, Charge] = field(default_factory=dict)
    prices: Prices = NO_PRICES

    @property
    def total_charge(self) -> Charge:
        return reduce(Charge.plus, self.charges.values(), NO_CHARGE)

    @property
    def total(self) -> Amounts:
        return sum_amounts(self.rows.values()) if self.rows else Amounts()

    @property
    def total_time(self) -> SlotTime | None:
        if self.slot_time is None:
            return None
        return SlotTime(*map(sum, zip(*self.slot_time.values(), strict=True))) if self.slot_time else SlotTime()


class HeldKey(NamedTuple):
    """`account` is the account's name, as in the rows by user."""

    owner: OwnerKey
    account: str
    gpu_uuid: str


@dataclass(frozen=True, slots=True)
class AccountsReading:
    """`by_period` is by user, for each of PERIODS. `held_today_ns` divides today's held time by owner and GPU."""

    by_period: Mapping[str, PeriodAccounts] = field(default_factory=dict)
    held_today_ns: Mapping[HeldKey, int] = field(default_factory=dict)
