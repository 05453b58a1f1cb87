"""Options that several commands share, and loading the settings."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpucommons.cli.command_line import CommandError
from gpucommons.cli.text_table import Format
from gpucommons.config.option import ConfigError

# Imported where it is used: a command that asks the agent needs no settings.
if TYPE_CHECKING:
    from gpucommons.config.load import LoadedSettings

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
Connect = Annotated[
    str | None,
    typer.Option(
        "--connect",
        metavar="URL|SOCKET",
        help="Agent to ask: http://HOST:9460, https://HOST:9460 or /PATH of its socket. "
        "Default: the agent of this machine; if none runs, read the machine directly.",
        show_default=False,
    ),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="File with USER:PASSWORD for the agent of --connect.",
        show_default=False,
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        metavar="FILE",
        help="Certificate of the authority that signed the certificate of the agent of --connect. "
        "Default: those of the system.",
        show_default=False,
    ),
]
TableFormat = Annotated[Format, typer.Option("--format", help="Output format; json is the API's document.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def load_settings(file: Path | None, flags: dict[str, tuple[str, object]]) -> "LoadedSettings":
    """`flags` maps a key to (flag, value); None means that the flag was not given. Raises CommandError."""
    from gpucommons.config.load import Flag, load

    given = {path: Flag(value, name) for path, (name, value) in flags.items() if value is not None}
    try:
        return load(file, os.environ, given)
    except ConfigError as error:
        raise CommandError(str(error)) from error
