"""A source: what is read, how and how often. And the exceptions that a read raises when it has no reading."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Source:
    """`read` returns a `produces` for the field `feeds` of Readings. To wrap a source, replace its `read`.

    A "thread" source may block: it has its own daemon thread, so that a hung read costs only its own reading. A "loop"
    source returns what it already holds and must not block. `run`, if set, is the background task that keeps it
    current. A read may take `deadline_s`, or one cadence if that is longer. The agent is ready once every `essential`
    source has a reading.
    """

    name: str
    feeds: str
    produces: type
    read: Callable[[], object]
    cadence_s: float = 1.0
    deadline_s: float = 2.0
    essential: bool = False
    runs_on: Literal["thread", "loop"] = "thread"
    run: Callable[[], Awaitable[None]] | None = None


class SourceError(Exception):
    """A read failed for a known reason. The reason is a label value: a short constant, never data."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class SourceStarting(SourceError):
    """Nothing to read yet: a background task has started and has no result so far. Not a failure."""

    def __init__(self, detail: str) -> None:
        super().__init__("starting", detail)


class SourceAbsent(Exception):
    """What this source reads does not exist on this node. `remedy` is what the administrator can do about it."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.remedy = remedy
