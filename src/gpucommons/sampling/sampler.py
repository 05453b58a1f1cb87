"""The clock: starts each source when it is due, enforces deadlines, and publishes one Snapshot per tick.

Publishing replaces one reference; an older Snapshot stays valid for those who hold it. A source that fails, hangs or is
slow loses only its own readings. Blocking reads never run on the event loop.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.source_state import SourceState
from gpucommons.sampling.beat import next_beat
from gpucommons.sampling.tracker import SourceTracker
from gpucommons.sampling.worker import ReadThread
from gpucommons.sources.source import Source

# The share of a tick that the due sources may take before the Snapshot is published without them.
_SETTLE_RATIO = 0.5

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
        self._threads = {
            tracker.source.name: ReadThread(tracker.source.name)
            for tracker in self._trackers
            if tracker.source.runs_on == "thread"
        }
        self._interval_s = interval_s
        self._hostname = hostname
        self._scenario = scenario
        self._derive = derive
        self._monotonic = monotonic
        self._wall = wall
        self._subscribers: list[Callable[[Snapshot], None]] = []
        self._snapshot: Snapshot | None = None

    def subscribe(self, on_publish: Callable[[Snapshot], None]) -> None:
        """`on_publish` is called with every Snapshot on the event loop; it must not block."""
        self._subscribers.append(on_publish)

    def latest(self) -> Snapshot | None:
        return self._snapshot

    async def run(self) -> None:
        """Tick until cancelled, on the grid of the interval, so that the ticks do not drift."""
        try:
            while True:
                await self.tick()
                now_s = self._monotonic()
                await asyncio.sleep(next_beat(now_s, self._interval_s) - now_s)
        finally:
            self.close()

    def close(self) -> None:
        for thread in self._threads.values():
            thread.close()

    async def tick(self, settle_s: float | None = None) -> Snapshot:
        """Start the sources that are due, wait for them for a limited time, and publish a Snapshot."""
        now_s = self._monotonic()
        pending = [self._start(tracker, now_s) for tracker in self._trackers if tracker.is_due(now_s)]
        # Only reads of this tick are awaited: one that hangs must not delay every later tick.
        reads = [read for read in pending if read is not None]
        if reads:
            await asyncio.wait(reads, timeout=self._interval_s * _SETTLE_RATIO if settle_s is None else settle_s)
        return self._publish()

    def _start(self, tracker: SourceTracker, now_s: float) -> "asyncio.Future[object] | None":
        tracker.start(now_s)
        thread = self._threads.get(tracker.source.name)
        if thread is None:
            self._finish(tracker, _outcome(tracker.source.read))
            return None
        future = thread.submit(tracker.source.read)
        future.add_done_callback(lambda done: self._on_done(tracker, done))
        return future

    def _on_done(self, tracker: SourceTracker, future: "asyncio.Future[object]") -> None:
        if not future.cancelled():
            self._finish(tracker, future.exception() or future.result())

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
            readings=self._derived(replace(Readings(), **values)),
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


def _outcome(read: Callable[[], object]) -> object:
    try:
        return read()
    except Exception as error:
        return error


def _log_change(before: SourceState, after: SourceState) -> None:
    """Log one line when a source changes its state."""
    if after.up and not before.up and before.failures:
        log.info("source %s: up again", after.name)
    elif after.absent and not before.absent:
        log.info("source %s: %s; %s", after.name, after.detail, after.remedy)
    elif after.failures != before.failures and (before.up or before.absent or not before.failures):
        log.warning("source %s: %s; its readings are missing until it recovers", after.name, after.detail)
