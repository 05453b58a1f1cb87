"""`gpucommons park`, `wake` and `parked`: moves the GPU memory of programs to host memory and back.

An order is sent to the agent and followed until it is carried out.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gpucommons.base.periods import spoken_duration
from gpucommons.base.text import gibibytes, printable, printable_lines
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.fleet import CountsOfFleet, PrometheusUrl, show_fleet_counts
from gpucommons.cli.options import AsJson, ConfigFile
from gpucommons.cli.output import (
    Line,
    clear_live,
    has_live_line,
    plain_line,
    show,
    show_error,
    show_lines,
    show_live,
    terminal_width,
)
from gpucommons.cli.reader import Reader, reading
from gpucommons.cli.scheduler import SocketPath, read_turns, send
from gpucommons.cli.scheduler_view import arrival_line
from gpucommons.cli.suggestions import pids
from gpucommons.cli.text_table import TextTable, wrap_lines
from gpucommons.faces.documents.values import indent

# The text of `gpucommons park`, `wake` and `parked`: the table, the line of progress, the outcome. Pure.
#
# Names come from users: the lines are escaped when they are printed.

Document = Mapping[str, Any]

# The fields of an event that `park --json` and `wake --json` have; null while it is not known.
_OUTCOME = ("kind", "unix_s", "bytes", "duration_s", "sentence", "why")


def table_lines(parking: Document, now_s: float, width: int | None) -> Iterator[Line]:
    if parking["unavailable"]:
        yield from map(plain_line, wrap_lines([f"nothing can be parked: {parking['unavailable']}"], width))
    rows = [
        (
            program["name"],
            program["stage"],
            spoken_duration(max(0.0, now_s - program["since_unix_s"])),
            gibibytes(program["host_bytes"]),
            program["cause"],
            progress(program) or program["waits"] or program["sentence"],
        )
        for program in parking["programs"].values()
    ]
    if rows:
        yield from TextTable(
            ("program", "state", "for", "host ram", "why", "note"),
            rows,
            shortest={"program": 12, "why": 8},
            left_out=("why",),
            states=("state",),
            sentence="note",
        ).fit(width)
    else:
        yield plain_line("no program is parked")
    yield from map(plain_line, wrap_lines(map(arrival_line, parking["arrivals"].values()), width))


def progress(program: Document) -> str:
    """`4.2 of 10.0 GiB, 2.0 GiB/s, about 3 s left`; empty while it does not move."""
    if program["stage"] not in ("parking", "waking"):
        return ""
    total, in_host = program["gpu_bytes"], program["host_bytes"]
    done = in_host if program["stage"] == "parking" else total - in_host
    rate, left_s = program["rate_bytes_s"], program["remaining_s"]
    speed = "" if not rate else f", {gibibytes(rate)}/s"
    left = "" if left_s is None else f", about {left_s:.0f} s left"
    return f"{gibibytes(done)} of {gibibytes(total)}{speed}{left}"


def live_line(programs: Mapping[str, Document]) -> str:
    """What moves or waits now."""
    parts = [
        f"{program['name']}: {program['stage']} {progress(program) or program['waits']}".rstrip()
        for program in programs.values()
    ]
    return "; ".join(parts)


def is_done(order: str, program: Document | None) -> bool:
    """Whether the program has reached what was ordered, or cannot."""
    if program is None:
        return True
    return program["stage"] == "stranded" or (order == "park" and program["stage"] == "parked" and not program["waits"])


def outcome(parking: Document, key: str, after_unix_s: float) -> Document | None:
    """The last event of this program since the order."""
    events = [event for event in parking["events"] if event["program"] == key and event["unix_s"] >= after_unix_s]
    return events[-1] if events else None


def outcome_line(event: Document) -> str:
    taken = f" in {event['duration_s']:.1f} s" if event["kind"] == "parked" else ""
    return f"{event['name']}: {event['kind']}{taken}: {event['sentence']}"


def order_document(answer: Document, events: Mapping[str, Document]) -> Document:
    """The outcome of each program that an order reached, by key, as far as it is known, and the refusals in words."""
    return {
        "programs": {
            key: {"name": name, **{field: events.get(key, {}).get(field) for field in _OUTCOME}}
            for key, name in zip(answer["keys"], answer["names"], strict=True)
        },
        "refused": answer["refused"],
    }


# Orders of `gpucommons park` and `gpucommons wake`: sent to the agent, followed until they are carried out.

_LOOK_S: Final = 0.5

ParkTarget = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A pid, user:NAME, container:NAME, job:ID, unit:NAME, a pod, NAMESPACE/POD, or a name from status.",
        autocompletion=pids,
    ),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return at once; the agent goes on.")]


def _parking_of(turns: Document) -> Any:
    parking = turns["parking"]
    if parking is None:
        raise CommandError("the agent does not park programs: set scheduler.share_programs to own or all")
    return parking


def carry_out(
    order: str, target: str, config: Path | None, socket_path: str | None, no_wait: bool, as_json: bool
) -> None:
    """Ends with an error if a program that is meant was refused, or could not be moved."""
    begun_s = time.time() - 0.001
    answer = send(config, socket_path, {"command": order, "target": target})
    for refused in answer["refused"]:
        show_error(printable(refused))
    keys = list(answer["keys"])
    follows = bool(keys) and not no_wait
    events = _follow(order, keys, begun_s, config, socket_path) if follows else {}
    if as_json:
        show(indent(order_document(answer, events)))
    elif follows:
        show(printable_lines(outcome_line(event) for event in events.values()))
    elif not answer["refused"]:
        show(printable_lines(f"{order}: {name}" for name in answer["names"]))
    expected = "parked" if order == "park" else "woken"
    moved = [key for key, event in events.items() if event["kind"] == expected]
    if answer["refused"] or (follows and len(moved) < len(keys)):
        raise typer.Exit(1)


def _follow(
    order: str, keys: list[str], begun_s: float, config: Path | None, socket_path: str | None
) -> dict[str, Any]:
    """The last event of each program, by key, once all have one or are gone."""
    began: set[str] = set()
    while True:
        parking = _parking_of(send(config, socket_path, {"command": "status"}))
        programs = {key: parking["programs"][key] for key in keys if key in parking["programs"]}
        began |= programs.keys()
        events = {key: event for key in keys if (event := outcome(parking, key, begun_s)) is not None}
        open_keys = [key for key in keys if not is_done(order, programs.get(key)) or key not in events]
        # A program that ended meanwhile is in neither list.
        waits = [key for key in open_keys if key in programs or (order == "park" and key not in began)]
        if not waits or time.time() - begun_s > 3600:
            if has_live_line():
                clear_live()
            return events
        if has_live_line():
            show_live(printable(live_line(programs) or f"{order}: the agent looks for room", 160))
        time.sleep(_LOOK_S)


def park(
    target: ParkTarget,
    no_wait: NoWait = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    socket_path: SocketPath = None,
) -> None:
    """Move the GPU memory of programs to host memory, without ending them: your own, or as an admin all users'.

    A parked program sleeps in its next CUDA call. It comes back when it uses the CPU again, or by 'gpucommons wake'.
    Exit status: 0 parked, 1 refused or not possible, 2 wrong usage.
    """
    carry_out("park", target, config, socket_path, no_wait, as_json)


def wake(
    target: ParkTarget,
    no_wait: NoWait = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    socket_path: SocketPath = None,
) -> None:
    """Bring parked programs back to their GPU, as soon as it has the room: your own, or as an admin all users'.

    Exit status: 0 back, 1 refused or not possible, 2 wrong usage.
    """
    carry_out("wake", target, config, socket_path, no_wait, as_json)


@reading()
def parked(
    fleet: CountsOfFleet = False,
    prometheus: PrometheusUrl = None,
    as_json: AsJson = False,
    *,
    reader: Reader,
    socket_path: SocketPath = None,
) -> None:
    """Print the parked programs: since when, how much host memory they take, and why one is not back yet."""
    if fleet or prometheus:
        show_fleet_counts(reader, prometheus, "parked", as_json)
        return
    parking = _parking_of(read_turns(reader, socket_path)["turns"])
    if as_json:
        show(indent({"parking": parking}))
    else:
        show_lines(table_lines(parking, time.time(), terminal_width()))
