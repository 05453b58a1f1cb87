"""The `gpucommons` command: gathers the commands, and turns every failure into one line and exit status 2."""

import sys
from collections.abc import Sequence

import typer

from gpucommons.cli import check_config, gpus, sample, up, version, who
from gpucommons.cli.errors import CommandError
from gpucommons.config.option import ConfigError

app = typer.Typer(
    name="gpucommons",
    help="See who uses each GPU, share it fairly, and keep the accounts: one agent per node.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (up.up, gpus.gpus, who.who, sample.sample, check_config.check_config, version.version):
    app.command()(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and exit. Reading stops being fun when a pipe closes, so that is no error."""
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        status = app(args=given or ["--help"], prog_name="gpucommons", standalone_mode=False)
    except (CommandError, ConfigError) as error:
        status = _fail(str(error))
    except typer.Exit as stop:
        status = stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        status = 130
    except BrokenPipeError:
        sys.stderr.close()
        status = 0
    except Exception as error:
        status = _fail(_usage_message(error))
    sys.exit(status if isinstance(status, int) else 0)


def _usage_message(error: Exception) -> str:
    """What the command-line parser says of a wrong option; anything else is ours to explain."""
    message = getattr(error, "format_message", None)
    if message is not None:
        return f"{message()} (see: gpucommons --help)"
    return f"this is a fault of gpucommons itself: {type(error).__name__}: {error}"


def _fail(line: str) -> int:
    typer.echo(f"gpucommons: {' '.join(line.split())}", err=True)
    return 2


if __name__ == "__main__":
    main()
