"""`gpucommons allocations`: which owner holds which slot now, through which interface, and whether it is active."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from gpucommons.base.text import Printable, parse_decimal, printable
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.gpus_view import missing
from gpucommons.cli.options import AsJson, TableFormat
from gpucommons.cli.output import Line, plain_line, show, show_line, show_lines, terminal_width
from gpucommons.cli.reader import Reader, hidden_note, reading
from gpucommons.cli.suggestions import users
from gpucommons.cli.text_table import Format, TextTable, exact_table, wrap_lines
from gpucommons.faces.documents.values import indent

_HEADER = (
    "slot",
    "user",
    "workload",
    "kind",
    "state",
    "equivalents",
    "sm",
    "memory",
    "interface",
    "managed",
    "profile",
    "since",
)
_NUMBERS = frozenset({5, 6, 7})
# Of CSV: the names and values of the API.
_EXACT = (
    "slot",
    "user",
    "workload",
    "kind",
    "state",
    "gpu_equivalents",
    "sm_ratio",
    "memory_bytes",
    "interface",
    "managed",
    "profile",
    "since_unix_s",
)
# What is shown of a slot that no visible workload holds, by its state.
_WITHOUT_HOLDER = {"free": "(free)", "reserved": "(reserved)", "lost": "(lost)", "unknown": "(unknown)"}
_HIDDEN = "(hidden)"
_ANY = "any"

Document = Mapping[str, Any]


@reading("simulate", "procfs")
def allocations(
    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Only what is billed to this user or pod.", show_default=False, autocompletion=users
        ),
    ] = None,
    format: TableFormat = Format.TABLE,
    as_json: AsJson = False,
    *,
    reader: Reader,
) -> None:
    """List the holders of each GPU now: held (stopped), running or active, and whether it was allocated."""
    document = reader.get("allocations", {"user": user})
    if as_json or format is Format.JSON:
        show(indent(document))
        return
    slots = reader.get("slots")
    if slots["slots"] is None:
        raise CommandError(missing(reader.get("snapshot")))
    if format is not Format.TABLE:
        show(render(document["allocations"], slots["slots"], user, format))
        return
    if user is not None and terminal_width() is not None and not (document["allocations"] or {}).get("held"):
        show_line(printable(f"no slot is held by {user!r}"))
        return
    show_lines(table_lines(document["allocations"], slots["slots"], user, terminal_width()))
    show(hidden_note(document, "allocations"))


def render(allocations: Document | None, slots: Document, user: str | None, format: Format) -> Printable:
    """As CSV with exact numbers, or as Markdown for people."""
    if format is Format.MARKDOWN:
        return _table(allocations, slots, user).as_markdown()
    rows: list[Document] = [{**row, "user": row["account"]} for row in _rows(allocations, slots)]
    if user is None:
        nothing: Document = dict.fromkeys(_EXACT)
        rows += [{**nothing, "slot": slot, "user": shown} for slot, shown in _without_holder(slots)]
    return exact_table(sorted(rows, key=lambda row: _order([str(row["slot"]), str(row["user"])])), _EXACT).as_csv()


def table_lines(allocations: Document | None, slots: Document, user: str | None, width: int | None) -> list[Line]:
    complete = allocations is None or allocations["complete"]
    note = "incomplete: a source of holders (Docker, Podman, the kubelet, DS01) does not answer"
    notes = [] if complete else wrap_lines([note], width)
    return [*_table(allocations, slots, user).fit(width), *map(plain_line, notes)]


def _table(allocations: Document | None, slots: Document, user: str | None) -> TextTable:
    """`allocations` and `slots` are those parts of the API's documents; the former is null where all is hidden."""
    cells = [_cells(row) for row in _rows(allocations, slots)]
    if user is None:
        cells += [[*pair, *[""] * (len(_HEADER) - 2)] for pair in _without_holder(slots)]
    return TextTable(
        _HEADER,
        sorted(cells, key=_order),
        numbers=_NUMBERS,
        shortest={"user": 14, "workload": 16},
        left_out=("managed", "interface", "equivalents", "profile", "since", "kind"),
        states=("user", "state"),
    )


def _rows(allocations: Document | None, slots: Document) -> list[Document]:
    held = list(allocations["held"].values()) if allocations else []
    # A lost GPU has its UUID as the name of its slot.
    rows = [{**row, "slot": slots[row["slot"]]["slot"]} if row["slot"] in slots else row for row in held]
    # A container that may use every GPU and uses none is one line, not one for each GPU.
    anywhere = {row["workload_id"]: {**row, "slot": _ANY, "profile": ""} for row in rows if _is_access_only(row)}
    return [*(row for row in rows if not _is_access_only(row)), *anywhere.values()]


def _without_holder(slots: Document) -> Iterator[tuple[str, str]]:
    """The name of each slot that has no visible holder, and what is shown for it."""
    for slot in slots.values():
        if slot["hidden_holders"]:
            yield slot["slot"], _HIDDEN
        elif not slot["holders"]:
            yield slot["slot"], _WITHOUT_HOLDER[slot["state"]]


def _is_access_only(row: Document) -> bool:
    """It may use the slot, was not allocated it, and does not use it."""
    return not row["share_ratio"] and not row["managed"]


def _order(cells: Sequence[str]) -> tuple[list[int], Sequence[str]]:
    """Sorts slots by number: 2 before 10, 1.0 before 1.1."""
    numbers = map(parse_decimal, cells[0].split("."))
    return [1 << 20 if number is None else number for number in numbers], cells


def _cells(row: Document) -> list[str]:
    equivalents, sm, memory, since_s = (
        row[name] for name in ("gpu_equivalents", "sm_ratio", "memory_bytes", "since_unix_s")
    )
    return [
        row["slot"],
        row["account"],
        row["workload"],
        row["kind"],
        row["state"],
        "?" if equivalents is None else f"{equivalents:.3f}",
        "?" if sm is None else f"{sm:.0%}",
        "?" if memory is None else f"{memory / 2**30:.1f} GiB",
        row["interface"],
        "yes" if row["managed"] else "no",
        row["profile"],
        "" if since_s is None else datetime.fromtimestamp(since_s).strftime("%Y-%m-%d %H:%M"),
    ]
