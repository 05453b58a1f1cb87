"""Orders of `gpucommons park` and `gpucommons wake`: sent to the agent, followed until they are carried out."""

import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gpucommons.base.text import printable, printable_lines
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.output import clear_live, has_live_line, show, show_error, show_live
from gpucommons.cli.parking_view import is_done, live_line, order_document, outcome, outcome_line
from gpucommons.cli.scheduler import send
from gpucommons.cli.suggestions import pids
from gpucommons.faces.documents.values import indented

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


def read_parking(config: Path | None, socket_path: str | None) -> Any:
    found = send(config, socket_path, {"command": "status"})["parking"]
    if found is None:
        raise CommandError("the agent does not park programs: set scheduler.share_programs to own or all")
    return found


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
        show(indented(order_document(answer, events)))
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
        parking = read_parking(config, socket_path)
        programs = {key: parking["programs"][key] for key in keys if key in parking["programs"]}
        began |= programs.keys()
        events = {key: found for key in keys if (found := outcome(parking, key, begun_s)) is not None}
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
