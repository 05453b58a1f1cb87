"""Integrates usage over time: samples in, billed amounts out. Pure; the only clock is the one in the samples.

An interval counts for a slot only if the slot was read at both ends. It is billed by the usage at its start, for
exactly the monotonic time between the two samples. All other time is a gap: counted, but not billed. The wall clock
only decides under which minute an amount is filed.
"""

from collections.abc import Mapping

from gpucommons.ledger.batch import MINUTE_S, NS, Batch, Gap, TimeKey, UsageKey
from gpucommons.model.accounts import Amounts, JobFigures, SlotTime
from gpucommons.model.allocations import (
    WHOLE_SHARE,
    WHOLE_SM,
    Account,
    Holding,
    IdleCause,
    JobRequest,
    Slot,
    SlotUsage,
    UsageSample,
)

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
