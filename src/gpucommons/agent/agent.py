"""The agent of one node, put together: sources and parts, a snapshot each second, and its faces.

`Agent.__init__` is the whole of it, in the order in which values flow: parts.py has what runs by itself (accounts,
sharing, leases, messages), sources.py what is read, sampler.py the clock, faces.py what is served.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from gpucommons import __version__
from gpucommons.agent.faces import api_of, dialects_of, lacks_api_socket, web_server
from gpucommons.agent.parts import Parts, ProblemLog
from gpucommons.agent.sampler import Sampler
from gpucommons.agent.sources import agent_sources
from gpucommons.base.backoff import Backoff
from gpucommons.config.settings import Settings
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.snapshot import AgentReading, Snapshot
from gpucommons.simulation.scenario import Scenario
from gpucommons.sources.agent import AgentReader

if TYPE_CHECKING:
    from gpucommons.base.process_starts import ProcessStarts

log = logging.getLogger(__name__)


class Agent:
    """`bind` opens the listeners, `begin` starts sampling, `stop` ends both."""

    def __init__(
        self, settings: Settings, scenario: Scenario | None = None, starts: "ProcessStarts | None" = None
    ) -> None:
        self.scenario = None if scenario is None else scenario.name
        parts = Parts(settings, scenario, starts)
        own = AgentReader(__version__, self._complete)
        sources, derive = agent_sources(
            settings, parts.scenario, parts.sources(), own, gpm=parts.gpm, idle_before=parts.idle.idle_before
        )
        self.sampler = Sampler(
            sources,
            interval_s=settings.sampling.interval_s,
            hostname=socket.gethostname(),
            scenario=self.scenario,
            derive=derive,
        )
        if parts.sharing is not None:
            parts.sharing.read_soon = lambda: self.sampler.read_soon("nvml")
        self.exposition = Exposition(self.sampler.latest, dialects_of(settings))
        self.api = api_of(settings, self.sampler.latest, parts.accounts)
        self.web = web_server(settings, self.exposition, self.api)
        self._lacks_api_socket = lacks_api_socket(settings)
        self.sampler.subscribe(self.api.observe)
        for part in parts.in_order:
            self.sampler.subscribe(part.observe)
        self._parts = parts.in_order
        self._background = [(source.name, source.run) for source in sources if source.run is not None]
        self._tasks: list[asyncio.Task[None]] = []

    async def bind(self) -> None:
        """Open the listeners first: a port in use is reported before anything else happens."""
        await self.web.start()
        if self._lacks_api_socket:
            log.info("no API socket: this user has no runtime directory (XDG_RUNTIME_DIR); set web.socket to open one")
        for part in self._parts:
            await part.start()

    async def begin(self) -> Snapshot:
        """Take the first sample and keep sampling."""
        # Not for a command that only takes a sample: its log is the user's terminal.
        self.sampler.subscribe(ProblemLog().observe)
        self._tasks = self.start_background()
        snapshot = await self.sampler.tick()
        self._tasks.append(asyncio.create_task(self.sampler.run(), name="sampling"))
        return snapshot

    def start_background(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(_supervise(name, run), name=name) for name, run in self._background]

    async def stop(self) -> None:
        await self.web.stop()
        for part in self._parts:
            await part.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _complete(self, own: AgentReading) -> AgentReading:
        stats = self.web.stats()
        return own._replace(
            duplicates_dropped=self.exposition.duplicates,
            dialect_failures=self.exposition.failures,
            connections_open=stats.connections_open,
            connections_refused=stats.connections_refused,
            requests=stats.requests,
            web_config_reload_ok=stats.web_config_reload_ok,
            scrapes=stats.scrapes,
        )


async def _supervise(name: str, run: Callable[[], Awaitable[None]]) -> None:
    backoff = Backoff()
    while True:
        try:
            await run()
        except Exception:
            log.exception("background task %s failed and is restarted", name)
        await asyncio.sleep(backoff.next_s())
