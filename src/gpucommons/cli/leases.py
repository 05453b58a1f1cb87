"""`gpucommons queue`, `cancel`, `reserve`, `reservations` and `unreserve`: one request each to the agent.

Points in time are taken as people write them: `now`, `in 2h`, `9:00`, `tomorrow 9:00`.
"""

import os
import re
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gpucommons.base.periods import parse_duration
from gpucommons.base.text import printable, printable_lines
from gpucommons.cli.agent_client import Document
from gpucommons.cli.command_line import AgentUnreachable, CommandError, NotFound
from gpucommons.cli.fleet import CountsOfFleet, PrometheusUrl, show_fleet_counts
from gpucommons.cli.lease_view import local_time, queue_lines, reservation_lines
from gpucommons.cli.options import AsJson, ConfigFile, load_settings
from gpucommons.cli.output import show, show_line, show_lines, terminal_width
from gpucommons.cli.reader import Reader, reading
from gpucommons.cli.text_table import wrap_lines
from gpucommons.config.runtime_directory import lease_sockets
from gpucommons.faces.documents.values import indent
from gpucommons.leases.protocol import LeaseServiceGone, answer_of

# One request to the agent about leases, and its answer.

_SOCKET_VARIABLE: Final = "GPUCOMMONS_LEASES_SOCKET"


def ask(config: Path | None, request: Mapping[str, object]) -> Any:
    """Raises AgentUnreachable where no agent answers, NotFound for an unknown id, CommandError where it refuses."""
    try:
        line = answer_of(lease_sockets(_socket(config)), request)
    except LeaseServiceGone as gone:
        raise AgentUnreachable(f"no agent gives leases here: {gone}; start it with: gpucommons up") from None
    if line.get("unknown"):
        raise NotFound(str(line.get("error")))
    if line.get("event") != "answer":
        raise CommandError(str(line.get("error")))
    return line["answer"]


def _socket(config: Path | None) -> str:
    """`leases.socket`. Loading all settings takes time: only for a file, or its variable."""
    if config is None and _SOCKET_VARIABLE not in os.environ:
        return ""
    return load_settings(config, {}).settings.leases.socket


# Points in time as people write them: `now`, `in 2h`, `9:00`, `tomorrow 9:00`, `monday 14:00`, a date. Pure.

_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{2})", re.ASCII)


def parse_when(text: str, now: datetime) -> datetime:
    """In the zone of `now`. A time of day without a day is the next one. Raises ValueError with one line."""
    words = text.lower().split()
    if words == ["now"]:
        return now
    if len(words) >= 2 and words[0] == "in":
        return now + timedelta(seconds=parse_duration("".join(words[1:])))
    if len(words) == 1 and (time := _time_of_day(words[0])):
        today = _at(now, time)
        return today if today > now else _at(now + timedelta(days=1), time)
    if len(words) == 2 and (time := _time_of_day(words[1])) and (days := _days(words[0], now)) is not None:
        next_time = _at(now + timedelta(days=days), time)
        is_past_weekday = next_time <= now and words[0] not in ("today", "tomorrow")
        return _at(now + timedelta(days=7), time) if is_past_weekday else next_time
    return _date(text, now)


def _time_of_day(text: str) -> tuple[int, int] | None:
    match = _CLOCK.fullmatch(text)
    if match is None or int(match[1]) > 23 or int(match[2]) > 59:
        return None
    return int(match[1]), int(match[2])


def _days(word: str, now: datetime) -> int | None:
    if word in ("today", "tomorrow"):
        return int(word == "tomorrow")
    matches = [number for number, name in enumerate(_WEEKDAYS) if len(word) >= 3 and name.startswith(word)]
    return (matches[0] - now.weekday()) % 7 if matches else None


def _at(day: datetime, time: tuple[int, int]) -> datetime:
    """At this time of day by the clock on the wall, also on a day on which the clocks are changed."""
    naive = day.replace(hour=time[0], minute=time[1], second=0, microsecond=0, tzinfo=None)
    return naive.astimezone()


def _date(text: str, now: datetime) -> datetime:
    day, _, clock = text.strip().replace("T", " ").partition(" ")
    hours, colon, rest = clock.partition(":")
    padded = f"{day} {hours.zfill(2)}{colon}{rest}" if clock else day
    try:
        moment = datetime.fromisoformat(padded)
    except ValueError:
        raise ValueError(
            f"invalid time {text!r}: use now, 'in 2h', 9:00, 'tomorrow 9:00', 'monday 14:00' or '2026-11-20 9:00'"
        ) from None
    try:
        # The first and the last days of the calendar are beyond it in some time zones.
        return (moment if moment.tzinfo else moment.astimezone()).astimezone(now.tzinfo)
    except (ValueError, OverflowError):
        raise ValueError(f"invalid time {text!r}: out of range; use a date of the next weeks") from None


@reading()
def queue(
    fleet: CountsOfFleet = False, prometheus: PrometheusUrl = None, as_json: AsJson = False, *, reader: Reader
) -> None:
    """Print the leases of this node, and the requests that wait, in the order in which they are served."""
    if fleet or prometheus:
        show_fleet_counts(reader, prometheus, "queue", as_json)
        return
    document = _queue(reader)
    if as_json:
        show(indent(document))
    else:
        show_lines(queue_lines(document, time.time(), terminal_width()))


def _queue(reader: Reader) -> Document:
    """The queue as the service has it now; with --connect, that of another agent's latest snapshot."""
    if reader.connect is None:
        own: Document = ask(reader.config, {"request": "queue"})
        return own
    queue: Document | None = reader.get("queue")["queue"]
    if queue is None:
        raise CommandError(f"the agent at {reader.connect} gives no leases ([leases] enabled)")
    return queue


def cancel(
    id: Annotated[str, typer.Argument(metavar="ID", help="The id that 'gpucommons queue' shows.")],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """End a lease, whose command then gets SIGTERM, or take a request out of the queue: your own, as root any."""
    answer = str(ask(config, {"request": "cancel", "id": id}))
    show(indent({"cancelled": id, "answer": answer}) if as_json else printable_lines([answer]))


def reserve(
    duration: Annotated[str, typer.Option("--for", metavar="TIME", help="How long, such as 8h.", show_default=False)],
    gpus: Annotated[int, typer.Option(min=1, metavar="N", help="Number of GPUs.")] = 1,
    begin: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHEN", help='Start: now, "tomorrow 9:00", "monday 14:00", "2026-11-20 9:00", "in 2h".'
        ),
    ] = "now",
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Reserve GPUs for a time to come. Until then, others get them only for commands that end before (--for)."""
    try:
        for_s = parse_duration(duration)
    except ValueError as error:
        raise CommandError(f"--for: {error}") from None
    try:
        from_s = parse_when(begin, datetime.now().astimezone()).timestamp()
    except ValueError as error:
        raise CommandError(f"--from: {error}") from None
    if from_s < time.time() - 60:
        raise CommandError(f"--from {begin!r} is in the past: choose a later time")
    made = ask(config, {"request": "reserve", "gpus": gpus, "from_s": from_s, "for_s": for_s})
    begins_s, ends_s = made["from_s"], made["until_s"]
    if as_json:
        # The names of a reservation in the document of /api/v1/queue.
        reserved = {name: made[name] for name in ("id", "gpus", "slots")}
        times = {"from_unix_s": begins_s, "until_unix_s": ends_s}
        show(indent({**reserved, **times, "held_beyond": made["held_beyond"]}))
        return
    slots = ", ".join(made["slots"])
    show_line(
        printable(f"reservation {made['id']}: GPU {slots} from {local_time(begins_s)} until {local_time(ends_s)}")
    )
    lines = [f"note: {sentence}" for sentence in made["held_beyond"]]
    if lines:
        lines.append("note: where that is so at its start, the reservation moves to a GPU that is free, or waits.")
    lines.append("At that time start your command with 'gpucommons run': it gets a reserved GPU.")
    show(printable_lines(wrap_lines(lines, terminal_width())))


@reading()
def reservations(
    fleet: CountsOfFleet = False, prometheus: PrometheusUrl = None, as_json: AsJson = False, *, reader: Reader
) -> None:
    """Print the reservations of this node, earliest first."""
    if fleet or prometheus:
        show_fleet_counts(reader, prometheus, "reservations", as_json)
        return
    document = _queue(reader)
    if as_json:
        show(indent(document["reservations"]))
    else:
        show_lines(reservation_lines(document, terminal_width()))


def unreserve(
    id: Annotated[str, typer.Argument(metavar="ID", help="The id that 'gpucommons reservations' shows.")],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Remove a reservation: your own, as root any."""
    answer = str(ask(config, {"request": "unreserve", "id": id}))
    show(indent({"removed": id, "answer": answer}) if as_json else printable_lines([answer]))
