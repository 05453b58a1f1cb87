"""A source: what is read, how and how often, and the exceptions of a read that has no reading.

Shared by sources: the latest result of a background task, and JSON from other programs, of which each value has the
expected type or is empty.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Generic, Literal, NamedTuple, TypeVar

from gpucommons.base.backoff import Backoff


class Source(NamedTuple):
    """`read` returns a `produces` for the field `feeds` of Readings. To wrap a source, replace its `read`.

    A "thread" source may block: it has its own daemon thread, so that a hung read costs only its own reading. Sources
    with the same `thread` are read on one, one after the other. `read_at_once`, on the loop, returns the reading where
    nothing has to be read for it, else None: an idle thread is not woken each second. A "loop" source returns what it
    already holds and must not block. `run`, if set, is the background task that keeps it current. A read may take
    `deadline_s`, or one cadence if that is longer. The agent is ready once every `essential` source has a reading.
    """

    name: str
    feeds: str
    produces: type
    read: Callable[[], object]
    cadence_s: float = 1.0
    deadline_s: float = 2.0
    essential: bool = False
    runs_on: Literal["thread", "loop"] = "thread"
    thread: str = ""
    read_at_once: Callable[[], object | None] = lambda: None
    run: Callable[[], Awaitable[None]] | None = None


class SourceError(Exception):
    """A read failed for a known reason. The reason is a label value: a short constant, never data.

    `remedy` is what the administrator can do about it, where the source knows that.
    """

    def __init__(self, reason: str, detail: str, remedy: str = "") -> None:
        super().__init__(detail)
        self.reason = reason
        self.remedy = remedy


class SourceStarting(SourceError):
    """Nothing to read yet: a background task has started and has no result so far. Not a failure."""

    def __init__(self, detail: str) -> None:
        super().__init__("starting", detail)


class SourceAbsent(Exception):
    """What this source reads does not exist on this node. `remedy` is what the administrator can do about it."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.remedy = remedy


# The latest result of a background task: a value, or the reason why there is none. Does no I/O.

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


# Reads JSON from other programs: each value has the expected type or is empty. Never raises on a value.
#
# Strings can always be encoded as UTF-8, whatever escapes they contained.

JsonObject = Mapping[str, object]


def parse(data: bytes, whose: str) -> object:
    """The document in `data`. Invalid or too deeply nested JSON is a SourceError."""
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError("garbage", f"the response of {whose} is not JSON: {error}") from None
    return document


def mapping(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def items(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def text(value: object) -> str:
    if not isinstance(value, str):
        return ""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def texts(value: object) -> tuple[str, ...]:
    return tuple(text(item) for item in items(value) if isinstance(item, str))


def text_mapping(value: object) -> dict[str, str]:
    return {text(key): text(item) for key, item in mapping(value).items() if isinstance(item, str)}


def integer(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def wall_s(value: object) -> float | None:
    """An RFC 3339 time in seconds since 1970. None for the year 1, which runtimes write for "never"."""
    try:
        parsed_s = datetime.fromisoformat(text(value)).timestamp()
    except (ValueError, OverflowError):
        return None
    return parsed_s if parsed_s > 0 and math.isfinite(parsed_s) else None
