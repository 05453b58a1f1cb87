"""The clock: starts each source when it is due, enforces deadlines, and publishes one Snapshot at a time.

Ticks lie on a fixed grid, so that sources of one cadence stay in step. A source that may block has a thread of its
own, and a hung read costs that thread only. The state of each source is a pure state machine.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpucommons.base.backoff import Backoff
from gpucommons.base.threads import WorkerThread
from gpucommons.model.snapshot import Readings, Snapshot, SourceState
from gpucommons.sources.source import Source, SourceAbsent, SourceError, SourceStarting

# Ticks on a fixed grid of time, so that sources with the same cadence stay in step and nothing drifts.
#
# Timers sometimes fire slightly early; within the slack that counts as on time, not as an additional tick.

_SLACK_RATIO = 0.05


def next_beat(now_s: float, period_s: float) -> float:
    return (math.floor(now_s / period_s + _SLACK_RATIO) + 1) * period_s


def on_beat(now_s: float, due_s: float, period_s: float) -> bool:
    return now_s >= due_s - _SLACK_RATIO * period_s


# The state of one source as a pure state machine: outcomes in, SourceState and the next due time out.
#
# Holds all rules about when a source is read, timed out and retried. The time is passed to each method.

_LONG_DETAIL = 300
# How much later than its deadline a reading may come, in times of what its source needs at most.
_LATE_RATIO = 3.0


@dataclass(slots=True)
class SourceTracker:
    source: Source
    state: SourceState = field(init=False)
    value: object = None
    due_s: float = 0.0
    started_s: float | None = None
    _timed_out: bool = False
    # What is absent is tried again, less and less often: a driver may be installed while the agent runs.
    _absent_backoff: Backoff = field(default_factory=lambda: Backoff(5.0, 60.0, jitter=0.0))

    def __post_init__(self) -> None:
        source = self.source
        self.state = SourceState(
            source.name,
            essential=source.essential,
            detail="not read yet",
            stale_after_s=max(3 * source.cadence_s, source.cadence_s + self.deadline_s),
        )

    @property
    def deadline_s(self) -> float:
        return max(self.source.deadline_s, self.source.cadence_s)

    @property
    def in_flight(self) -> bool:
        return self.started_s is not None

    def is_due(self, now_s: float) -> bool:
        return self.started_s is None and on_beat(now_s, self.due_s, self.source.cadence_s)

    def start(self, now_s: float) -> None:
        self.started_s, self._timed_out = now_s, False
        self.due_s = next_beat(now_s, self.source.cadence_s)

    def check_deadline(self, now_s: float) -> bool:
        """Drop the reading of a source whose read takes too long. True if that has just happened.

        The last reading is served until then, with its age. A slow driver and a loaded machine cost its freshness; the
        GPUs do not vanish from the metrics.
        """
        if self.started_s is None or self._timed_out:
            return False
        limit_s = self._late_limit_s if self.state.up else self.deadline_s
        if now_s - self.started_s < limit_s:
            return False
        self._timed_out = True
        self._fail("timeout", f"no answer within {limit_s:g} s; still waiting", now_s - self.started_s)
        return True

    @property
    def _late_limit_s(self) -> float:
        """A read that took longer is not served: what it read first may be too old."""
        return self.deadline_s + _LATE_RATIO * self.source.deadline_s

    def finish(self, outcome: object, now_s: float, wall_s: float) -> None:
        """Take the outcome of a read: a value, or the exception that it raised."""
        duration_s = now_s - (now_s if self.started_s is None else self.started_s)
        self.started_s, self._timed_out = None, False
        if isinstance(outcome, SourceAbsent):
            self._absent(outcome, duration_s, now_s)
        elif isinstance(outcome, SourceStarting):
            self.value = None
            self.state = self.state._replace(up=False, absent=False, duration_s=duration_s, detail=str(outcome))
        elif isinstance(outcome, SourceError):
            self._fail(outcome.reason, str(outcome), duration_s, outcome.remedy)
        elif isinstance(outcome, BaseException):
            self._fail(type(outcome).__name__, str(outcome) or type(outcome).__name__, duration_s)
        elif not isinstance(outcome, self.source.produces):
            self._fail("garbage", f"returned {type(outcome).__name__}", duration_s)
        elif duration_s > self._late_limit_s:
            self.due_s = now_s
        else:
            self._succeed(outcome, duration_s, now_s, wall_s)

    def _succeed(self, value: object, duration_s: float, now_s: float, wall_s: float) -> None:
        self.value = value
        self._absent_backoff.reset()
        before = self.state
        # In full, not as a change of the last state, which costs three times as much: it is made for every reading.
        self.state = SourceState(
            before.name,
            before.essential,
            True,
            False,
            duration_s,
            now_s,
            wall_s,
            before.failures,
            "",
            "",
            before.stale_after_s,
        )

    def _absent(self, error: SourceAbsent, duration_s: float, now_s: float) -> None:
        self.value = None
        self.due_s = now_s + self._absent_backoff.next_s()
        self.state = self.state._replace(
            up=False, absent=True, duration_s=duration_s, detail=str(error), remedy=error.remedy
        )

    def _fail(self, reason: str, detail: str, duration_s: float, remedy: str = "") -> None:
        self.value = None
        failures = {**self.state.failures, reason: self.state.failures.get(reason, 0) + 1}
        self.state = self.state._replace(
            up=False,
            absent=False,
            duration_s=duration_s,
            failures=failures,
            detail=detail[:_LONG_DETAIL],
            remedy=remedy,
        )


# One thread per source that may block, or for a few that read the same kernel. A hung read blocks only this thread.
#
# It is a daemon thread, so a driver call that never returns does not keep the process from exiting. Reads run one after
# the other.


class ReadThread:
    def __init__(self, name: str) -> None:
        self._thread = WorkerThread(f"source-{name}")

    def submit(self, reads: Sequence[Callable[[], object]], outcomes: list[object], done: Callable[[], None]) -> None:
        """Run the reads on the thread, one after the other. `outcomes` gets the value or exception of each, in order.
        `done` is called after the last one, on the running event loop: each call wakes it."""
        loop = asyncio.get_running_loop()

        def job() -> None:
            for read in reads:
                outcomes.append(_outcome(read))
            # The loop may have been closed during the read.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(done)

        self._thread.submit(job)

    @property
    def native_id(self) -> int:
        """0 before the first read."""
        return self._thread.native_id

    def close(self) -> None:
        """End the thread after the current read; does not wait for it."""
        self._thread.close()


def _outcome(read: Callable[[], object]) -> object:
    try:
        return read()
    except Exception as error:
        return error


class _Batch:
    """The sources that one thread reads in one tick. `outcomes` grows as they are read; `taken` of them are known to
    their trackers."""

    __slots__ = ("outcomes", "taken", "trackers")

    def __init__(self, trackers: Sequence[SourceTracker]) -> None:
        self.trackers = trackers
        self.outcomes: list[object] = []
        self.taken = 0


# The clock: starts each source when it is due, enforces deadlines, and publishes one Snapshot per tick.
#
# Publishing replaces one reference; an older Snapshot stays valid for those who hold it. A source that fails or hangs
# loses only its own readings; one that is slow serves older ones. Blocking reads never run on the event loop.

# The share of a tick that the due sources may take before the Snapshot is published without them.
_SETTLE_RATIO = 0.5

# A reading that is asked for out of turn comes this long after the last, and after so many times the processor time of
# the agent that the last one took, and its time by the clock: on a busy machine most of that is waiting.
_SOON_S = 0.2
_SOON_CPU_RATIO = 9.0
_SOON_RATIO = 3.0
# Timers of the loop have millisecond steps.
_TIMER_STEP_S = 0.001

log = logging.getLogger(__name__)


class Sampler:
    def __init__(
        self,
        sources: Iterable[Source],
        *,
        interval_s: float,
        hostname: str,
        scenario: str | None = None,
        derive: Callable[[Readings], Readings] = lambda readings: readings,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._trackers = [SourceTracker(source) for source in sources]
        self._threads = {name: ReadThread(name) for name in dict.fromkeys(map(_thread_name, self._trackers)) if name}
        self._interval_s = interval_s
        self._hostname = hostname
        self._scenario = scenario
        self._derive = derive
        self._monotonic = monotonic
        self._wall = wall
        self._subscribers: list[Callable[[Snapshot], None]] = []
        self._snapshot: Snapshot | None = None
        self._read_soon = asyncio.Event()
        # What has not been read in full in this tick, by thread.
        self._awaited: dict[str, _Batch] = {}
        self._settled: asyncio.Future[None] | None = None

    def subscribe(self, on_publish: Callable[[Snapshot], None]) -> None:
        """`on_publish` is called with every Snapshot on the event loop; it must not block."""
        self._subscribers.append(on_publish)

    def latest(self) -> Snapshot | None:
        return self._snapshot

    def read_soon(self, name: str) -> None:
        """This source is read again in a moment, and a Snapshot published, outside of the grid. On the loop.

        For events that a reading will show: programs that start. Readings cost at most a tenth of a core, and the
        driver is read for at most a quarter of the time.
        """
        for tracker in self._trackers:
            if tracker.source.name == name:
                tracker.due_s = min(tracker.due_s, self._monotonic())
                self._read_soon.set()

    async def run(self) -> None:
        """Tick until cancelled, on the grid of the interval, so that the ticks do not drift."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                begun_s, begun_cpu_s = self._monotonic(), time.process_time()
                await self.tick()
                now_s, cpu_s = self._monotonic(), time.process_time() - begun_cpu_s
                beat_s = next_beat(now_s, self._interval_s)
                rest_s = max(_SOON_CPU_RATIO * cpu_s, _SOON_RATIO * (now_s - begun_s))
                soon_s = max(begun_s + _SOON_S, now_s + rest_s)
                beat = loop.call_later(beat_s - now_s, self._read_soon.set)
                await self._read_soon.wait()
                beat.cancel()
                self._read_soon.clear()
                # At a beat the timer may have fired a moment early.
                if (early_s := min(soon_s, beat_s) - self._monotonic()) > _TIMER_STEP_S:
                    await asyncio.sleep(early_s)
        finally:
            self.close()

    def close(self) -> None:
        for thread in self._threads.values():
            thread.close()

    async def tick(self, settle_s: float | None = None) -> Snapshot:
        """Start the sources that are due, wait for them for a limited time, and publish a Snapshot."""
        now_s = self._monotonic()
        # Only reads of this tick are awaited: one that hangs must not delay every later tick.
        self._awaited.clear()
        for thread, trackers in self._start_due(now_s).items():
            batch = self._awaited[thread] = _Batch(trackers)
            reads = [tracker.source.read for tracker in trackers]
            self._threads[thread].submit(reads, batch.outcomes, partial(self._end, thread, batch))
        if self._awaited:
            loop = asyncio.get_running_loop()
            self._settled = loop.create_future()
            limit = loop.call_later(self._interval_s * _SETTLE_RATIO if settle_s is None else settle_s, self._settle)
            await self._settled
            limit.cancel()
            # A read that hangs costs its own reading, not those that came before it on its thread.
            for batch in self._awaited.values():
                self._take(batch)
        return self._publish()

    def _start_due(self, now_s: float) -> dict[str, list[SourceTracker]]:
        """Reads the sources of the loop that are due. Returns the other ones that are due, by their thread."""
        by_thread: dict[str, list[SourceTracker]] = {}
        for tracker in self._trackers:
            if tracker.is_due(now_s):
                tracker.start(now_s)
                thread = _thread_name(tracker)
                if not thread:
                    self._finish(tracker, _outcome(tracker.source.read))
                elif (reading := tracker.source.read_at_once()) is not None:
                    self._finish(tracker, reading)
                else:
                    by_thread.setdefault(thread, []).append(tracker)
        return by_thread

    def _end(self, thread: str, batch: _Batch) -> None:
        self._take(batch)
        if self._awaited.get(thread) is batch:
            del self._awaited[thread]
        if not self._awaited:
            self._settle()

    def _settle(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def _take(self, batch: _Batch) -> None:
        for tracker, outcome in zip(batch.trackers[batch.taken :], batch.outcomes[batch.taken :], strict=False):
            self._finish(tracker, outcome)
            batch.taken += 1

    def _finish(self, tracker: SourceTracker, outcome: object) -> None:
        before = tracker.state
        tracker.finish(outcome, self._monotonic(), self._wall())
        _log_change(before, tracker.state)

    def _publish(self) -> Snapshot:
        now_s = self._monotonic()
        for tracker in self._trackers:
            before = tracker.state
            if tracker.check_deadline(now_s):
                _log_change(before, tracker.state)
        # The tracker has checked the type of each value.
        values: dict[str, Any] = {t.source.feeds: t.value for t in self._trackers if t.value is not None}
        snapshot = Snapshot(
            sequence=0 if self._snapshot is None else self._snapshot.sequence + 1,
            monotonic_s=now_s,
            wall_s=self._wall(),
            hostname=self._hostname,
            scenario=self._scenario,
            readings=self._derived(Readings(**values)),
            sources={tracker.source.name: tracker.state for tracker in self._trackers},
        )
        self._snapshot = snapshot
        for subscriber in self._subscribers:
            try:
                subscriber(snapshot)
            except Exception:
                log.exception("a subscriber failed on snapshot %d", snapshot.sequence)
        return snapshot

    def _derived(self, readings: Readings) -> Readings:
        try:
            return self._derive(readings)
        except Exception:
            log.exception("cannot derive owners and allocations: they are left out of this snapshot")
            return readings


def _thread_name(tracker: SourceTracker) -> str:
    """Empty for a source that is read on the loop."""
    source = tracker.source
    return (source.thread or source.name) if source.runs_on == "thread" else ""


def _log_change(before: SourceState, after: SourceState) -> None:
    """Log one line when a source changes its state."""
    if before.up and after.up:
        return
    if after.up and not before.up and before.failures:
        log.info("source %s: up again", after.name)
    elif after.absent and not before.absent:
        # What was never there, and need not be, is listed once, in one line, when the agent has begun.
        is_listed = before.last_success_wall_s is None and not after.essential
        level = logging.DEBUG if is_listed else logging.INFO
        log.log(level, "source %s: %s; %s", after.name, after.detail, after.remedy)
    elif after.failures != before.failures and (before.up or before.absent or not before.failures):
        log.warning("source %s: %s; its readings are missing until it recovers", after.name, after.detail)
