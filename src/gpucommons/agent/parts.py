"""Parts of the agent that run by themselves: accounts, scheduler, leases and the ladder of idle holders."""

from typing import Protocol

from gpucommons.model.snapshot import Snapshot
from gpucommons.sources.source import Source


class Part(Protocol):
    """`observe` gets every snapshot, on the event loop. `start` raises an OSError or ListenError of one line."""

    def sources(self) -> list[Source]: ...
    def observe(self, snapshot: Snapshot) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
