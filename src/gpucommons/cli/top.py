"""`gpucommons top`: one or several nodes live in a terminal, from the streams of agents or from its own sampling."""

import os
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gpucommons.cli.agent_client import AgentAddress, NoAnswer, get, named_address
from gpucommons.cli.command_line import AgentUnreachable, CommandError
from gpucommons.cli.options import (
    CaFile,
    ConfigFile,
    PasswordFile,
    Simulate,
    load_settings,
)
from gpucommons.cli.output import shows_unicode
from gpucommons.cli.reader import Reader
from gpucommons.cli.top_feed import AgentFeed, Feed, LocalFeed
from gpucommons.cli.top_options import EVERY_GPU, VISIBLE, GpuChoice, Look, choice_of, unknown_names

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


Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        "-o",
        metavar="GPU",
        help="Show only these GPUs: 0,1 or 6.0 (a MIG device) or a UUID; more than once for several; all: every GPU. "
        "Default: those of CUDA_VISIBLE_DEVICES that are named there by UUID, else all.",
        show_default=False,
    ),
]
Ascii = Annotated[
    bool, typer.Option("--ascii", "-U", help="Only ASCII characters. Default where the terminal has no others.")
]
Light = Annotated[bool, typer.Option("--light", help="Colours for a terminal with a light background.")]


def top(
    only: Only = None,
    ascii: Ascii = False,
    light: Light = False,
    connect: Connects = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
    config: ConfigFile = None,
    simulate: Simulate = None,
) -> None:
    """Watch GPUs, processes and turns live in the terminal."""
    named = connect or []
    choice = choice_of(only or [], {} if named or simulate else os.environ)
    reader = Reader(named[0] if named else None, password_file, ca_file, config, simulate)
    feeds = (
        [_feed(reader)]
        if len(named) < 2
        else several_feeds([named_address(address, password_file, ca_file) for address in named])
    )
    if choice.names and reader.agent is not None:
        choice = check_choice(reader.get("gpus"), choice)
    try:
        from gpucommons.cli.top_app import Top
    except ImportError as error:
        raise CommandError(
            "top: the package textual is not installed; install it with: pip install 'gpucommons[tui]'"
        ) from error
    Top(feeds, config, choice, Look(ascii or not shows_unicode(), light)).run()


def check_choice(document: Mapping[str, Any], choice: GpuChoice) -> GpuChoice:
    """Raises CommandError for a GPU of -o that the node does not have. The variable may mean another machine's."""
    unknown = unknown_names(document, choice)
    if unknown and choice.origin != VISIBLE:
        gpus = (document["gpus"] or {"by_uuid": {}})["by_uuid"].values()
        names = [
            name
            for gpu in gpus
            for name in (str(gpu["index"]), *(instance["slot"] for instance in gpu["mig"].values()))
        ]
        raise CommandError(f"-o {unknown[0]}: the node has no such GPU; it has {', '.join(names) or 'none'}")
    return EVERY_GPU if unknown else choice


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
    from gpucommons.agent.setting_rules import find_scenario

    reader.say_alone("this command reads the machine itself")
    return LocalFeed(Agent(load_settings(reader.config, {}).settings, find_scenario(reader.simulate)))
