"""Runs a background source and waits until it returns the expected reading."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import ParamSpec, Protocol, TypeVar

from gpucommons.sources.source import SourceAbsent, SourceError

PATIENCE_S = 20.0

Reading = TypeVar("Reading", covariant=True)
Found = TypeVar("Found")
Given = ParamSpec("Given")


class BackgroundSource(Protocol[Reading]):
    def read(self) -> Reading: ...
    async def run(self) -> None: ...


def in_event_loop(test: Callable[Given, Coroutine[object, object, None]]) -> Callable[Given, None]:
    """A test that is a coroutine, in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@contextlib.asynccontextmanager
async def following(source: BackgroundSource[object]) -> AsyncIterator[None]:
    task = asyncio.create_task(source.run())
    try:
        yield
        assert not task.done(), "a background source runs until it is cancelled"
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def eventually(look: Callable[[], Found | None]) -> Found:
    """The first value that `look` returns. A failure of the source counts as not found yet."""
    last = "nothing"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    found = look()
                    last = "nothing that fits"
                except (SourceError, SourceAbsent) as failure:
                    found, last = None, f"{type(failure).__name__}: {failure}"
                if found is not None:
                    return found
                await asyncio.sleep(0.01)
    raise AssertionError(f"not seen within {PATIENCE_S:g} s; the last thing seen: {last}")


async def eventually_fails(source: BackgroundSource[object], *reasons: str) -> SourceError:
    """The first failure of the source with one of these reasons."""

    def failure() -> SourceError | None:
        try:
            source.read()
        except SourceError as error:
            return error if error.reason in reasons else None
        return None

    return await eventually(failure)


async def eventually_absent(source: BackgroundSource[object]) -> SourceAbsent:
    def failure() -> SourceAbsent | None:
        try:
            source.read()
        except SourceAbsent as absent:
            return absent
        except SourceError:
            return None
        return None

    return await eventually(failure)
