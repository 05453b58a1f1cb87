"""The `gpucommons` command: gathers the commands."""

import sys
from collections.abc import Sequence

import typer

from gpucommons.cli import (
    allocations,
    check_config,
    events,
    gpus,
    report,
    sample,
    scheduler,
    stack,
    stress,
    top,
    up,
    version,
    who,
)
from gpucommons.cli.run import run

app = typer.Typer(
    name="gpucommons",
    help="See who uses each GPU, share it fairly, and keep the accounts: one agent per node.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    up.up,
    gpus.gpus,
    who.who,
    top.top,
    allocations.allocations,
    report.report,
    events.events,
    sample.sample,
    check_config.check_config,
    stress.stress,
    version.version,
):
    app.command()(command)
app.add_typer(scheduler.app, name="scheduler")
app.add_typer(stack.app, name="stack")


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    run(app, "gpucommons", given or ["--help"])


if __name__ == "__main__":
    main()
