"""The `gpucommons` command. Only the requested subcommand is imported: importing all of them takes most of a second."""

import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated, Final

import typer

from gpucommons.cli.command_line import command_group, run
from gpucommons.cli.completion import COMPLETE_VARIABLE, PROGRAM, completed_command
from gpucommons.cli.version import version

# In the order of --help. Each is a module of this package that holds a function of the same name, or an `app`.
_COMMANDS: Final = (
    "up",
    "run",
    "queue",
    "cancel",
    "reserve",
    "reservations",
    "unreserve",
    "gpus",
    "free",
    "me",
    "why",
    "who",
    "top",
    "allocations",
    "report",
    "events",
    "sample",
    "check_config",
    "stress",
    "park",
    "wake",
    "parked",
    "resume",
    "completion",
    "version",
)
_GROUPS: Final = ("scheduler", "stack")
COMMANDS: Final = (*_COMMANDS, *_GROUPS)


def _print_version(requested: bool) -> None:
    if requested:
        version()
        raise typer.Exit()


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """The options of `gpucommons` itself. Typer needs a callback to keep subcommands when only one is added."""


def command_line(names: Iterable[str]) -> typer.Typer:
    """The `gpucommons` command with the named subcommands."""
    app = command_group(
        PROGRAM, "Show who uses each GPU, share GPUs fairly and keep accounts of their use: one agent per node."
    )
    app.callback()(_options)
    for name in names:
        module = import_module(f"gpucommons.cli.{name}")
        if name in _GROUPS:
            app.add_typer(module.app, name=name)
        else:
            app.command(context_settings=getattr(module, "CONTEXT_SETTINGS", None))(getattr(module, name))
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if len(given) == 1 and given[0] in _GROUPS:
        given.append("--help")
    first = given[0]
    if COMPLETE_VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
        first = completed_command(os.environ)
    requested = [name for name in COMMANDS if name.replace("_", "-") == first.removeprefix("--")]
    run(command_line(requested or COMMANDS), PROGRAM, given)
