"""`gpucommons top`: the node live in a terminal, from the stream of an agent or from its own sampling."""

import asyncio
from typing import Annotated

import typer

from gpucommons.agent.agent import Agent
from gpucommons.base.address import UNIX_PREFIX, Address, UnixAddress, parse_address, parse_unix_address
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.options import ConfigFile, Simulate, load_settings, scenario_named
from gpucommons.cli.top_feed import AgentFeed, Feed, LocalFeed
from gpucommons.config.option import check_url
from gpucommons.config.settings import Settings

_EVERY_INTERFACE = ("", "0.0.0.0", "::")


def top(
    connect: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Agent to show: http://HOST:9460 or unix:/PATH. "
            "Default: the agent of this machine; if none runs, read the machine directly.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    simulate: Simulate = None,
) -> None:
    """Watch GPUs, owners and turns live in the terminal."""
    settings = load_settings(config, {}).settings
    feed = _feed(settings, connect, simulate)
    try:
        from gpucommons.cli.top_app import Top
    except ImportError as error:
        raise CommandError(
            "top: the package textual is not installed; install it with: pip install 'gpucommons[tui]'"
        ) from error
    Top(feed).run()


def _feed(settings: Settings, connect: str | None, simulate: str | None) -> Feed:
    if connect is not None:
        return AgentFeed(checked_url(connect))
    scenario = scenario_named(simulate)
    if scenario is None:
        local = AgentFeed(local_url(settings.web.listen))
        if asyncio.run(local.answers()):
            return local
    return LocalFeed(Agent(settings, scenario))


def checked_url(url: str) -> str:
    try:
        if url.startswith(UNIX_PREFIX):
            parse_unix_address(url)
        else:
            check_url(url)
    except ValueError as error:
        raise CommandError(f"--connect: {error}") from error
    return url


def local_url(listen: str) -> str:
    """The URL of a listener of this machine."""
    address = parse_address(listen)
    if isinstance(address, UnixAddress):
        return str(address)
    host = "127.0.0.1" if address.host in _EVERY_INTERFACE else address.host
    return f"http://{Address(host, address.port)}"
