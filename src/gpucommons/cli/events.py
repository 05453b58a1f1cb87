"""`gpucommons events`: the events of this node, from our own event log."""

import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from gpucommons.base.follow import FileFollower
from gpucommons.base.printable import Printable, printable, printable_json, printable_lines
from gpucommons.base.state_file import refused
from gpucommons.cli.options import ConfigFile, Simulate, load_settings, scenario_named
from gpucommons.cli.output import show, show_line
from gpucommons.cli.run import CommandError
from gpucommons.cli.text_table import Format, TextTable
from gpucommons.config.state_directory import own_event_log
from gpucommons.faces.documents.events import events_document, matching
from gpucommons.faces.documents.values import encoded, indented
from gpucommons.ledger.event_detector import TYPES
from gpucommons.ledger.event_log import older, read_events
from gpucommons.ledger.period import parse_since
from gpucommons.model.events import Event, Numbering, parse_line

_POLL_S = 0.5
_HEADER = ("time", "type", "user", "details")


def events(
    since: Annotated[
        str | None, typer.Option(metavar="24h|DATE", help="Only newer events: an age or a date.", show_default=False)
    ] = None,
    type: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help=f"Only this type, or a group of types (gpu). Types: {', '.join(TYPES)}.",
            show_default=False,
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only events of this user.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new events until Ctrl-C.")] = False,
    format: Annotated[
        Format, typer.Option(help="Output format. With --follow, json is one object per line.")
    ] = Format.TABLE,
    config: ConfigFile = None,
    simulate: Simulate = None,
) -> None:
    """Show events: GPUs lost and back, XIDs, allocations seen and gone, quotas, revoked turns."""
    scenario = scenario_named(simulate)
    path = own_event_log(load_settings(config, {}).settings, scenario.name if scenario else None)
    try:
        since_s = None if since is None else parse_since(since, time.time(), None)
    except ValueError as error:
        raise CommandError(str(error)) from error
    for file in (path, older(path)):
        if reason := refused(file):
            raise CommandError(reason)
    if not path.exists() and not older(path).exists():
        raise CommandError(f"{path}: no event log; 'gpucommons up' writes it ([events] own_file)")
    if follow:
        _follow(path, since_s, type, user, format)
    else:
        show(rendered(matching(Numbering()(read_events(path)), since_s, type, user), format))


def rendered(found: Iterable[Event], format: Format) -> Printable:
    if format is Format.JSON:
        # Newest first, as the API has them.
        return indented({"events": events_document(reversed(list(found)))})
    if format is Format.TABLE:
        # Lines as --follow prints them. Columns would be as wide as the longest event.
        return printable_lines(map(_line, found))
    grid = TextTable(_HEADER, [_cells(event) for event in found])
    return grid.as_csv() if format is Format.CSV else grid.as_markdown()


def _follow(path: Path, since_s: float | None, type: str | None, user: str | None, format: Format) -> None:
    if format not in (Format.TABLE, Format.JSON):
        raise CommandError(
            f"--format {format} cannot be combined with --follow, which prints single lines: use table or json"
        )
    for event in matching(Numbering()(_followed(path)), since_s, type, user):
        if format is Format.JSON:
            show_line(printable_json(encoded(events_document([event])).decode()))
        else:
            show_line(printable(_line(event)))


def _followed(path: Path) -> Iterator[Event]:
    """The events of the log and every event that is added to it, also after the log was rotated. Never ends."""
    follower = FileFollower(path)
    while True:
        try:
            for piece in follower.poll():
                for line in piece.lines:
                    event = parse_line(line)
                    if isinstance(event, Event):
                        yield event
        except FileNotFoundError:
            # Just rotated: the next event creates the new log.
            pass
        time.sleep(_POLL_S)


def _line(event: Event) -> str:
    return "  ".join(cell for cell in _cells(event) if cell)


def _cells(event: Event) -> list[str]:
    details = " ".join(f"{name}={value}" for name, value in event.details.items() if value not in ("", None))
    when = datetime.fromtimestamp(event.wall_s).strftime("%Y-%m-%d %H:%M:%S")
    return [when, event.type, event.user, details]
