"""`gpucommons top`: the node live in a terminal, from an agent's stream or from sampling of its own."""

import asyncio
from typing import Annotated

import typer

from gpucommons.agent.agent import Agent
from gpucommons.base.address import Address, UnixAddress, parse_address
from gpucommons.cli.options import ConfigFile, Simulate, load_settings, scenario_named
from gpucommons.cli.run import CommandError
from gpucommons.cli.top_feed import AgentFeed, Feed, LocalFeed
from gpucommons.config.settings import Settings

_EVERYWHERE = ("", "0.0.0.0", "::")


def top(
    connect: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The agent of another node (http://HOST:9460) or a socket (unix:/PATH). "
            "Default: the one on this machine, and where none runs, this machine itself.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    simulate: Simulate = None,
) -> None:
    """Watch the GPUs, who uses them and whose turn it is, live in the terminal."""
    settings = load_settings(config, {}).settings
    feed = _feed(settings, connect, simulate)
    try:
        from gpucommons.cli.top_app import Top
    except ImportError as error:
        raise CommandError("'gpucommons top' needs textual: pip install 'gpucommons[tui]'") from error
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
    scheme, separator, rest = url.partition("://")
    if (separator and scheme in ("http", "https") and rest) or url.startswith("unix:/"):
        return url
    raise CommandError(f"--connect: wants http://HOST:PORT, https://HOST:PORT or unix:/PATH, not {url!r}")


def local_url(listen: str) -> str:
    """How to reach from here what listens there."""
    address = parse_address(listen)
    if isinstance(address, UnixAddress):
        return str(address)
    host = "127.0.0.1" if address.host in _EVERYWHERE else address.host
    return f"http://{Address(host, address.port)}"
