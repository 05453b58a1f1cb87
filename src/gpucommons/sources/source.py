"""What the sampling clock asks of a source, and how a source says that it has nothing to read."""

from typing import Literal, Protocol


class Source(Protocol):
    """Reads one thing. `read` returns a value of `produces`, for the field `feeds` of Readings.

    A "thread" source may block: it has a daemon thread of its own, so that a hang costs only its
    readings. A "loop" source hands over what it already holds and must not block at all.
    """

    @property
    def name(self) -> str: ...
    @property
    def feeds(self) -> str: ...
    @property
    def produces(self) -> type: ...
    @property
    def cadence_s(self) -> float: ...
    @property
    def deadline_s(self) -> float: ...
    @property
    def essential(self) -> bool: ...
    @property
    def runs_on(self) -> Literal["thread", "loop"]: ...

    def read(self) -> object: ...


class SourceError(Exception):
    """A read failed for a known reason. The reason is a label value: a short constant, never data."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class SourceStarting(SourceError):
    """Nothing to read yet: a background task has been started and has not answered. Not a failure."""

    def __init__(self, detail: str) -> None:
        super().__init__("starting", detail)


class SourceAbsent(Exception):
    """What this source reads is not on this node. `remedy` tells the admin how to get it."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.remedy = remedy
