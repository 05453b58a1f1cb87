"""One node's agent: sampler, exposition and listeners around the parts that the node has."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

from gpucommons import __version__
from gpucommons.agent.accounts import with_accounts
from gpucommons.agent.machine import machine_parts, scenario_parts
from gpucommons.agent.parts import supervised
from gpucommons.agent.ports import check_ports
from gpucommons.agent.sharing import metrics_listeners, with_sharing
from gpucommons.config.settings import DcgmSettings, Settings
from gpucommons.faces.dialects.all import DIALECTS, dialects
from gpucommons.faces.dialects.dcgm.labels import DcgmOptions
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.faces.history.history import History
from gpucommons.faces.history.prometheus import Prometheus
from gpucommons.model.agent import AgentReading
from gpucommons.model.snapshot import Snapshot
from gpucommons.sampling.sampler import Sampler
from gpucommons.simulation.scenario import Scenario
from gpucommons.sources.agent import AgentSource
from gpucommons.sources.alertmanager import AlertmanagerSource
from gpucommons.sources.source import Source
from gpucommons.web.http.limits import ConnectionLimits
from gpucommons.web.http.server import WebServer
from gpucommons.web.routes.api import Api


class Agent:
    """One node's agent. `bind` opens the listeners, `begin` starts to sample, `stop` ends it all."""

    def __init__(self, settings: Settings, scenario: Scenario | None = None) -> None:
        interval_s = settings.sampling.interval_s
        self.scenario = None if scenario is None else scenario.name
        parts = machine_parts(settings) if scenario is None else scenario_parts(settings, scenario)
        parts = with_accounts(parts, settings, self.scenario)
        if settings.scheduler.enabled and scenario is None:
            parts = with_sharing(parts, settings)
        own = AgentSource(__version__, interval_s, self._complete)
        self.sampler = Sampler(
            [*parts.sources, *_alerts(settings), own],
            interval_s=interval_s,
            hostname=socket.gethostname(),
            scenario=self.scenario,
            derive=parts.derive,
        )
        spoken = dialects(dcgm=_dcgm_options(settings.dcgm), pod_namespace=settings.vgpu.namespace_label)
        self.exposition = Exposition(self.sampler.latest, spoken)
        self.api = Api(self.sampler.latest, History(interval_s), __version__, _prometheus(settings))
        self.sampler.subscribe(self.api.observe)
        self.web = WebServer(
            self.exposition,
            [*_main_listeners(settings), *_drop_in_listeners(settings)],
            web_config=Path(settings.web.config_file) if settings.web.config_file else None,
            limits=ConnectionLimits(connections=settings.web.max_connections),
            api=self.api,
            show_owners=settings.privacy.show_owners,
            snapshot_stale_after_s=max(10.0, 5 * interval_s),
        )
        self._background = parts.background
        self._services = parts.services
        for observer in parts.observers:
            self.sampler.subscribe(observer)
        self._tasks: list[asyncio.Task[None]] = []

    async def bind(self) -> None:
        """Open the listeners first: a port in use is known before anything else is done."""
        await self.web.start()
        for service in self._services:
            await service.start()

    async def begin(self) -> Snapshot:
        """Take the first sample, and go on from there."""
        self._tasks = self.start_background()
        snapshot = await self.sampler.tick()
        self._tasks.append(asyncio.create_task(self.sampler.run(), name="sampling"))
        return snapshot

    def start_background(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(supervised(part), name=part.name) for part in self._background]

    async def stop(self) -> None:
        await self.web.stop()
        for service in self._services:
            await service.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

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


def _main_listeners(settings: Settings) -> list[tuple[str, None]]:
    return [(address, None) for address in (settings.web.listen, settings.web.socket) if address]


def _dcgm_options(settings: DcgmSettings) -> DcgmOptions:
    return DcgmOptions(
        settings.hostname_label, settings.shared, settings.xid_count_window_ms, settings.clock_events_count_window_ms
    )


def _prometheus(settings: Settings) -> Prometheus | None:
    url = settings.history.prometheus_url
    return Prometheus(url, settings.history.prometheus_selector) if url else None


def _alerts(settings: Settings) -> list[Source]:
    url = settings.alerts.alertmanager_url
    return [AlertmanagerSource(url)] if url else []


def _drop_in_listeners(settings: Settings) -> list[tuple[str, str]]:
    addresses = ((dialect.name, getattr(settings.listeners, dialect.name)) for dialect in DIALECTS)
    found = [(address, name) for name, address in addresses if address]
    found += metrics_listeners(settings.scheduler)
    check_ports(found)
    return found
