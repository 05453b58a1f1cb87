"""`gpucommons events`: what happened on this node, from our own event log."""

import sys
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from gpucommons.base.follow import FileFollower
from gpucommons.base.printable import printable
from gpucommons.cli.options import ConfigFile, Simulate, load_settings, scenario_named
from gpucommons.cli.run import CommandError
from gpucommons.cli.text_table import Format, TextTable
from gpucommons.config.state_directory import own_event_log
from gpucommons.ledger.happenings import TYPES, matching
from gpucommons.ledger.own_events import older, read_events
from gpucommons.ledger.period import parse_since
from gpucommons.model.events import Event, format_line, parse_line

_LOOK_EVERY_S = 0.5
_HEADER = ("time", "type", "user", "details")


def events(
    since: Annotated[
        str | None, typer.Option(metavar="24h|DATE", help="Only what is newer.", show_default=False)
    ] = None,
    type: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help=f"Only these: a whole type or its beginning (gpu). There are {', '.join(TYPES)}.",
            show_default=False,
        ),
    ] = None,
    user: Annotated[str | None, typer.Option(metavar="NAME", help="Only this user's.", show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on printing what happens until Ctrl-C.")] = False,
    format: Annotated[Format, typer.Option(help="How to print it; json is one object a line.")] = Format.TABLE,
    config: ConfigFile = None,
    simulate: Simulate = None,
) -> None:
    """Show what happened: GPUs lost and back, XIDs, allocations seen and gone, quotas, revoked turns."""
    scenario = scenario_named(simulate)
    path = own_event_log(load_settings(config, {}).settings, scenario.name if scenario else None)
    try:
        since_s = None if since is None else parse_since(since, time.time(), None)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if not path.exists() and not older(path).exists():
        raise CommandError(f"{path}: no event log here; 'gpucommons up' writes it ([events] own_file)")
    if follow:
        _follow(path, since_s, type, user, format)
    else:
        sys.stdout.write(rendered(matching(read_events(path), since_s, type, user), format))


def rendered(found: Iterable[Event], format: Format) -> str:
    if format is Format.JSON:
        return "".join(format_line(event).decode() for event in found)
    if format is Format.TABLE:
        # Line by line, as --follow prints: a table's columns would be as wide as its widest event.
        return "".join(f"{_line(event)}\n" for event in found)
    grid = TextTable(_HEADER, [_cells(event) for event in found])
    return grid.as_csv() if format is Format.CSV else grid.as_markdown()


def _follow(path: Path, since_s: float | None, type: str | None, user: str | None, format: Format) -> None:
    if format not in (Format.TABLE, Format.JSON):
        raise CommandError(
            f"--follow prints line by line: --format {format} has a frame around them; use table or json"
        )
    for event in matching(_coming(path), since_s, type, user):
        sys.stdout.write(format_line(event).decode() if format is Format.JSON else f"{_line(event)}\n")
        sys.stdout.flush()


def _coming(path: Path) -> Iterator[Event]:
    """What is in the log and whatever is added to it, through its turning over, for ever."""
    follower = FileFollower(path)
    while True:
        try:
            for piece in follower.poll():
                for line in piece.lines:
                    event = parse_line(line)
                    if isinstance(event, Event):
                        yield event
        except FileNotFoundError:
            # Between two logs: the next event brings the new one.
            pass
        time.sleep(_LOOK_EVERY_S)


def _line(event: Event) -> str:
    return "  ".join(printable(cell) for cell in _cells(event) if cell)


def _cells(event: Event) -> list[str]:
    details = " ".join(f"{name}={value}" for name, value in event.details.items() if value not in ("", None))
    when = datetime.fromtimestamp(event.wall_s).strftime("%Y-%m-%d %H:%M:%S")
    return [when, event.type, event.user, details]
