"""How every command line of ours is made and run: each failure is one line on stderr and exit status 2."""

import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from gpucommons.config.option import ConfigError


class CommandError(Exception):
    """The one line that the user reads."""


def command_group(name: str, help: str) -> typer.Typer:
    """Commands that look and fail as ours do."""
    return typer.Typer(
        name=name,
        help=help,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def run(command: typer.Typer, name: str, arguments: Sequence[str]) -> NoReturn:
    """Run and exit. Reading stops being fun when a pipe closes, so that is no error."""
    try:
        status = command(args=list(arguments), prog_name=name, standalone_mode=False)
    except (CommandError, ConfigError) as error:
        status = _fail(name, str(error))
    except typer.Exit as stop:
        status = stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        status = 130
    except BrokenPipeError:
        sys.stderr.close()
        status = 0
    except Exception as error:
        status = _fail(name, _usage_message(name, error))
    sys.exit(status if isinstance(status, int) else 0)


def _usage_message(name: str, error: Exception) -> str:
    """What the command-line parser says of a wrong option; anything else is ours to explain."""
    message = getattr(error, "format_message", None)
    if message is not None:
        return f"{message()} (see: {name} --help)"
    return f"this is a fault of gpucommons itself: {type(error).__name__}: {error}"


def _fail(name: str, line: str) -> int:
    typer.echo(f"{name}: {' '.join(line.split())}", err=True)
    return 2
