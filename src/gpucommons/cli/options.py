"""Options that several commands share, and loading the settings."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpucommons.cli.command_line import CommandError
from gpucommons.config.load import Flag, LoadedSettings, load
from gpucommons.config.option import ConfigError

if TYPE_CHECKING:
    # Attribution and the whole model come with it: two thirds of the start of a small command.
    from gpucommons.simulation.scenario import Scenario

ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file with the settings.", show_default=False)
]
Simulate = Annotated[
    str | None,
    typer.Option(
        "--simulate",
        metavar="NAME",
        help="Simulate a node instead of reading this machine: lab or faults.",
        show_default=False,
    ),
]
Procfs = Annotated[
    str | None,
    typer.Option(
        "--path.procfs",
        metavar="DIR",
        help="Directory of procfs; in a container, the host's /proc. Default: /proc.",
        show_default=False,
    ),
]


def load_settings(file: Path | None, flags: dict[str, tuple[str, object]]) -> LoadedSettings:
    """`flags` maps a key to (flag, value); None means that the flag was not given. Raises CommandError."""
    given = {path: Flag(value, name) for path, (name, value) in flags.items() if value is not None}
    try:
        return load(file, os.environ, given)
    except ConfigError as error:
        raise CommandError(str(error)) from error


def scenario_named(name: str | None) -> "Scenario | None":
    if name is None:
        return None
    # Imported here: an agent that simulates nothing does not need the scenarios in memory.
    from gpucommons.simulation.scenarios import SCENARIOS

    if name not in SCENARIOS:
        raise CommandError(f"--simulate: unknown scenario {name!r}; use {' or '.join(SCENARIOS)}")
    return SCENARIOS[name]
