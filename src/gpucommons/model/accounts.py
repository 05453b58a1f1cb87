"""The ledger and its accounts at an instant: what each owner and job was billed, and what that costs."""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import NamedTuple, Self

from gpucommons.model.allocations import Account, Slot
from gpucommons.model.words import By

# What a GPU-hour and a kilowatt-hour cost, and how much CO2 a kilowatt-hour causes. What is not set is not shown.
#
# Numbers are integers, in billionths, so that sums are exact.

BILLION = 10**9


class Prices(NamedTuple):
    """`per_gpu_hour` has shell patterns of GPU models with their prices; the first that matches decides.

    None is not set.
    """

    per_gpu_hour: tuple[tuple[str, int], ...] = ()
    per_kwh: int | None = None
    currency: str = ""
    co2_g_per_kwh: int | None = None


class Charge(NamedTuple):
    """What the held time of some slots costs. `amount` is the price of an hour times nanoseconds.

    `unpriced_ns` is held time without a price: no pattern matches the GPU's model, or the driver does not report
    which part of its GPU a MIG device is.
    """

    amount: int = 0
    priced_ns: int = 0
    unpriced_ns: int = 0

    def plus(self, other: Self) -> "Charge":
        return Charge(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


NO_PRICES = Prices()
NO_CHARGE = Charge()


# The ledger and its accounts at an instant: what each owner was billed, and the state of the ledger file.
#
# Amounts are integers. Their sums are exact and fit 64 bits for centuries. A face converts a sum once, when it prints
# it.


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


NOTHING = Amounts()


def sum_amounts(rows: Iterable[Amounts]) -> Amounts:
    return Amounts(*map(sum, zip(*rows, strict=True)))


class SlotTime(NamedTuple):
    """How the time of one slot was spent. `unknown_ns`: not known to be held, while a source of holders was down."""

    held_ns: int = 0
    free_ns: int = 0
    unknown_ns: int = 0

    def plus(self, other: Self) -> "SlotTime":
        return SlotTime(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class OwnerKey(NamedTuple):
    """The identity of an owner's counters: the first three fields of an Account."""

    kind: str
    owner: str
    namespace: str


class LedgerState(NamedTuple):
    """`begun`: the node has slots to keep accounts of. `writing`: the last flush reached the disk.
    `durable`: the published counters survive a crash.

    `backlog_s` is usage in memory that is not written yet, `lost_s` usage that was dropped after an hour of waiting.
    `disk_free_bytes` is what the agent may still write on the file system of the ledger.
    """

    begun: bool = False
    writing: bool = False
    durable: bool = False
    detail: str = "not opened yet"
    failures: Mapping[str, int] = {}
    last_flush_wall_s: float | None = None
    backlog_s: float = 0.0
    lost_s: float = 0.0
    gap_ns: Mapping[str, int] = {}
    file_bytes: int | None = None
    disk_free_bytes: int | None = None


class HoldingQuota(NamedTuple):
    """The maximum of GPU-equivalents that one user may hold at a time."""

    gpu_equivalents: float


class LedgerReading(NamedTuple):
    """The state of the ledger and the counters of recent owners; `totals` is None until the ledger was read.

    `hidden_over_quota`: users over their quota that the viewer may not see. They count, without their names.
    """

    ledger: LedgerState
    totals: Mapping[OwnerKey, Amounts] | None
    quotas: Mapping[str, HoldingQuota] = {}
    event_log_writing: bool = True
    hidden_over_quota: int = 0


PERIODS = ("today", "7d", "30d")


class PeriodAccounts(NamedTuple):
    """What was billed in [since_s, until_s), one row for each name. `slot_time` is set for rows by GPU only.

    `charges` has what the rows cost at `prices`; a row that is not in it has no held time.
    """

    by: By
    since_s: int
    until_s: int
    rows: Mapping[str, Amounts]
    slot_time: Mapping[str, SlotTime] | None = None
    gap_ns: Mapping[str, int] = {}
    charges: Mapping[str, Charge] = {}
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


class Billed(NamedTuple):
    """What was billed under one name, and what it costs."""

    amounts: Amounts = NOTHING
    charge: Charge = NO_CHARGE

    def plus(self, other: Self) -> "Billed":
        return Billed(self.amounts.plus(other.amounts), self.charge.plus(other.charge))


class MonthKey(NamedTuple):
    """`month` is a calendar month of the node's time zone, as 2026-11; `user` the name that is billed. A group may be
    empty.
    """

    month: str
    user: str
    group: str


class AccountsReading(NamedTuple):
    """`by_period` is by user, for each of PERIODS. `held_today_ns` divides today's held time by owner and GPU.

    `months` has what was billed in this month, and in the first week of a month also that of the last one, at
    `prices`: the sums that a fleet is made of.
    """

    by_period: Mapping[str, PeriodAccounts] = {}
    held_today_ns: Mapping[HeldKey, int] = {}
    months: Mapping[MonthKey, Billed] = {}
    prices: Prices = NO_PRICES


# One job in the ledger: what was billed to it, and what else is known of it.
#
# A job is a Slurm job, a lease or a pod.


class JobFigures(NamedTuple):
    """What is known of one job besides its amounts. None is not known.

    `peak_kib` is the highest memory on one slot at one sample. The idle time of which it is known what the job's
    processes did is `idle_seen_ns`; in `idle_cpu_ns` of it one of them kept a CPU core busy, in `idle_disk_ns` none
    did and one waited for a disk. `waited_ms` and `asked_kib` are those of a lease: its time in the queue, and the
    memory of each slot that it asked for.
    """

    first_s: int
    last_s: int
    peak_kib: int | None = None
    idle_seen_ns: int = 0
    idle_cpu_ns: int = 0
    idle_disk_ns: int = 0
    waited_ms: int | None = None
    asked_kib: int | None = None

    def merge(self, later: Self) -> "JobFigures":
        return JobFigures(
            min(self.first_s, later.first_s),
            max(self.last_s, later.last_s),
            max((peak for peak in (self.peak_kib, later.peak_kib) if peak is not None), default=None),
            self.idle_seen_ns + later.idle_seen_ns,
            self.idle_cpu_ns + later.idle_cpu_ns,
            self.idle_disk_ns + later.idle_disk_ns,
            self.waited_ms if self.waited_ms is not None else later.waited_ms,
            self.asked_kib if self.asked_kib is not None else later.asked_kib,
        )


class JobUsage(NamedTuple):
    """All that was billed under the name of one job. `figures` is None where only an older release has billed it.

    `models` are the names of the GPUs' models, by the GPU's UUID.
    """

    name: str
    usage: Mapping[tuple[Slot, Account], Amounts]
    figures: JobFigures | None = None
    models: Mapping[str, str] = {}
