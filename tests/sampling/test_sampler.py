"""A source that hangs, raises or returns garbage loses only its own readings; snapshots continue."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Literal

import pytest

from gpucommons.agent.sampler import Sampler
from gpucommons.model.host import CpuReading, MemoryReading
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.sources.source import Source, SourceAbsent, SourceError

MEMORY = MemoryReading(100, 50)
CPU = CpuReading(4, 1.0, 1.0, 1.0, 0.5)
BUSY_CPU = CpuReading(4, 20.0, 20.0, 20.0, 1.0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Scripted:
    """A source whose read is whatever the test sets; counts its reads."""

    def __init__(
        self,
        name: str,
        produces: type,
        read: Callable[[], object],
        cadence_s: float = 1.0,
        runs_on: Literal["thread", "loop"] = "thread",
    ) -> None:
        self.read_now = read
        self.reads = 0
        self.source = Source(name, name, produces, self._read, cadence_s, essential=True, runs_on=runs_on)

    def _read(self) -> object:
        self.reads += 1
        return self.read_now()


def memory(read: Callable[[], object] = lambda: MEMORY) -> Scripted:
    return Scripted("memory", MemoryReading, read)


def sampler(clock: Clock, *sources: Scripted) -> Sampler:
    given = [each.source for each in sources]
    wall = lambda: clock.now_s + 5e8  # noqa: E731
    return Sampler(given, interval_s=1.0, hostname="h", monotonic=clock, wall=wall)


async def ticks(running: Sampler, clock: Clock, count: int, step_s: float = 1.0) -> Snapshot:
    snapshot = None
    for _ in range(count):
        snapshot = await running.tick(settle_s=5.0)
        clock.now_s += step_s
    assert snapshot is not None
    return snapshot


def raising(error: Exception) -> Callable[[], object]:
    def read() -> object:
        raise error

    return read


def test_one_tick_publishes_one_whole_snapshot() -> None:
    async def scenario() -> None:
        clock = Clock()
        running = sampler(clock, memory(), Scripted("cpu", CpuReading, lambda: CPU))
        assert running.latest() is None
        seen: list[Snapshot] = []
        running.subscribe(seen.append)
        first = await ticks(running, clock, 1)
        assert running.latest() is first
        assert (first.sequence, first.monotonic_s, first.wall_s) == (0, 1000.0, 1000.0 + 5e8)
        assert (first.readings.memory, first.readings.cpu) == (MEMORY, CPU)
        second = await ticks(running, clock, 1)
        assert second.sequence == 1
        assert seen == [first, second]
        running.close()

    asyncio.run(scenario())


def test_reads_of_a_thread_source_stay_off_the_event_loop() -> None:
    async def scenario() -> None:
        threads: list[str] = []

        def read() -> object:
            threads.append(threading.current_thread().name)
            return MEMORY

        clock = Clock()
        running = sampler(clock, memory(read))
        await ticks(running, clock, 3)
        assert threads == ["source-memory"] * 3
        running.close()

    asyncio.run(scenario())


def test_each_source_has_its_own_cadence() -> None:
    async def scenario() -> None:
        clock = Clock()
        quick, slow = memory(), Scripted("cpu", CpuReading, lambda: CPU, cadence_s=5.0)
        running = sampler(clock, quick, slow)
        snapshot = await ticks(running, clock, 11)
        assert (quick.reads, slow.reads) == (11, 3)
        assert snapshot.readings.cpu == CPU, "between its reads the last value is kept"
        running.close()

    asyncio.run(scenario())


async def next_reading(running: Sampler, after: object) -> Snapshot:
    """The first snapshot with another reading: a thread finishes the read in its own time."""
    while (snapshot := await running.tick(settle_s=0.05)).readings.cpu == after:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.001)
    return snapshot


def test_a_late_reading_is_taken_and_the_last_one_served_with_its_age_until_then() -> None:
    """A driver that is slow, or a read that waits for a processor; up to four deadlines."""

    async def scenario() -> None:
        clock, release = Clock(), threading.Event()
        slow = Scripted("cpu", CpuReading, lambda: CPU)
        running = sampler(clock, slow)
        first = await ticks(running, clock, 1)
        slow.read_now = lambda: release.wait() and BUSY_CPU
        for _ in range(7):
            snapshot = await running.tick(settle_s=0.05)
            clock.now_s += 1.0
        state = snapshot.sources["cpu"]
        assert (snapshot.readings.cpu, state.up, dict(state.failures)) == (CPU, True, {})
        assert state.last_success_monotonic_s == first.sources["cpu"].last_success_monotonic_s, "its age is known"
        assert not state.is_fresh(snapshot.monotonic_s)
        release.set()
        snapshot = await next_reading(running, after=CPU)
        assert (snapshot.readings.cpu, snapshot.sources["cpu"].is_fresh(clock.now_s)) == (BUSY_CPU, True)
        # One that does not come back is dropped all the same.
        release.clear()
        clock.now_s += 1.0
        for _ in range(12):
            snapshot = await running.tick(settle_s=0.05)
            clock.now_s += 1.0
        state = snapshot.sources["cpu"]
        assert (snapshot.readings.cpu, dict(state.failures)) == (None, {"timeout": 1})
        assert "no answer within 8 s" in state.detail
        release.set()
        running.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_source_whose_every_read_is_late_is_served_from_the_first_on() -> None:
    async def scenario() -> None:
        clock, values = Clock(), [CPU, BUSY_CPU]
        # One more than is waited for: the next read begins at once.
        releases = [threading.Event() for _ in range(3)]
        reads = iter(zip(releases, [*values, CPU], strict=True))

        def read() -> object:
            release, value = next(reads)
            release.wait()
            return value

        running, before = sampler(clock, Scripted("cpu", CpuReading, read)), None
        for release, value in zip(releases, values, strict=False):
            for _ in range(4):
                snapshot = await running.tick(settle_s=0.05)
                clock.now_s += 1.0
            assert snapshot.readings.cpu == before
            release.set()
            snapshot = await next_reading(running, after=before)
            assert snapshot.readings.cpu == value
            before = value
        assert (snapshot.sources["cpu"].up, dict(snapshot.sources["cpu"].failures)) == (True, {"timeout": 1})
        releases[-1].set()
        running.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_read_that_took_far_too_long_is_not_served_and_made_again() -> None:
    async def scenario() -> None:
        clock, release = Clock(), threading.Event()
        slow = Scripted("cpu", CpuReading, lambda: release.wait() and CPU)
        running = sampler(clock, slow)
        await running.tick(settle_s=0.05)
        clock.now_s += 60.0
        slow.read_now = lambda: BUSY_CPU
        release.set()
        assert (await next_reading(running, after=None)).readings.cpu == BUSY_CPU
        running.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_hung_source_does_not_affect_the_others() -> None:
    async def scenario() -> None:
        clock, release = Clock(), threading.Event()
        hung = Scripted("cpu", CpuReading, lambda: release.wait() and CPU)
        running = sampler(clock, memory(), hung)
        for _ in range(4):
            snapshot = await running.tick(settle_s=0.05)
            clock.now_s += 1
        state = snapshot.sources["cpu"]
        assert (state.up, dict(state.failures), hung.reads) == (False, {"timeout": 1}, 1)
        assert snapshot.readings.cpu is None
        assert snapshot.readings.memory == MEMORY
        assert snapshot.sources["memory"].up

        release.set()
        while not running.latest() or not running.latest().sources["cpu"].up:  # type: ignore[union-attr]
            await ticks(running, clock, 1)
        assert running.latest().readings.cpu == CPU  # type: ignore[union-attr]
        running.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_only_one_thread_is_ever_stuck() -> None:
    async def scenario() -> None:
        clock, release = Clock(), threading.Event()
        running = sampler(clock, Scripted("cpu", CpuReading, lambda: release.wait() and CPU))
        before = set(threading.enumerate())
        for _ in range(20):
            await running.tick(settle_s=0.001)
            clock.now_s += 1
        assert [thread.name for thread in set(threading.enumerate()) - before] == ["source-cpu"]
        release.set()
        running.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (raising(SourceError("unreadable", "no luck")), "unreadable"),
        (raising(ZeroDivisionError("oops")), "ZeroDivisionError"),
        (raising(OSError(5, "I/O")), "OSError"),
        (lambda: "garbage", "garbage"),
        (lambda: None, "garbage"),
        (lambda: CPU, "garbage"),
    ],
)
@pytest.mark.parametrize("runs_on", ["thread", "loop"])
def test_a_failing_source_is_down_counted_and_logged(
    read: Callable[[], object],
    reason: str,
    runs_on: Literal["thread", "loop"],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        clock = Clock()
        failing = Scripted("memory", MemoryReading, lambda: MEMORY, runs_on=runs_on)
        running = sampler(clock, failing, Scripted("cpu", CpuReading, lambda: CPU))
        assert (await ticks(running, clock, 1)).readings.memory == MEMORY
        failing.read_now = read
        snapshot = await ticks(running, clock, 3)
        state = snapshot.sources["memory"]
        assert (state.up, state.absent, dict(state.failures)) == (False, False, {reason: 3})
        assert snapshot.readings.memory is None, "missing, not the last value"
        assert snapshot.readings.cpu == CPU
        failing.read_now = lambda: MEMORY
        snapshot = await ticks(running, clock, 1)
        assert snapshot.readings.memory == MEMORY
        assert dict(snapshot.sources["memory"].failures) == {reason: 3}
        running.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert len(caplog.records) == 2, "one line when it fails, one when it recovers"


def test_an_absent_source_is_not_a_failure_and_is_retried() -> None:
    async def scenario() -> None:
        clock = Clock()
        source = memory(raising(SourceAbsent("no driver", "install it")))
        running = sampler(clock, source)
        snapshot = await ticks(running, clock, 1)
        state = snapshot.sources["memory"]
        assert (state.up, state.absent, state.detail, state.remedy) == (
            False,
            True,
            "no driver",
            "install it",
        )
        assert not state.failures
        await ticks(running, clock, 60)
        assert 3 <= source.reads <= 6, "less and less often"
        source.read_now = lambda: MEMORY
        snapshot = await ticks(running, clock, 61)
        assert snapshot.readings.memory == MEMORY
        assert not snapshot.sources["memory"].absent
        running.close()

    asyncio.run(scenario())


def test_a_failing_derivation_keeps_the_readings() -> None:
    async def scenario() -> None:
        def broken(readings: Readings) -> Readings:
            raise KeyError("x")

        running = Sampler([memory().source], interval_s=1.0, hostname="h", derive=broken)
        assert (await running.tick(5.0)).readings.memory == MEMORY
        running.close()

    asyncio.run(scenario())


def test_a_failing_subscriber_does_not_affect_the_others() -> None:
    async def scenario() -> None:
        clock, seen = Clock(), list[Snapshot]()
        running = sampler(clock, memory())
        running.subscribe(lambda snapshot: 1 / 0)  # type: ignore[arg-type]
        running.subscribe(seen.append)
        await ticks(running, clock, 2)
        assert len(seen) == 2
        running.close()

    asyncio.run(scenario())


def test_run_ticks_until_it_is_cancelled() -> None:
    async def scenario() -> None:
        running = Sampler([memory().source], interval_s=0.01, hostname="h")
        enough = asyncio.Event()
        running.subscribe(lambda snapshot: enough.set() if snapshot.sequence == 5 else None)
        task = asyncio.create_task(running.run())
        await asyncio.wait_for(enough.wait(), 10)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(scenario())


def test_a_source_is_read_soon_when_that_is_asked_for() -> None:
    """And not at once: readings out of turn are at least 0.2 s apart."""

    async def scenario() -> None:
        asked, other = memory(), Scripted("cpu", CpuReading, lambda: CPU)
        running = Sampler([asked.source, other.source], interval_s=30.0, hostname="h")
        clock = asyncio.get_running_loop().time
        times_s = [clock()]
        running.subscribe(lambda _: times_s.append(clock()))
        running.subscribe(lambda _: running.read_soon("memory"))
        task = asyncio.create_task(running.run())
        async with asyncio.timeout(20):
            while len(times_s) < 5:  # noqa: ASYNC110 - each publication is one step
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert asked.reads >= 4
        assert other.reads <= 2, "only what was asked for is read again"
        # Counted from before the first: a snapshot that is published late is closer to the next one.
        assert times_s[4] - times_s[0] >= 3 * 0.2

    asyncio.run(scenario())
