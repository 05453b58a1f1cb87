"""`gpucommons up`: run the agent in the foreground until SIGINT or SIGTERM. SIGHUP reloads the web configuration."""

import asyncio
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpucommons.base.capabilities import CAP_PERFMON, drop_capability
from gpucommons.base.loading import loading
from gpucommons.base.text import printable
from gpucommons.cli import logs
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.options import ConfigFile, Procfs, Simulate, load_settings
from gpucommons.cli.output import has_live_line, show_error

# Imported where they are used: `up --help` and a wrong flag need no agent.
if TYPE_CHECKING:
    from gpucommons.agent.agent import Agent
    from gpucommons.base.process_starts import ProcessStarts
    from gpucommons.model.snapshot import Snapshot

log = logging.getLogger(__name__)
_ANSWERED_S = 3.0


def up(
    config: ConfigFile = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Address of the main listener. Default: 127.0.0.1:9460.", show_default=False
        ),
    ] = None,
    simulate: Simulate = None,
    web_config_file: Annotated[
        str | None,
        typer.Option(
            "--web.config.file",
            metavar="FILE",
            help="File with TLS, client certificates and passwords, in the web.config.file format of Prometheus.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Seconds between two snapshots. Default: 1.", show_default=False),
    ] = None,
    scheduler: Annotated[
        bool, typer.Option("--scheduler", help="Schedule the clients of nvshare and XPUShare on shared GPUs.")
    ] = False,
    share: Annotated[
        bool,
        typer.Option(
            "--share", help="Let plain programs take fair turns on shared GPUs: all as root, else the user's own."
        ),
    ] = False,
    procfs: Procfs = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="human|json", help="Format of log lines. Default: human.", show_default=False)
    ] = None,
) -> None:
    """Run the agent in the foreground until Ctrl-C or SIGTERM. SIGHUP reloads the web configuration."""
    loaded = load_settings(
        config,
        {
            "web.listen": ("--listen", listen),
            "web.config_file": ("--web.config.file", web_config_file),
            "sampling.interval_s": ("--interval", interval),
            "path.procfs": ("--path.procfs", procfs),
            "scheduler.enabled": ("--scheduler", scheduler or None),
            "scheduler.share_programs": ("--share", _share_scope(simulate) if share else None),
            "log.format": ("--log-format", log_format),
        },
    )
    with loading():
        import uvloop

        from gpucommons.agent.agent import Agent
        from gpucommons.agent.memory import return_freed_memory
        from gpucommons.agent.setting_rules import find_scenario

    settings = loaded.settings
    scenario = find_scenario(simulate)
    logs.configure(settings.log.format, settings.log.level)
    for warning in loaded.warnings:
        log.warning("configuration: %s", warning)
    return_freed_memory()
    # Before the first thread, which would keep the capability that this needs.
    starts = _recorded_starts() if settings.scheduler.enabled and scenario is None else None
    if sys.platform == "linux":
        _drop_privilege()
    agent = Agent(settings, scenario, starts)
    uvloop.run(_run(agent, shares=settings.scheduler.share_programs != "off"))


def _recorded_starts() -> "ProcessStarts | None":
    from gpucommons.base.process_starts import recorded_starts

    return recorded_starts()


def _drop_privilege() -> None:
    """The service has CAP_PERFMON only to open the record of starts; it must not be able to profile other processes."""
    try:
        drop_capability(CAP_PERFMON)
    except OSError as error:
        log.warning("CAP_PERFMON cannot be given up: %s", error)


def _share_scope(simulate: str | None) -> str:
    """Only root, or the pauser that runs as a service, may pause the programs of other users."""
    from gpucommons.pauser.places import SERVICE_SOCKET

    return "all" if simulate or os.geteuid() == 0 or SERVICE_SOCKET.exists() else "own"


async def _run(agent: "Agent", shares: bool) -> None:
    from gpucommons.agent.memory import GarbageCollection, shorten_pauses
    from gpucommons.faces.web.access.web_config import WebConfigError

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    reloads: set[asyncio.Task[None]] = set()
    loop.add_signal_handler(signal.SIGHUP, _reload, agent, reloads)
    try:
        await agent.bind()
    except (OSError, WebConfigError) as error:
        raise CommandError(str(error)) from error
    _announce(agent)
    first = await agent.begin()
    if agent.scenario is None and not _has_gpus(first):
        nvml = first.sources.get("nvml")
        why = f": {nvml.detail}" if nvml is not None and nvml.detail else ""
        log.info("no GPU found%s; to see a simulated node with GPUs: gpucommons up --simulate lab", why)
    if has_live_line():
        show_error(printable(f"next: {_next_step(agent, first, shares)}"))
    shorten_pauses()
    garbage = GarbageCollection()
    agent.sampler.subscribe(garbage.observe)
    listing = asyncio.create_task(_list_absent_sources(agent), name="absent-sources")
    await stop.wait()
    log.info("stopping")
    garbage.stop()
    listing.cancel()
    await agent.stop()


async def _list_absent_sources(agent: "Agent") -> None:
    """One line for all of them, once those that ask a socket have had their answer."""
    await asyncio.sleep(_ANSWERED_S)
    latest = agent.sampler.latest()
    sources = latest.sources.items() if latest is not None else ()
    absent = [name for name, state in sources if state.absent and not state.essential and name != "nvml"]
    if absent:
        log.info("not on this machine: %s; the page lists what each needs (Sources)", ", ".join(absent))


def _reload(agent: "Agent", reloads: set[asyncio.Task[None]]) -> None:
    # The loop keeps no reference to a task.
    reload = asyncio.get_running_loop().create_task(agent.web.reload(), name="web-reload")
    reloads.add(reload)
    reload.add_done_callback(reloads.discard)


def _announce(agent: "Agent") -> None:
    if agent.scenario is not None:
        log.warning("SIMULATED: the values are those of scenario %s, not of this machine", agent.scenario)
    for address in agent.web.addresses:
        if address.dialect is not None:
            log.info("metrics %s/metrics (%s dialect alone)", address.url, address.dialect)
        elif address.url.startswith("unix:"):
            log.info("API     %s (each user sees what ps shows)", address.url)
        else:
            log.info("page    %s/", address.url)
            log.info("metrics %s/metrics", address.url)


def _next_step(agent: "Agent", first: "Snapshot", shares: bool) -> str:
    """The one thing to do next, for the person at the terminal."""
    page = next((address.url for address in agent.web.addresses if address.url.startswith("http")), "")
    if agent.scenario is None and not _has_gpus(first):
        return "stop it with Ctrl-C and try the simulated node: gpucommons up --simulate lab"
    if agent.scenario is None and shares:
        return "start GPU programs as usual; see them share in another terminal: gpucommons scheduler status --watch"
    return f"open {page}/ in a browser" if page else "in another terminal: gpucommons top"


def _has_gpus(snapshot: "Snapshot") -> bool:
    state = snapshot.sources.get("nvml")
    return state is not None and not state.absent
