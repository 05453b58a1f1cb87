"""What one flush writes, and the backlog of batches that could not be written yet. Pure."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from gpucommons.model.accounts import Amounts, JobFigures, OwnerKey, SlotTime
from gpucommons.model.allocations import Account, Slot

NS = 1_000_000_000
MINUTE_S = 60
NOT_WRITTEN = "not_written"


class Gap(NamedTuple):
    """Time that was not observed and is not billed. An empty `slot_uuid` means the whole node."""

    wall_s: int
    slot_uuid: str
    reason: str
    ns: int


UsageKey = tuple[int, Slot, Account]
TimeKey = tuple[int, Slot]


@dataclass(frozen=True, slots=True)
class Batch:
    """Usage since the last batch. The keys start with the minute: Unix time divided by 60.

    `models` are the names of the GPUs' models, by the GPU's UUID; `jobs` has the accounts that are jobs or pods.
    """

    usage: dict[UsageKey, Amounts]
    slot_time: dict[TimeKey, SlotTime]
    gaps: tuple[Gap, ...] = ()
    seconds: float = 0.0
    models: Mapping[str, str] = field(default_factory=dict)
    jobs: Mapping[Account, JobFigures] = field(default_factory=dict)

    def merged(self, later: Self) -> "Batch":
        usage, slot_time = dict(self.usage), dict(self.slot_time)
        for key, amounts in later.usage.items():
            usage[key] = usage[key].plus(amounts) if key in usage else amounts
        for place, time in later.slot_time.items():
            slot_time[place] = slot_time[place].plus(time) if place in slot_time else time
        models, jobs = {**self.models, **later.models}, dict(self.jobs)
        for account, figures in later.jobs.items():
            jobs[account] = jobs[account].merged(figures) if account in jobs else figures
        return Batch(usage, slot_time, self.gaps + later.gaps, self.seconds + later.seconds, models, jobs)

    def by_owner(self) -> dict[OwnerKey, Amounts]:
        totals: dict[OwnerKey, Amounts] = {}
        for (_, _, account), amounts in self.usage.items():
            key = OwnerKey(account.kind, account.owner, account.namespace)
            known = totals.get(key)
            totals[key] = amounts if known is None else known.plus(amounts)
        return totals


class Moment(NamedTuple):
    """When a batch ended, by the monotonic clock and by the wall clock."""

    monotonic_ns: int
    wall_s: float


@dataclass(slots=True)
class PendingBatch:
    """A batch that is not written yet. After the first attempt it has a number and is never merged again.

    A write that failed may still have reached the disk: the number shows that at the next attempt.
    """

    began_ns: int
    until: Moment
    batch: Batch
    number: int | None = None


class Backlog:
    """Batches to be written, oldest first, merged by the minute; none is older than `keep_s`."""

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
        """Drop a batch that is too old: its time becomes a gap, recorded in the newest batch."""
        seconds, newest = entry.batch.seconds, self._entries[-1]
        gap = Gap(int(entry.until.wall_s), "", NOT_WRITTEN, round(seconds * NS))
        newest.batch = newest.batch.merged(Batch({}, {}, (*entry.batch.gaps, gap)))
        self.lost_s += seconds

    def first(self) -> PendingBatch | None:
        """The next batch to write. From now on it is not merged with later ones."""
        if not self._entries:
            return None
        entry = self._entries[0]
        if entry.number is None:
            self._numbers += 1
            entry.number = self._numbers
        return entry

    def written(self, entry: PendingBatch) -> None:
        """Remove a written batch. It may have been dropped as too old during the write."""
        if self._entries and self._entries[0] is entry:
            self._entries.popleft()
