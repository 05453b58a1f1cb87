"""Integrates usage over time: snapshots in, billed amounts out, as batches that wait for the disk. Pure.

The only clock is the one of the samples.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

from gpucommons.model.accounts import Amounts, JobFigures, OwnerKey, SlotTime
from gpucommons.model.allocations import (
    WHOLE_SHARE,
    WHOLE_SM,
    Account,
    Allocation,
    Holding,
    IdleCause,
    JobRequest,
    Slot,
    SlotInfo,
    SlotUsage,
    UsageSample,
)
from gpucommons.model.leases import Lease
from gpucommons.model.names import job_of_lease
from gpucommons.model.snapshot import Readings, Snapshot

# The usage that one snapshot bills. Pure.

_NS = 1_000_000_000


def usage_of(snapshot: Snapshot) -> UsageSample:
    """Has no slots if the GPUs could not be read: that is a gap, not a node without GPUs."""
    reading, gpus = snapshot.readings.allocations, snapshot.readings.gpus
    causes = _IdleCauses(snapshot.readings)
    by_slot: dict[str, list[Allocation]] = {}
    for allocation in reading.allocations if reading else ():
        if allocation.share:
            by_slot.setdefault(allocation.slot.uuid, []).append(allocation)
    complete = reading is not None and reading.complete
    return UsageSample(
        round(snapshot.monotonic_s * _NS),
        snapshot.wall_s,
        tuple(_slot_usage(info, by_slot, complete, causes) for info in (reading.slots if reading else ())),
        {gpu.identity.uuid: gpu.identity.name for gpu in (gpus.gpus if gpus else ()) if gpu.identity.name},
        causes.requests,
    )


class _IdleCauses:
    """What the programs of each job do while they do not use the GPU, by what their processes do."""

    def __init__(self, readings: Readings) -> None:
        leases, processes = readings.leases, readings.processes
        self._trees = None if processes is None else processes.trees
        self._clients = {} if leases is None else {job_of_lease(id): key.pid for id, key in leases.clients.items()}
        self.requests = (
            {} if leases is None else {job_of_lease(lease.request.id): _request(lease) for lease in leases.leases}
        )

    def of(self, row: Allocation) -> IdleCause | None:
        """None for a holding that is not idle or not of a job, and where none of its processes is known."""
        trees, account = self._trees, row.account
        if trees is None or row.active is not False or not (account.job or account.pod):
            return None
        client = self._clients.get(account.job)
        pids = tuple(process.pid for process in row.processes)
        roots = pids if client is None else (*pids, client)
        if not roots:
            return None
        if not trees.on_core.isdisjoint(roots):
            return IdleCause.CPU
        return IdleCause.NEITHER if trees.on_disk.isdisjoint(roots) else IdleCause.DISK


def _request(lease: Lease) -> JobRequest:
    request = lease.request
    waited_s = max(0.0, lease.since_s - request.arrived_s)
    return JobRequest(round(waited_s * 1000), request.memory_bytes and request.memory_bytes // 1024)


def _slot_usage(info: SlotInfo, by_slot: dict[str, list[Allocation]], complete: bool, causes: _IdleCauses) -> SlotUsage:
    if info.is_rest:
        # No MIG device covers it, so it cannot be held, whether all sources answered or not.
        return SlotUsage(info.slot)
    by_account: dict[Account, list[Allocation]] = {}
    for allocation in by_slot.get(info.slot.uuid, ()):
        by_account.setdefault(allocation.account, []).append(allocation)
    return SlotUsage(
        info.slot, tuple(_holding(account, rows, causes) for account, rows in by_account.items()), complete
    )


def _holding(account: Account, rows: list[Allocation], causes: _IdleCauses) -> Holding:
    """One account on one slot. Active if any of its workloads is; idle only if all are known to be idle."""
    if len(rows) == 1:
        row = rows[0]
        return Holding(account, row.share, row.active, row.sm, row.memory_bytes, row.milliwatts, causes.of(row))
    states = [row.active for row in rows]
    return Holding(
        account,
        sum(row.share for row in rows),
        True if True in states else None if None in states else False,
        _sum(row.sm for row in rows),
        _sum(row.memory_bytes for row in rows),
        _sum(row.milliwatts for row in rows),
        min((cause for row in rows if (cause := causes.of(row))), key=list(IdleCause).index, default=None),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    present = [value for value in values if value is not None]
    return sum(present) if present else None


# What one flush writes, and the backlog of batches that could not be written yet. Pure.

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


class Batch(NamedTuple):
    """Usage since the last batch. The keys start with the minute: Unix time divided by 60.

    `models` are the names of the GPUs' models, by the GPU's UUID; `jobs` has the accounts that are jobs or pods.
    """

    usage: dict[UsageKey, Amounts]
    slot_time: dict[TimeKey, SlotTime]
    gaps: tuple[Gap, ...] = ()
    seconds: float = 0.0
    models: Mapping[str, str] = {}
    jobs: Mapping[Account, JobFigures] = {}

    def merge(self, later: Self) -> "Batch":
        usage, slot_time = dict(self.usage), dict(self.slot_time)
        for key, amounts in later.usage.items():
            usage[key] = usage[key].plus(amounts) if key in usage else amounts
        for place, time in later.slot_time.items():
            slot_time[place] = slot_time[place].plus(time) if place in slot_time else time
        models, jobs = {**self.models, **later.models}, dict(self.jobs)
        for account, figures in later.jobs.items():
            jobs[account] = jobs[account].merge(figures) if account in jobs else figures
        return Batch(usage, slot_time, self.gaps + later.gaps, self.seconds + later.seconds, models, jobs)

    def by_owner(self) -> dict[OwnerKey, Amounts]:
        totals: dict[OwnerKey, Amounts] = {}
        for (_, _, account), amounts in self.usage.items():
            key = OwnerKey(account.kind, account.owner, account.namespace)
            before = totals.get(key)
            totals[key] = amounts if before is None else before.plus(amounts)
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
            last.batch, last.until = last.batch.merge(batch), until
        else:
            self._entries.append(PendingBatch(until.monotonic_ns, until, batch))
        while self._entries[0].until.monotonic_ns < until.monotonic_ns - self._keep_ns:
            self._drop(self._entries.popleft())

    def _drop(self, entry: PendingBatch) -> None:
        """Drop a batch that is too old: its time becomes a gap, recorded in the newest batch."""
        seconds, newest = entry.batch.seconds, self._entries[-1]
        gap = Gap(int(entry.until.wall_s), "", NOT_WRITTEN, round(seconds * NS))
        newest.batch = newest.batch.merge(Batch({}, {}, (*entry.batch.gaps, gap)))
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

    def remove_written(self, entry: PendingBatch) -> None:
        """Remove a written batch. It may have been dropped as too old during the write."""
        if self._entries and self._entries[0] is entry:
            self._entries.popleft()


# Integrates usage over time: samples in, billed amounts out. Pure; the only clock is the one in the samples.
#
# An interval counts for a slot only if the slot was read at both ends. It is billed by the usage at its start, for
# exactly the monotonic time between the two samples. All other time is a gap: counted, but not billed. The wall clock
# only decides under which minute an amount is filed.

STALLED = "stalled"
UNREAD = "unread"

_KIB_S = 1024 * NS
_MICROJOULE = 1_000_000
# Slots of former MIG layouts never return.
_MAX_REMEMBERED = 1024


class _Sum:
    """One account on one slot within one minute, in the finest units; rounded down once, at the end."""

    __slots__ = ("active", "byte_ns", "equivalent", "held", "idle", "picojoules", "sm")

    def __init__(self) -> None:
        self.held = self.active = self.idle = self.equivalent = self.sm = self.byte_ns = self.picojoules = 0

    def amounts(self) -> Amounts:
        return Amounts(
            self.held,
            self.active,
            self.idle,
            self.equivalent,
            self.sm // WHOLE_SM,
            self.byte_ns // _KIB_S,
            self.picojoules // _MICROJOULE,
        )


class _JobSum:
    """What is known of one job since the last batch."""

    __slots__ = ("first_s", "idle_cpu", "idle_disk", "idle_seen", "last_s", "peak_bytes")

    def __init__(self, first_s: float) -> None:
        self.first_s = self.last_s = first_s
        self.peak_bytes: int | None = None
        self.idle_seen = self.idle_cpu = self.idle_disk = 0

    def add(self, holding: Holding, held_ns: int, until_s: float) -> None:
        self.last_s = max(self.last_s, until_s)
        memory_bytes, cause = holding.memory_bytes, holding.idle_cause
        if memory_bytes is not None and memory_bytes > (self.peak_bytes or -1):
            self.peak_bytes = memory_bytes
        if cause is not None and holding.active is False:
            self.idle_seen += held_ns
            if cause is IdleCause.CPU:
                self.idle_cpu += held_ns
            elif cause is IdleCause.DISK:
                self.idle_disk += held_ns

    def figures(self, request: JobRequest | None) -> JobFigures:
        return JobFigures(
            int(self.first_s),
            int(self.last_s),
            None if self.peak_bytes is None else self.peak_bytes // 1024,
            self.idle_seen,
            self.idle_cpu,
            self.idle_disk,
            None if request is None else request.waited_ms,
            None if request is None else request.asked_kib,
        )


class Integrator:
    """`longest_gap_s` is the longest interval between two samples that is billed."""

    def __init__(self, longest_gap_s: float) -> None:
        self._longest_ns = round(longest_gap_s * NS)
        self._before: UsageSample | None = None
        # The time up to which each known slot is accounted for: billed, free or a gap.
        self._covered_ns: dict[str, int] = {}
        self._usage_before: dict[str, SlotUsage] = {}
        self._sums: dict[tuple[int, Slot], dict[Account, _Sum]] = {}
        self._times: dict[TimeKey, list[int]] = {}
        self._gaps: list[Gap] = []
        self._elapsed_ns = 0
        self._models: Mapping[str, str] = {}
        self._jobs: dict[Account, _JobSum] = {}
        self._requests: dict[str, JobRequest] = {}

    def step(self, sample: UsageSample) -> None:
        before = self._before
        if before is not None and sample.monotonic_ns <= before.monotonic_ns:
            return
        if before is not None:
            elapsed_ns = sample.monotonic_ns - before.monotonic_ns
            began_s = sample.wall_s - elapsed_ns / NS
            stalled = elapsed_ns > self._longest_ns
            if stalled:
                self._gaps.append(Gap(int(began_s), "", STALLED, elapsed_ns))
                self._covered_ns = {uuid: ns + elapsed_ns for uuid, ns in self._covered_ns.items()}
            else:
                self._elapsed_ns += elapsed_ns
            self._bill(sample, 0 if stalled else elapsed_ns, began_s)
        self._remember(sample)

    def take(self) -> Batch:
        """What was billed since the last call."""
        usage: dict[UsageKey, Amounts] = {
            (minute, slot, account): total.amounts()
            for (minute, slot), accounts in self._sums.items()
            for account, total in accounts.items()
        }
        times = {place: SlotTime(*parts) for place, parts in self._times.items()}
        jobs = {account: job.figures(self._requests.get(account.job)) for account, job in self._jobs.items()}
        batch = Batch(usage, times, tuple(self._gaps), self._elapsed_ns / NS, self._models, jobs)
        self._jobs, self._requests = {}, {}
        self._sums, self._times, self._gaps, self._elapsed_ns = {}, {}, [], 0
        return batch

    def _bill(self, after: UsageSample, elapsed_ns: int, began_s: float) -> None:
        for now in after.slots:
            uuid = now.slot.uuid
            usage = self._usage_before.get(uuid)
            if usage is not None:
                if elapsed_ns:
                    self._bill_slot(usage, elapsed_ns, began_s)
            elif (gone_ns := after.monotonic_ns - self._covered_ns.get(uuid, after.monotonic_ns)) > 0:
                self._gaps.append(Gap(int(after.wall_s - gone_ns / NS), uuid, UNREAD, gone_ns))

    def _bill_slot(self, usage: SlotUsage, elapsed_ns: int, began_s: float) -> None:
        place = (int(began_s // MINUTE_S), usage.slot)
        sums = self._sums.get(place)
        if sums is None:
            sums = self._sums[place] = {}
        _, _, _, slices, of = usage.slot
        share_so_far = billed_ns = 0
        for holding in usage.holdings:
            account, share, active, sm, memory_bytes, milliwatts, _ = holding
            # Shares are converted by their running sum, so that rounding neither loses nor adds time.
            share_so_far += share
            up_to_ns = elapsed_ns * share_so_far // WHOLE_SHARE
            held_ns, billed_ns = up_to_ns - billed_ns, up_to_ns
            total = sums.get(account)
            if total is None:
                total = sums[account] = _Sum()
            total.held += held_ns
            if active:
                total.active += held_ns
            elif active is False:
                total.idle += held_ns
            if slices is not None:
                total.equivalent += held_ns * slices // of
            if sm:
                total.sm += sm * elapsed_ns
            if memory_bytes:
                total.byte_ns += memory_bytes * elapsed_ns
            if milliwatts:
                total.picojoules += milliwatts * elapsed_ns
            if account.job or account.pod:
                self._job(account, began_s).add(holding, held_ns, began_s + elapsed_ns / NS)
        time = self._times.get(place)
        if time is None:
            time = self._times[place] = [0, 0, 0]
        time[0] += billed_ns
        time[1 if usage.holders_known else 2] += elapsed_ns - billed_ns

    def _job(self, account: Account, began_s: float) -> _JobSum:
        job = self._jobs.get(account)
        if job is None:
            job = self._jobs[account] = _JobSum(began_s)
            request = self._before and self._before.requests.get(account.job)
            if request:
                self._requests[account.job] = request
        return job

    def _remember(self, sample: UsageSample) -> None:
        self._before = sample
        if sample.models:
            self._models = sample.models
        self._usage_before = {usage.slot.uuid: usage for usage in sample.slots}
        for uuid in self._usage_before:
            self._covered_ns[uuid] = sample.monotonic_ns
        if len(self._covered_ns) > _MAX_REMEMBERED:
            newest = sorted(self._covered_ns.items(), key=lambda covered: covered[1])[-_MAX_REMEMBERED // 2 :]
            self._covered_ns = dict(newest)
