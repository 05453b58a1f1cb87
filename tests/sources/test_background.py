"""A background task ends only when it is cancelled; its latest result is returned unchanged."""

import asyncio

import pytest

from gpucommons.base.backoff import Backoff
from gpucommons.sources.source import Latest, SourceAbsent, SourceError, keep_following


def test_failures_are_reported_and_retried() -> None:
    async def scenario() -> None:
        failures: list[str] = []
        enough = asyncio.Event()

        async def follow() -> None:
            if len(failures) == 3:
                enough.set()
                await asyncio.Event().wait()
            raise SourceError("refused", f"try {len(failures)}")

        task = asyncio.create_task(keep_following(follow, lambda e: failures.append(str(e)), Backoff(0.001, 0.002)))
        await enough.wait()
        assert failures == ["try 0", "try 1", "try 2"]
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()

    asyncio.run(scenario())


def test_a_task_that_fails_while_it_is_cancelled_ends() -> None:
    async def scenario() -> None:
        async def peer(follower_waits: asyncio.Event) -> None:
            try:
                follower_waits.set()
                await asyncio.Event().wait()
            finally:
                raise SourceError("disconnected", "the peer disconnected during the cancellation")

        async def follow() -> None:
            if failures:
                await asyncio.Event().wait()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(peer(waits))
                await asyncio.Event().wait()

        waits = asyncio.Event()
        failures: list[Exception] = []
        task = asyncio.create_task(keep_following(follow, failures.append, Backoff(0.001, 0.002)))
        await waits.wait()
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()
        assert failures == []

    asyncio.run(scenario())


def test_the_latest_result_is_returned() -> None:
    latest: Latest[tuple[int, ...]] = Latest("still asking")
    with pytest.raises(SourceError, match="still asking"):
        latest.read()
    value, equal = (1, 2), (*[1], 2)
    latest.succeed(value)
    latest.succeed(equal)
    assert latest.read() is value
    latest.fail_by(SourceAbsent("nothing here", "get one"))
    with pytest.raises(SourceAbsent, match="nothing here"):
        latest.read()
    latest.fail_by(ExceptionGroup("several", [SourceError("timeout", "too slow"), ValueError()]))
    with pytest.raises(SourceError, match="too slow"):
        latest.read()
    latest.fail_by(KeyError("a bug"))
    with pytest.raises(SourceError, match="KeyError") as caught:
        latest.read()
    assert caught.value.reason == "internal"


def test_raising_the_same_failure_repeatedly_takes_no_memory() -> None:
    latest: Latest[int] = Latest("still asking")
    depths = set()
    for _ in range(5):
        with pytest.raises(SourceError) as caught:
            latest.read()
        depth, trace = 0, caught.value.__traceback__
        while trace is not None:
            depth, trace = depth + 1, trace.tb_next
        depths.add(depth)
    assert len(depths) == 1
