"""What several commands share: the flags that name settings, and settings loaded or refused in one line."""

import os
from pathlib import Path
from typing import Annotated

import typer

from gpucommons.cli.run import CommandError
from gpucommons.config.load import Flag, LoadedSettings, load
from gpucommons.config.option import ConfigError
from gpucommons.simulation.scenario import Scenario

ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file with settings.", show_default=False)
]
Simulate = Annotated[
    str | None,
    typer.Option(
        "--simulate",
        metavar="NAME",
        help="Play a scenario instead of reading this machine: lab or faults.",
        show_default=False,
    ),
]
Procfs = Annotated[
    str | None,
    typer.Option(
        "--path.procfs",
        metavar="DIR",
        help="Where /proc is (in a container: the host's).",
        show_default=False,
    ),
]


def load_settings(file: Path | None, flags: dict[str, tuple[str, object]]) -> LoadedSettings:
    """`flags` maps a key to (flag, value); a flag that was not given has the value None."""
    given = {path: Flag(value, name) for path, (name, value) in flags.items() if value is not None}
    try:
        return load(file, os.environ, given)
    except ConfigError as error:
        raise CommandError(str(error)) from error


def scenario_named(name: str | None) -> Scenario | None:
    if name is None:
        return None
    # Not at the top: an agent that plays nothing need not know the plays.
    from gpucommons.simulation.scenarios import SCENARIOS

    if name not in SCENARIOS:
        raise CommandError(f"no scenario '{name}'; there are: {', '.join(SCENARIOS)}")
    return SCENARIOS[name]
