"""`gpucommons up`: the agent, in the foreground, until SIGINT or SIGTERM."""

import asyncio
import logging
import signal
from typing import Annotated

import typer
import uvloop

from gpucommons.agent.agent import Agent
from gpucommons.agent.garbage import collect_garbage_periodically, shorten_pauses
from gpucommons.base.unix_listener import ListenError as SchedulerListenError
from gpucommons.cli import logs
from gpucommons.cli.options import ConfigFile, Procfs, Simulate, load_settings, scenario_named
from gpucommons.cli.run import CommandError
from gpucommons.model.snapshot import Snapshot
from gpucommons.web.access.web_config import WebConfigError

log = logging.getLogger(__name__)


def up(
    config: ConfigFile = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Main listener. Default: 127.0.0.1:9460.", show_default=False),
    ] = None,
    simulate: Simulate = None,
    web_config_file: Annotated[
        str | None,
        typer.Option(
            "--web.config.file",
            metavar="FILE",
            help="TLS, client certificates and passwords, in the format of Prometheus's exporters.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Time between two snapshots. Default: 1.", show_default=False),
    ] = None,
    scheduler: Annotated[
        bool, typer.Option("--scheduler", help="Serve clients of nvshare and XPUShare: fair turns on shared GPUs.")
    ] = False,
    procfs: Procfs = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="human|json", help="How log lines look.", show_default=False)
    ] = None,
) -> None:
    """Run the agent in the foreground until Ctrl-C or SIGTERM."""
    loaded = load_settings(
        config,
        {
            "web.listen": ("--listen", listen),
            "web.config_file": ("--web.config.file", web_config_file),
            "sampling.interval_s": ("--interval", interval),
            "path.procfs": ("--path.procfs", procfs),
            "scheduler.enabled": ("--scheduler", scheduler or None),
            "log.format": ("--log-format", log_format),
        },
    )
    settings = loaded.settings
    scenario = scenario_named(simulate)
    logs.configure(settings.log.format, settings.log.level)
    for warning in loaded.warnings:
        log.warning("configuration: %s", warning)
    uvloop.run(_run(Agent(settings, scenario)))


async def _run(agent: Agent) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        await agent.bind()
    except (OSError, WebConfigError, SchedulerListenError) as error:
        raise CommandError(str(error)) from error
    _announce(agent)
    first = await agent.begin()
    if agent.scenario is None and not _has_gpus(first):
        log.info("to see a node with GPUs, simulated: make demo (gpucommons up --simulate lab)")
    shorten_pauses()
    collecting = asyncio.create_task(collect_garbage_periodically(), name="garbage")
    await stop.wait()
    log.info("stopping")
    collecting.cancel()
    await agent.stop()


def _announce(agent: Agent) -> None:
    if agent.scenario is not None:
        log.warning("SIMULATED: scenario %s is being played, nothing of this machine is measured", agent.scenario)
    main, *others = agent.web.addresses
    log.info("page    %s/", main.url)
    log.info("metrics %s/metrics", main.url)
    for address in others:
        if address.dialect is None:
            log.info("API     %s (each sees their own rows)", address.url)
        else:
            log.info("metrics %s/metrics (%s dialect alone)", address.url, address.dialect)


def _has_gpus(snapshot: Snapshot) -> bool:
    state = snapshot.sources.get("nvml")
    return state is not None and not state.absent
