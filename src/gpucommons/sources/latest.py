"""The latest result of a background task: a value, or the reason why there is none. Does no I/O."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from gpucommons.base.backoff import Backoff
from gpucommons.sources.source import SourceAbsent, SourceError, SourceStarting

Value = TypeVar("Value")


class Latest(Generic[Value]):
    def __init__(self, waiting: str) -> None:
        self._value: Value | None = None
        self._failure: SourceError | SourceAbsent = SourceStarting(waiting)

    def succeed(self, value: Value) -> None:
        """An equal value keeps the previous object, so that identity shows that nothing changed."""
        if value != self._value:
            self._value = value

    def fail_by(self, error: BaseException) -> None:
        self._value = None
        self._failure = _as_source_failure(error)

    def read(self) -> Value:
        if self._value is None:
            # Raised repeatedly: without this its traceback would grow each time.
            raise self._failure.with_traceback(None)
        return self._value


def _as_source_failure(error: BaseException) -> SourceError | SourceAbsent:
    """The exception that ended a background task as a source failure: our own as they are, others by their type."""
    if isinstance(error, BaseExceptionGroup):
        return _as_source_failure(error.exceptions[0])
    if isinstance(error, SourceError | SourceAbsent):
        return error
    return SourceError("internal", f"{type(error).__name__}: {error}")


async def keep_following(
    follow: Callable[[], Awaitable[None]], on_failure: Callable[[Exception], None], backoff: Backoff
) -> None:
    """Run `follow` until cancelled. Its exceptions go to `on_failure`; `follow` resets the back-off on success."""
    while True:
        try:
            await follow()
        except Exception as error:
            # Before Python 3.13 a task group that is cancelled while it fails reports only the failure.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from error
            on_failure(error)
        await asyncio.sleep(backoff.next_s())
