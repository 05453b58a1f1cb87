"""What is written at a flush, and the backlog of what could not be written yet. Pure."""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, Self

from gpucommons.model.accounts import Amounts, OwnerKey, SlotTime
from gpucommons.model.usage import Account, Slot

NS = 1_000_000_000
MINUTE_S = 60
NOT_WRITTEN = "not_written"


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
        usage, slot_time = dict(self.usage), dict(self.slot_time)
        for key, amounts in later.usage.items():
            usage[key] = usage[key].plus(amounts) if key in usage else amounts
        for place, time in later.slot_time.items():
            slot_time[place] = slot_time[place].plus(time) if place in slot_time else time
        return Batch(usage, slot_time, self.gaps + later.gaps, self.seconds + later.seconds)

    def by_owner(self) -> dict[OwnerKey, Amounts]:
        totals: dict[OwnerKey, Amounts] = {}
        for (_, _, account), amounts in self.usage.items():
            key = OwnerKey(account.kind, account.owner, account.namespace)
            known = totals.get(key)
            totals[key] = amounts if known is None else known.plus(amounts)
        return totals


class Moment(NamedTuple):
    """When a batch ended, by the clock that never steps and by the one that people read."""

    monotonic_ns: int
    wall_s: float


@dataclass(slots=True)
class PendingBatch:
    """A batch on its way to the disk. Once tried it has a number, and is never merged again.

    A write that failed may have reached the disk all the same: the number is how that is told later.
    """

    began_ns: int
    until: Moment
    batch: Batch
    number: int | None = None


class Backlog:
    """What waits for the disk, oldest first, merged by the minute; nothing older than `keep_s`."""

    def __init__(self, keep_s: float) -> None:
        self._keep_ns = round(keep_s * NS)
        self._entries: deque[PendingBatch] = deque()
        self._numbers = 0
        self.lost_s = 0.0

    @property
    def seconds(self) -> float:
        return sum(entry.batch.seconds for entry in self._entries)

    def add(self, batch: Batch, until: Moment) -> None:
        last = self._entries[-1] if self._entries else None
        if last and last.number is None and until.monotonic_ns - last.began_ns < MINUTE_S * NS:
            last.batch, last.until = last.batch.merged(batch), until
        else:
            self._entries.append(PendingBatch(until.monotonic_ns, until, batch))
        while self._entries[0].until.monotonic_ns < until.monotonic_ns - self._keep_ns:
            self._drop(self._entries.popleft())

    def _drop(self, entry: PendingBatch) -> None:
        """Too old to keep: its time is a gap in the accounts, and the newest batch says so."""
        seconds, newest = entry.batch.seconds, self._entries[-1]
        gap = Gap(int(entry.until.wall_s), "", NOT_WRITTEN, round(seconds * NS))
        newest.batch = newest.batch.merged(Batch({}, {}, (*entry.batch.gaps, gap)))
        self.lost_s += seconds

    def first(self) -> PendingBatch | None:
        """The next to be written, which from now on is not merged with what comes later."""
        if not self._entries:
            return None
        entry = self._entries[0]
        if entry.number is None:
            self._numbers += 1
            entry.number = self._numbers
        return entry

    def written(self, entry: PendingBatch) -> None:
        """It may have been dropped as too old while it was being written."""
        if self._entries and self._entries[0] is entry:
            self._entries.popleft()
