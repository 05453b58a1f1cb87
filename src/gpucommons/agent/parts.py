"""What the agent is made of on one node: the sources, what is derived from them, what runs beside them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from gpucommons.model.snapshot import Readings
from gpucommons.sources.source import Source


@dataclass(frozen=True, slots=True)
class Background:
    """A task that runs for as long as the agent does; it is started again should it fail."""

    name: str
    run: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Parts:
    sources: list[Source]
    derive: Callable[[Readings], Readings] = lambda readings: readings
    background: list[Background] = field(default_factory=list)
