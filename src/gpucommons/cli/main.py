"""The `gpucommons` command: gathers the commands.

Only the one that is asked for is loaded: all of them take most of a second, and memory that the agent would keep.
"""

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Final

import typer

from gpucommons.cli.run import command_group, run

# In the order of --help. Each is a module of this package: with a function of its name, or with an `app` of its own.
_COMMANDS: Final = (
    "up",
    "gpus",
    "who",
    "top",
    "allocations",
    "report",
    "events",
    "sample",
    "check_config",
    "stress",
    "resume",
    "version",
)
_GROUPS: Final = ("scheduler", "stack")


def command_line(names: Iterable[str]) -> typer.Typer:
    """The command with these of its commands."""
    app = command_group(
        "gpucommons", "See who uses each GPU, share it fairly, and keep the accounts: one agent per node."
    )
    # Without this a single command would be taken for the whole.
    app.callback()(lambda: None)
    for name in names:
        module = import_module(f"gpucommons.cli.{name}")
        if name in _GROUPS:
            app.add_typer(module.app, name=name)
        else:
            app.command()(getattr(module, name))
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    every = (*_COMMANDS, *_GROUPS)
    asked = [name for name in every if name.replace("_", "-") == given[0]]
    run(command_line(asked or every), "gpucommons", given)


if __name__ == "__main__":
    main()
