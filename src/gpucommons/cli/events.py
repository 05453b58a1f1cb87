"""`gpucommons events`: the events of this node, from the agent or from its event log."""

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gpucommons.base.periods import parse_since
from gpucommons.base.text import Printable, printable
from gpucommons.cli.command_line import CommandError, say
from gpucommons.cli.options import (
    AsJson,
    load_settings,
)
from gpucommons.cli.output import Line, Span, plain_line, show, show_line, show_lines, terminal_width
from gpucommons.cli.reader import Reader, hidden_note, readable_file, reading
from gpucommons.cli.suggestions import users
from gpucommons.cli.text_table import Format, TextTable, wrap_lines
from gpucommons.faces.documents.values import indent, one_line

_POLL_S = 0.5
# The agent has new events once per snapshot.
_ASK_S = 1.0
_HEADER = ("time", "type", "user", "details")
# By the end of an event's type.
_COLOURS = {"lost": "bold red", "xid": "red", "exceeded": "yellow", "revoked": "yellow", "found": "green"}
# What the agent keeps in memory.
_MAX = 1000

Document = Mapping[str, Any]


@reading("simulate")
def events(
    since: Annotated[
        str | None, typer.Option(metavar="24h|DATE", help="Only newer events: an age or a date.", show_default=False)
    ] = None,
    type: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Only this type, such as gpu.lost, or a group of types, such as gpu or allocation.",
            show_default=False,
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only events of this user.", show_default=False, autocompletion=users),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new events until Ctrl-C.")] = False,
    format: Annotated[
        Format, typer.Option(help="Output format. With --follow, json is one object per line.")
    ] = Format.TABLE,
    as_json: AsJson = False,
    *,
    reader: Reader,
) -> None:
    """Show events: GPUs lost and back, XIDs, allocations seen and gone, quotas, revoked turns."""
    format = Format.JSON if as_json else format
    if follow and format not in (Format.TABLE, Format.JSON):
        raise CommandError(
            f"--format {format} cannot be combined with --follow, which prints single lines: use table or json"
        )
    chosen = {"since": since, "type": type, "user": user, "limit": str(_MAX)}
    document = reader.ask("events", chosen)
    if document is not None and document["events"] is None:
        raise CommandError("the agent keeps no event log; set [ledger] enabled = true")
    if follow:
        matches = _of_log(reader, since, type, user, follow=True) if document is None else _of_agent(reader, chosen)
        for id, event in matches:
            if format is Format.JSON:
                show_line(one_line({id: event}))
            else:
                show_lines(event_lines([event], terminal_width()))
        return
    if document is None:
        # Newest first, as the API has them.
        document = {"hidden": None, "events": dict(reversed([*_of_log(reader, since, type, user)]))}
    elif len(document["events"]) == _MAX:
        say(f"these are the newest {_MAX} events that match: the agent keeps no more in memory")
    if format is Format.JSON:
        show(indent(document))
        return
    ordered = list(reversed(document["events"].values()))
    if format is not Format.TABLE:
        show(render(ordered, format))
        return
    if not ordered and terminal_width() is not None:
        show_line(printable("no event matches"))
    show_lines(event_lines(ordered, terminal_width()))
    show(hidden_note(document, "events"))


def event_lines(documents: Iterable[Document], width: int | None) -> Iterator[Line]:
    """Lines as --follow prints them; columns would be as wide as the longest event. The type has a colour."""
    for event in documents:
        when, type = (printable(cell) for cell in _cells(event)[:2])
        first, *more = wrap_lines([printable(_line(event))], width)
        after = len(when) + 2 + len(type)
        if len(first) < after:
            yield plain_line(first)
        else:
            type_colour = next((colour for end, colour in _COLOURS.items() if event["type"].endswith(end)), "")
            yield [
                Span(printable(first[: len(when) + 2])),
                Span(printable(first[len(when) + 2 : after]), type_colour),
                Span(printable(first[after:])),
            ]
        yield from map(plain_line, more)


def render(documents: Iterable[Document], format: Format) -> Printable:
    """As CSV or Markdown."""
    return TextTable(_HEADER, [_cells(event) for event in documents]).render(format)


def _of_agent(reader: Reader, chosen: Mapping[str, str | None]) -> Iterator[tuple[str, Document]]:
    """The events of the agent and every event that it adds. Never ends; an agent that was restarted is found again."""
    seen: set[str] = set()
    lost = False
    while True:
        try:
            document = reader.get("events", chosen)
            lost = False
        except CommandError as error:
            if not lost:
                say(f"{error}; waiting for it")
            lost, document = True, {"events": {}}
        for id, event in reversed(document["events"].items()):
            if id not in seen:
                seen.add(id)
                yield id, event
        time.sleep(_ASK_S)


def _of_log(
    reader: Reader, since: str | None, type: str | None, user: str | None, follow: bool = False
) -> Iterator[tuple[str, Document]]:
    """The events of the log file, oldest first."""
    # Imported here: with an agent, they are not needed.
    from gpucommons.agent.setting_rules import find_scenario
    from gpucommons.base.files import explain_refusal
    from gpucommons.config.state_directory import file_of_node, own_event_log
    from gpucommons.faces.documents.events import events_document, matching
    from gpucommons.ledger.events import older, read_events
    from gpucommons.model.events import Numbering, read_type

    scenario = find_scenario(reader.simulate)
    own = own_event_log(load_settings(reader.config, {}).settings, scenario.name if scenario else None)
    try:
        since_s = None if since is None else parse_since(since, time.time(), None)
    except ValueError as error:
        raise CommandError(f"--since: {error}") from error
    try:
        type = None if type is None else read_type(type)
    except ValueError as error:
        raise CommandError(f"--type: {error}") from error
    for file in (own, older(own)):
        if reason := explain_refusal(file):
            raise CommandError(reason)
    path = own if older(own).exists() else readable_file(reader, own, file_of_node(own), "event log")
    reader.say_alone(f"this command reads {path}")
    lines = _follow(path) if follow else read_events(path)
    for event in matching(Numbering()(lines), since_s, type, user):
        document: Mapping[str, Any] = events_document([event])
        yield from document.items()


def _follow(path: Path) -> Iterator[Any]:
    """The events of the log and every event that is added to it, also after the log was rotated. Never ends."""
    from gpucommons.base.files import FileFollower
    from gpucommons.model.events import Event, parse_line

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


def _line(event: Document) -> str:
    """Without ids of 64 digits and an owner that the line names already: they are in the other formats."""
    details = dict(event["details"])
    details.pop("workload_id", None)
    if details.get("owner") in (event["user"], details.get("workload")):
        details.pop("owner", None)
    return "  ".join(cell for cell in _cells({**event, "details": details}) if cell)


def _cells(event: Document) -> list[str]:
    details = " ".join(f"{name}={value}" for name, value in event["details"].items() if value not in ("", "None"))
    when = datetime.fromtimestamp(event["time_unix_s"]).strftime("%Y-%m-%d %H:%M:%S")
    return [when, event["type"], event["user"], details]
