"""`gpucommons reserve`: keep GPUs for a time to come."""

import time
from datetime import datetime
from typing import Annotated

import typer

from gpucommons.base.periods import parse_duration
from gpucommons.base.text import printable
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.lease_requests import ask
from gpucommons.cli.lease_view import local_time
from gpucommons.cli.options import AsJson, ConfigFile
from gpucommons.cli.output import show, show_line
from gpucommons.cli.when import parse_when
from gpucommons.faces.documents.values import indented


def reserve(
    duration: Annotated[str, typer.Option("--for", metavar="TIME", help="How long, such as 8h.", show_default=False)],
    gpus: Annotated[int, typer.Option(min=1, help="Number of GPUs.")] = 1,
    begin: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHEN", help='Start: now, "tomorrow 9:00", "monday 14:00", "2026-11-20 9:00", "in 2h".'
        ),
    ] = "now",
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Reserve GPUs: other users get no lease on them that could last beyond the start."""
    try:
        from_s = parse_when(begin, datetime.now().astimezone()).timestamp()
        for_s = parse_duration(duration)
    except ValueError as error:
        raise CommandError(str(error)) from None
    if from_s < time.time() - 60:
        raise CommandError(f"--from {begin!r} is in the past: choose a later time")
    made = ask(config, {"request": "reserve", "gpus": gpus, "from_s": from_s, "for_s": for_s})
    begins_s, ends_s = made["from_s"], made["until_s"]
    if as_json:
        # The names of a reservation in the document of /api/v1/queue.
        reserved = {name: made[name] for name in ("id", "gpus", "slots")}
        show(indented({**reserved, "from_unix_s": begins_s, "until_unix_s": ends_s}))
        return
    slots = ", ".join(made["slots"])
    show_line(
        printable(f"reservation {made['id']}: GPU {slots} from {local_time(begins_s)} until {local_time(ends_s)}")
    )
