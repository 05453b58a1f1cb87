"""What the agent is made of on one node: the sources, what is derived from them, what runs beside them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from gpucommons.base.backoff import Backoff
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.sources.source import Source


@dataclass(frozen=True, slots=True)
class Background:
    """A task that runs for as long as the agent does; it is started again should it fail."""

    name: str
    run: Callable[[], Awaitable[None]]


class Service(Protocol):
    """A part that serves somebody itself. `start` raises an OSError or ListenError of one line."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """`observers` are given every snapshot, on the event loop."""

    sources: list[Source]
    derive: Callable[[Readings], Readings] = lambda readings: readings
    background: list[Background] = field(default_factory=list)
    services: list[Service] = field(default_factory=list)
    observers: list[Callable[[Snapshot], None]] = field(default_factory=list)


log = logging.getLogger(__name__)


async def supervised(background: Background) -> None:
    backoff = Backoff()
    while True:
        try:
            await background.run()
        except Exception:
            log.exception("background task %s failed; it is started again", background.name)
        await asyncio.sleep(backoff.next_s())
