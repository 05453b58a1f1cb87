"""Build and run a command line. Every failure is one line on stderr and an exit status that says what kind it is."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from gpucommons.base.text import printable
from gpucommons.cli.output import show_error
from gpucommons.config.option import ConfigError


class CommandError(Exception):
    """The one line that the user reads: what failed with which value, why, and what to do.

    `status` is the exit status: 2 for an error of usage or of the configuration.
    """

    status = 2


class NotFound(CommandError):
    """The command ran; what it was asked for does not exist."""

    status = 1


class AgentUnreachable(CommandError):
    """No agent answers, and the command needs one; or the agent that the user named does not."""

    status = 3


class SentencesInFull(TyperGroup):
    """A group whose help has the whole first sentence of each command; typer's ends with the line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, self.commands[name].get_short_help_str(1000)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def command_group(name: str, help: str) -> typer.Typer:
    """A group of commands with the options and the error handling of `gpucommons`."""
    return typer.Typer(
        name=name,
        cls=SentencesInFull,
        help=help,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def run(command: typer.Typer, name: str, arguments: Sequence[str]) -> NoReturn:
    """Run the command and exit. A closed output pipe, as from `| head`, is not an error."""
    try:
        status = command(args=list(arguments), prog_name=name, standalone_mode=False)
    except CommandError as error:
        status = _fail(name, str(error), error.status)
    except ConfigError as error:
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
    """The message of the command-line parser, or that of an unexpected exception."""
    message = getattr(error, "format_message", None)
    if message is not None:
        # The command whose option or argument it is; empty where the parser did not get to it.
        context = getattr(error, "ctx", None)
        return f"{message()} (see: {name if context is None else context.command_path} --help)"
    return f"internal error: {type(error).__name__}: {error}; please report it"


def _fail(name: str, line: str, status: int = CommandError.status) -> int:
    say(line, name)
    return status


def say(line: str, name: str = "gpucommons") -> None:
    """One line on stderr."""
    show_error(printable(f"{name}: {' '.join(line.split())}"))
