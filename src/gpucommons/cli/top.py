"""`gpucommons top`: the node live in a terminal, from the stream of an agent or from its own sampling."""

from gpucommons.cli.command_line import CommandError
from gpucommons.cli.options import (
    CaFile,
    ConfigFile,
    Connect,
    PasswordFile,
    Simulate,
    load_settings,
    scenario_named,
)
from gpucommons.cli.reader import Reader
from gpucommons.cli.top_feed import AgentFeed, Feed, LocalFeed


def top(
    connect: Connect = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
    config: ConfigFile = None,
    simulate: Simulate = None,
) -> None:
    """Watch GPUs, owners and turns live in the terminal."""
    feed = _feed(Reader(connect, password_file, ca_file, config, simulate))
    try:
        from gpucommons.cli.top_app import Top
    except ImportError as error:
        raise CommandError(
            "top: the package textual is not installed; install it with: pip install 'gpucommons[tui]'"
        ) from error
    Top(feed).run()


def _feed(reader: Reader) -> Feed:
    agent = reader.find_agent()
    if agent is not None:
        return AgentFeed(agent)
    # Imported here: with an agent, it is not needed.
    from gpucommons.agent.agent import Agent

    reader.say_alone("this command reads the machine itself")
    return LocalFeed(Agent(load_settings(reader.config, {}).settings, scenario_named(reader.simulate)))
