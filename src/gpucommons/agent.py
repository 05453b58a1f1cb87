"""The agent put together: sources, sampler, exposition, listeners, all from settings. Decides nothing."""

import asyncio
import socket
import sys
from dataclasses import replace
from pathlib import Path

from gpucommons import __version__
from gpucommons.config.settings import Settings
from gpucommons.dialects.all import DIALECTS
from gpucommons.exposition.exposition import Exposition
from gpucommons.model.agent import AgentReading
from gpucommons.model.snapshot import Snapshot
from gpucommons.sampling.sampler import Sampler
from gpucommons.simulation.scenario import Scenario
from gpucommons.sources.agent import AgentSource
from gpucommons.sources.cpu import CpuSource
from gpucommons.sources.memory import MemorySource
from gpucommons.sources.nvml.source import NvmlSource
from gpucommons.sources.portable import PortableCpuSource, PortableMemorySource, PortableProcessSource
from gpucommons.sources.pressure import PressureSource
from gpucommons.sources.processes import ProcessSource
from gpucommons.sources.source import Source
from gpucommons.web.limits import Limits
from gpucommons.web.server import WebServer


def machine_sources(settings: Settings) -> list[Source]:
    """Everything that can be read of this machine, whether it is there or not."""
    interval_s, processes_s = settings.sampling.interval_s, settings.sampling.processes_interval_s
    procfs, busiest = Path(settings.path.procfs), settings.processes.busiest
    if sys.platform == "linux":
        return [
            CpuSource(procfs, interval_s),
            MemorySource(procfs, interval_s),
            PressureSource(procfs, interval_s),
            ProcessSource(procfs, processes_s, busiest),
            NvmlSource(procfs, interval_s),
        ]
    return [
        PortableCpuSource(interval_s),
        PortableMemorySource(interval_s),
        PortableProcessSource(processes_s, busiest),
    ]


class Agent:
    """One node's agent. `bind` opens the listeners, `begin` starts to sample, `stop` ends it all."""

    def __init__(self, settings: Settings, scenario: Scenario | None = None) -> None:
        interval_s = settings.sampling.interval_s
        self.scenario = None if scenario is None else scenario.name
        sources = machine_sources(settings) if scenario is None else scenario.sources(interval_s)
        own = AgentSource(__version__, interval_s, self._complete)
        self.sampler = Sampler(
            [*sources, own],
            interval_s=interval_s,
            hostname=socket.gethostname(),
            scenario=self.scenario,
        )
        self.exposition = Exposition(self.sampler.latest, DIALECTS)
        self.web = WebServer(
            self.exposition,
            [(settings.web.listen, None), *_drop_in_listeners(settings)],
            web_config=Path(settings.web.config_file) if settings.web.config_file else None,
            limits=Limits(connections=settings.web.max_connections),
            snapshot_stale_after_s=max(10.0, 5 * interval_s),
        )
        self._sampling: asyncio.Task[None] | None = None

    async def bind(self) -> None:
        """Open the listeners first: a port in use is known before anything else is done."""
        await self.web.start()

    async def begin(self) -> Snapshot:
        """Take the first sample, and go on from there."""
        snapshot = await self.sampler.tick()
        self._sampling = asyncio.create_task(self.sampler.run(), name="sampling")
        return snapshot

    async def stop(self) -> None:
        await self.web.stop()
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.wait([self._sampling])

    def _complete(self, own: AgentReading) -> AgentReading:
        stats = self.web.stats()
        return replace(
            own,
            duplicates_dropped=self.exposition.duplicates,
            dialect_failures=self.exposition.failures,
            connections_open=stats.connections_open,
            connections_refused=stats.connections_refused,
            requests=stats.requests,
            web_config_reload_ok=stats.web_config_reload_ok,
        )


def _drop_in_listeners(settings: Settings) -> list[tuple[str, str]]:
    addresses = ((dialect.name, getattr(settings.listeners, dialect.name)) for dialect in DIALECTS)
    return [(address, name) for name, address in addresses if address]
