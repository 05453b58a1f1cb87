"""What the ledger counts, as whole numbers that add up exactly and fit SQLite's 64 bits for centuries."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from gpucommons.model.usage import Account, Slot

NS = 1_000_000_000
MINUTE_S = 60


class Amounts(NamedTuple):
    """What one account was billed for one slot. held = active + idle + what could not be judged."""

    held_ns: int = 0
    active_ns: int = 0
    idle_ns: int = 0
    equivalent_ns: int = 0
    sm_ns: int = 0
    memory_kib_s: int = 0
    energy_uj: int = 0

    def plus(self, other: Self) -> "Amounts":
        return Amounts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


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


class Gap(NamedTuple):
    """Time that was not seen and is billed to nobody. No slot: the whole node was not."""

    wall_s: int
    slot_uuid: str
    reason: str
    ns: int


UsageKey = tuple[int, Slot, Account]
TimeKey = tuple[int, Slot]


@dataclass(frozen=True, slots=True)
class Batch:
    """What happened since the last batch. The keys begin with the minute, in Unix time over 60."""

    usage: dict[UsageKey, Amounts]
    slot_time: dict[TimeKey, SlotTime]
    gaps: tuple[Gap, ...] = ()
    seconds: float = 0.0

    @property
    def is_empty(self) -> bool:
        return not (self.usage or self.slot_time or self.gaps)

    def merged(self, later: Self) -> "Batch":
        """Both as one: a backlog then grows by the minute and not by the flush."""
        usage, slot_time = dict(self.usage), dict(self.slot_time)
        for key, amounts in later.usage.items():
            usage[key] = usage[key].plus(amounts) if key in usage else amounts
        for place, time in later.slot_time.items():
            slot_time[place] = slot_time[place].plus(time) if place in slot_time else time
        return Batch(usage, slot_time, self.gaps + later.gaps, self.seconds + later.seconds)
