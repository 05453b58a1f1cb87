"""The accounts at an instant: what each owner was ever billed, and how the ledger that keeps it is doing.

Amounts are whole numbers that add up exactly and fit a database's 64 bits for centuries.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self


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

    def plus(self, other: Self) -> "Amounts":
        return Amounts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def at_least(self, other: Self) -> "Amounts":
        """The greater of each: a counter that was served never goes back."""
        return Amounts(*map(max, self, other))


class SlotTime(NamedTuple):
    """Where the time of one slot went. `unknown_ns` is what nobody held as far as could be asked."""

    held_ns: int = 0
    free_ns: int = 0
    unknown_ns: int = 0

    @property
    def elapsed_ns(self) -> int:
        return self.held_ns + self.free_ns + self.unknown_ns

    def plus(self, other: Self) -> "SlotTime":
        return SlotTime(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class OwnerKey(NamedTuple):
    """Whose counters: the first three of an Account."""

    kind: str
    owner: str
    namespace: str


@dataclass(frozen=True, slots=True)
class LedgerState:
    """`begun`: there is something to keep accounts of. `writing`: the last flush reached the disk.
    `durable`: what is served survives a crash.

    `backlog_s` is usage that waits in memory for the disk, `lost_s` what waited for longer than an hour.
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
    set_aside: str = ""


@dataclass(frozen=True, slots=True)
class HoldingQuota:
    """The most GPU-equivalents that one user may hold at a time."""

    gpu_equivalents: float


@dataclass(frozen=True, slots=True)
class LedgerReading:
    """`totals` are of the owners seen lately; None until the ledger has told what there was before."""

    ledger: LedgerState
    totals: Mapping[OwnerKey, Amounts] | None
    quotas: Mapping[str, HoldingQuota] = field(default_factory=dict)
    event_log_writing: bool = True


PERIODS = ("today", "7d", "30d")


class StatementRow(NamedTuple):
    """One user. held = active + idle + what could not be judged; the energy is None where none was measured."""

    user: str
    held_gpu_s: float
    active_gpu_s: float
    idle_gpu_s: float
    energy_joules: float | None = None


@dataclass(frozen=True, slots=True)
class PeriodAccounts:
    since_wall_s: float
    rows: tuple[StatementRow, ...]


@dataclass(frozen=True, slots=True)
class AccountsReading:
    """By period, one of PERIODS; `owner_gpu_s_today` is by kind/id of the owner, for those who are there now."""

    by_period: dict[str, PeriodAccounts]
    owner_gpu_s_today: dict[str, float]
