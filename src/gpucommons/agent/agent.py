"""The agent of one node: sources, sampler, exposition and listeners."""

import asyncio
import logging
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpucommons import __version__
from gpucommons.agent.accounts import Accounts
from gpucommons.agent.idle.watch import IdleWatch
from gpucommons.agent.leases.leasing import Leasing
from gpucommons.agent.parts import Part, ProblemLog
from gpucommons.agent.sampler import Sampler
from gpucommons.agent.setting_rules import check_ports
from gpucommons.agent.sharing.rules import check_parking, enforces_leases, metrics_listeners
from gpucommons.agent.sources import agent_sources
from gpucommons.base.address import parse_host_names
from gpucommons.base.backoff import Backoff
from gpucommons.config.runtime_directory import AUTO, served_socket
from gpucommons.config.settings import DcgmSettings, FleetSettings, Settings
from gpucommons.faces.dialects.all import DIALECTS, dialects
from gpucommons.faces.dialects.dcgm import CATALOGUE as DCGM_CATALOGUE
from gpucommons.faces.dialects.dcgm.collectors import Shape, parse_collectors
from gpucommons.faces.dialects.dcgm.labels import DcgmOptions
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.faces.fleet.reader import FleetReader, FleetSource
from gpucommons.faces.history.history import History
from gpucommons.faces.history.prometheus import Prometheus
from gpucommons.faces.web.http.connections import ConnectionLimits
from gpucommons.faces.web.http.server import WebServer
from gpucommons.faces.web.routes.api import Api
from gpucommons.model.snapshot import AgentReading, Snapshot
from gpucommons.simulation.scenario import Scenario
from gpucommons.sources.agent import AgentReader
from gpucommons.sources.nvml.gpm import GpmAccess

# Imported where they are used: an agent that does not share GPUs has the scheduler neither in memory nor in its start.
if TYPE_CHECKING:
    from gpucommons.agent.sharing.pausing import Enforcer
    from gpucommons.agent.sharing.sharing import Sharing
    from gpucommons.simulation.shared_lab import SharedLab

log = logging.getLogger(__name__)


class Agent:
    """`bind` opens the listeners, `begin` starts sampling, `stop` ends both."""

    def __init__(self, settings: Settings, scenario: Scenario | None = None) -> None:
        interval_s = settings.sampling.interval_s
        self.scenario = None if scenario is None else scenario.name
        accounts = Accounts(settings, self.scenario)
        self._parts: list[Part] = [accounts]
        gpm = GpmAccess()
        check_parking(settings.parking, settings.scheduler)
        lab = _shared_lab(scenario) if scenario is not None and settings.scheduler.shares_programs else None
        sharing = _sharing(settings, scenario, lab, gpm)
        if lab is not None:
            scenario = lab.scenario
        # Elsewhere the kernel does not report the user of a connection as Linux does.
        has_leases = settings.leases.enabled != "false" and sys.platform == "linux"
        enforcer = self._enforcer(settings, sharing) if has_leases and scenario is None else None
        users = None if lab is None else lab.lease_users
        ledger, jobs = (accounts.report, accounts.job) if settings.ledger.enabled else (None, None)
        leasing = Leasing(settings, scenario, enforcer, users, jobs) if has_leases else None
        idle = IdleWatch(
            settings,
            self.scenario,
            socket.gethostname(),
            sharing.park if sharing is not None and sharing.shares_programs else None,
            None if leasing is None else leasing.end_lease,
        )
        self._parts += [part for part in (sharing, leasing, idle) if part is not None]
        of_parts = [source for part in self._parts for source in part.sources()]
        sources, derive = agent_sources(
            settings,
            scenario,
            of_parts,
            AgentReader(__version__, self._complete),
            gpm=gpm,
            idle_before=idle.idle_before,
        )
        self._background = [(source.name, source.run) for source in sources if source.run is not None]
        self.sampler = Sampler(
            sources,
            interval_s=interval_s,
            hostname=socket.gethostname(),
            scenario=self.scenario,
            derive=derive,
        )
        if sharing is not None:
            sharing.read_soon = lambda: self.sampler.read_soon("nvml")
        spoken = dialects(
            dcgm=_dcgm_options(settings.dcgm),
            dcgm_shape=_dcgm_shape(settings.dcgm),
            pod_namespace=settings.vgpu.namespace_label,
            like_vgpu_monitor=settings.vgpu.like_the_program,
        )
        self.exposition = Exposition(self.sampler.latest, spoken)
        self.api = Api(
            self.sampler.latest,
            History(interval_s),
            __version__,
            _prometheus(settings),
            ledger,
            jobs,
            _fleet(settings.fleet),
        )
        self.sampler.subscribe(self.api.observe)
        default_socket = served_socket(AUTO) if settings.web.socket == AUTO else ""
        self._no_place_for_socket = settings.web.socket == AUTO and not default_socket
        self.web = WebServer(
            self.exposition,
            [*_main_listeners(settings), *_drop_in_listeners(settings)],
            optional_socket=default_socket,
            web_config=Path(settings.web.config_file) if settings.web.config_file else None,
            hosts=parse_host_names(settings.web.hosts),
            limits=ConnectionLimits(
                connections=settings.web.max_connections, unread_bytes=settings.web.max_unread_mb * 1_000_000
            ),
            api=self.api,
            show_owners=settings.privacy.show_owners,
            snapshot_stale_after_s=max(10.0, 5 * interval_s),
        )
        for part in self._parts:
            self.sampler.subscribe(part.observe)
        self._tasks: list[asyncio.Task[None]] = []

    def _enforcer(self, settings: Settings, sharing: "Sharing | None") -> "Enforcer | None":
        """The scheduler, where it has a pauser already, else a part of its own."""
        if not enforces_leases(settings):
            return None
        if sharing is not None and sharing.shares_programs:
            return sharing.scheduler
        from gpucommons.agent.sharing.pausing import Enforcing

        enforcing = Enforcing(settings)
        self._parts.append(enforcing)
        return enforcing.thread

    async def bind(self) -> None:
        """Open the listeners first: a port in use is reported before anything else happens."""
        await self.web.start()
        if self._no_place_for_socket:
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
        return [asyncio.create_task(_supervised(name, run), name=name) for name, run in self._background]

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
        return replace(
            own,
            duplicates_dropped=self.exposition.duplicates,
            dialect_failures=self.exposition.failures,
            connections_open=stats.connections_open,
            connections_refused=stats.connections_refused,
            requests=stats.requests,
            web_config_reload_ok=stats.web_config_reload_ok,
            scrapes=stats.scrapes,
        )


async def _supervised(name: str, run: Callable[[], Awaitable[None]]) -> None:
    backoff = Backoff()
    while True:
        try:
            await run()
        except Exception:
            log.exception("background task %s failed and is restarted", name)
        await asyncio.sleep(backoff.next_s())


def _main_listeners(settings: Settings) -> list[tuple[str, None]]:
    addresses = (settings.web.listen, settings.web.socket)
    return [(address, None) for address in addresses if address and address != AUTO]


def _dcgm_options(settings: DcgmSettings) -> DcgmOptions:
    return DcgmOptions(
        settings.hostname_label,
        settings.shared,
        settings.xid_count_window_ms,
        settings.clock_events_count_window_ms,
        settings.pod_uid,
        settings.replace_blanks_in_model_name,
    )


def _dcgm_shape(settings: DcgmSettings) -> Shape:
    """A list that cannot be read is not an error: images of dcgm-exporter set its path, and this agent may lack it."""
    collectors = None
    if settings.collectors:
        try:
            text = Path(settings.collectors).read_text(errors="replace")
        except OSError as error:
            log.warning("dcgm: %s: %s; all fields are served", settings.collectors, error.strerror)
        else:
            collectors, problems = parse_collectors(text, (metric.name for metric in DCGM_CATALOGUE))
            for problem in problems:
                log.warning("dcgm: %s: %s", settings.collectors, problem)
    return Shape(collectors, settings.use_old_namespace, settings.pod_labels)


def _prometheus(settings: Settings) -> Prometheus | None:
    url = settings.history.prometheus_url
    return Prometheus(url, settings.history.prometheus_selector) if url else None


def _shared_lab(scenario: Scenario) -> "SharedLab | None":
    # Imported here: it has all of the simulation, which a real agent does not need.
    from gpucommons.simulation.shared_lab import shared_lab

    return shared_lab(scenario.name)


def _sharing(
    settings: Settings, scenario: Scenario | None, lab: "SharedLab | None", gpm: GpmAccess
) -> "Sharing | None":
    if lab is None and (scenario is not None or not settings.scheduler.is_used):
        return None
    from gpucommons.agent.sharing.sharing import sharing_part, simulated_sharing

    return sharing_part(settings, gpm) if lab is None else simulated_sharing(settings, lab)


def _fleet(settings: FleetSettings) -> FleetReader | None:
    source = FleetSource(settings.prometheus_url, settings.prometheus_selector, settings.page_url)
    return FleetReader(source) if settings.prometheus_url else None


def _drop_in_listeners(settings: Settings) -> list[tuple[str, str]]:
    addresses = ((dialect.name, getattr(settings.listeners, dialect.name)) for dialect in DIALECTS)
    found = [(address, name) for name, address in addresses if address]
    found += metrics_listeners(settings.scheduler)
    check_ports(found)
    return found
