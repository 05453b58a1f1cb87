"""`gpucommons top`: one or several nodes live in a terminal, from the streams of agents or from its own sampling."""

from typing import Annotated

import typer

from gpucommons.cli.agent_client import AgentAddress, NoAnswer, get, named_address
from gpucommons.cli.command_line import AgentUnreachable, CommandError
from gpucommons.cli.options import (
    CaFile,
    ConfigFile,
    PasswordFile,
    Simulate,
    load_settings,
    scenario_named,
)
from gpucommons.cli.reader import Reader
from gpucommons.cli.top_feed import AgentFeed, Feed, LocalFeed

# Of several nodes, each is given this to answer before the view begins.
_ANSWER_S = 3.0

Connects = Annotated[
    list[str] | None,
    typer.Option(
        "--connect",
        metavar="URL|SOCKET",
        help="Agent to ask: http://HOST:9460, https://HOST:9460 or /PATH of its socket; more than once for several "
        "nodes. Default: the agent of this machine; if none runs, read the machine directly.",
        show_default=False,
    ),
]


def top(
    connect: Connects = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
    config: ConfigFile = None,
    simulate: Simulate = None,
) -> None:
    """Watch GPUs, processes and turns live in the terminal."""
    named = connect or []
    reader = Reader(named[0] if named else None, password_file, ca_file, config, simulate)
    feeds = (
        [_feed(reader)]
        if len(named) < 2
        else several_feeds([named_address(one, password_file, ca_file) for one in named])
    )
    try:
        from gpucommons.cli.top_app import Top
    except ImportError as error:
        raise CommandError(
            "top: the package textual is not installed; install it with: pip install 'gpucommons[tui]'"
        ) from error
    Top(feeds, config).run()


def several_feeds(addresses: list[AgentAddress]) -> list[Feed]:
    """A node that does not answer is shown as such; one that answers is enough to begin."""
    reasons: list[str] = []
    for address in addresses:
        try:
            get(address, "", within_s=_ANSWER_S)
            break
        except NoAnswer as error:
            reasons.append(str(error))
    else:
        raise AgentUnreachable(f"no answer of any agent: {'; '.join(reasons)}")
    return [AgentFeed(address) for address in addresses]


def _feed(reader: Reader) -> Feed:
    agent = reader.find_agent()
    if agent is not None:
        return AgentFeed(agent)
    # Imported here: with an agent, it is not needed.
    from gpucommons.agent.agent import Agent

    reader.say_alone("this command reads the machine itself")
    return LocalFeed(Agent(load_settings(reader.config, {}).settings, scenario_named(reader.simulate)))
