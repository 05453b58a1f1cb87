"""`gpucommons who`: the owner of each part of each GPU, or how the owner of one process was found."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from gpucommons.base.text import Printable, printable, printable_lines, qualified_name
from gpucommons.cli.command_line import NotFound
from gpucommons.cli.gpus_view import missing
from gpucommons.cli.options import AsJson, TableFormat
from gpucommons.cli.output import Line, Span, plain_line, show, show_line, show_lines, terminal_width
from gpucommons.cli.reader import Reader, hidden_note, reading
from gpucommons.cli.scheduler_view import parked_lines
from gpucommons.cli.suggestions import gpus, pids, users
from gpucommons.cli.text_table import Format, TextTable, exact_table, wrap_lines
from gpucommons.faces.documents.values import indent

# The text of `gpucommons who`, from the API's documents. Pure.
#
# Names come from users and may contain any character: one that is not printable is escaped.

_NONE = "-"
_SHORT_ID = 12
_MAX_NAME = 48
_HEADER = ("memory", "sm", "power", "pid", "slot", "process", "user", "owner", "container", "job")
# The first columns are numbers, aligned to the right.
_NUMBERS = 4
_INDENT = "  "
# The owner that stands for all whom the viewer may not see.
_HIDDEN = "user/others"
# These columns are shown even if empty.
_ALWAYS = ("memory", "sm", "power", "pid", "process")
_SHORTEST = {"process": 12, "user": 8, "owner": 10, "container": 8, "job": 6}
_LEFT_OUT = ("power", "container", "job", "owner")
_EXACT = (
    *("gpu_index", "gpu_uuid", "slot", "pid", "name", "account", "owner", "user", "container", "pod", "namespace"),
    *("job", "unit", "memory_bytes", "memory_basis", "sm_ratio", "sm_basis", "power_watts", "power_basis", "reason"),
)
_LEGEND = "~: a share of what the driver measured for the GPU. Without ~: measured for the process."
_APPORTIONED = "apportioned"
_AMOUNTS = ("memory", "sm", "power")

Document = Mapping[str, Any]


def who_lines(
    who: Document, gpus: Document, width: int | None, turns: Document | None = None, of_user: bool = False
) -> Iterator[Line]:
    """`who`, `gpus` and `turns`, for parked programs, are those parts of the API's documents. `width` is the
    terminal's; None: in full. `of_user`: `who` has the processes of one user; GPUs without one are left out."""
    processes = list(who["processes"].values())
    by_gpu = {uuid: [row for row in processes if row["gpu_uuid"] == uuid] for uuid in who["reported"]}
    for number, uuid in enumerate(uuid for uuid, rows in by_gpu.items() if rows or not of_user):
        if number:
            yield []
        rows, reported = by_gpu[uuid], who["reported"][uuid]
        for line in wrap_lines([_gpu_line(uuid, reported, gpus["by_uuid"].get(uuid))], width):
            yield [Span(printable(line), "bold")]
        hidden = who["owners"].get(_HIDDEN, {"by_gpu": {}})["by_gpu"].get(uuid)
        if rows or hidden is None:
            yield from _process_lines(rows, who["owners"], width)
        if hidden is not None:
            yield plain_line(f"{_INDENT}{_hidden_line(hidden)}")
        yield from map(plain_line, wrap_lines(_rest_lines(who["unattributed"].get(uuid, {})), width))
    notes: list[str] = []
    if any(row[f"{name}_basis"] == _APPORTIONED for row in processes for name in _AMOUNTS):
        notes.append(_LEGEND)
    if who["view"]["scope"] != "host":
        notes.append(who["view"]["sentence"])
    if notes and who["reported"]:
        yield []
    yield from map(plain_line, wrap_lines(notes, width))
    if turns is not None:
        yield from map(plain_line, wrap_lines(parked_lines(turns), width))


def exact_who(who: Document) -> TextTable:
    """A row for each process on each GPU, and for each part that has no owner, with the API's names and values.

    The rows of a GPU sum to what the driver reported for it.
    """
    rest = (
        {**part, "gpu_uuid": uuid, "reason": reason}
        for uuid, parts in who["unattributed"].items()
        for reason, part in parts.items()
    )
    rows = [*who["processes"].values(), *rest]
    return exact_table([{name: row.get(name) for name in _EXACT} for row in rows], _EXACT)


def explain(who: Document, explanations: Mapping[str, Sequence[str]]) -> Printable:
    """Each step of the attribution of the processes in `who`, once for each GPU that a process is on."""
    blocks: list[str] = []
    for key, row in who["processes"].items():
        steps = [f"  {number}. {step}" for number, step in enumerate(explanations[key], start=1)]
        verdict = f"owner: {_owner(row, who['owners'])}" if row["owner"] else f"no owner: {row['reason']}"
        use = ", ".join(
            f"{title} {_amount(row, name)} ({row[f'{name}_basis']})"
            for name, title in zip(_AMOUNTS, ("memory", "SM", "power"), strict=True)
            if row[f"{name}_basis"] is not None
        )
        title = f"pid {row['pid']} on {_place(row)}"
        blocks += [title, *steps, f"  {verdict}", f"  {use or 'no readings'}", ""]
    return _text(blocks)


def _text(lines: Sequence[str]) -> Printable:
    return printable_lines(lines if lines[-1:] != [""] else lines[:-1])


def _gpu_line(uuid: str, reported: Document, gpu: Document | None) -> str:
    parts = [f"GPU {reported['gpu_index']}", printable(gpu["name"] if gpu else uuid)]
    total = gpu["memory_total_bytes"] if gpu else None
    if reported["memory_bytes"] is not None:
        of = f" of {_bytes(total)}" if total is not None else ""
        parts.append(f"{_bytes(reported['memory_bytes'])}{of} used")
    if reported["sm_ratio"] is not None:
        parts.append(f"SM {_percent(reported['sm_ratio'])}")
    if reported["power_watts"] is not None:
        parts.append(_watts(reported["power_watts"]))
    return "  ".join(parts)


def _hidden_line(hidden: Document) -> str:
    """What the processes use that the viewer may not see."""
    count = hidden["processes"]
    amounts = [f"{title}{_amount(hidden, name)}" for name, title in (("memory", ""), ("sm", "SM "), ("power", ""))]
    used = ", ".join(text for text in amounts if not text.endswith(_NONE))
    return f"hidden: {count} {'process' if count == 1 else 'processes'} of other users" + (f", {used}" if used else "")


def _process_lines(rows: Sequence[Document], owners: Document, width: int | None) -> Iterator[Line]:
    if not rows:
        yield plain_line(f"{_INDENT}no process")
        return
    cells = [tuple(_cells(row, owners)) for row in rows]
    filled = [any(row[i] != _NONE for row in cells) for i in range(len(_HEADER))]
    shown = [i for i, title in enumerate(_HEADER) if filled[i] or title in _ALWAYS]
    table = TextTable(
        [_HEADER[i] for i in shown],
        [[row[i] for i in shown] for row in cells],
        numbers=frozenset(range(_NUMBERS)),
        shortest=_SHORTEST,
        left_out=[title for title in _LEFT_OUT if title in (_HEADER[i] for i in shown)],
    )
    for line in table.fit(None if width is None else width - len(_INDENT)):
        yield [Span(printable(_INDENT)), *line]


def _cells(row: Document, owners: Document) -> Iterator[str]:
    for name in _AMOUNTS:
        yield _amount(row, name)
    yield str(row["pid"])
    yield _NONE if row["gpu_instance_id"] is None else row["slot"] or _NONE
    yield _name(row["name"])
    yield _name(row["account"])
    yield _owner(row, owners) if row["owner"] else f"({row['reason']})"
    yield _name(row["container"] or (row["container_id"] or "")[:_SHORT_ID])
    yield _name(row["job"])


def _rest_lines(rest: Mapping[str, Document]) -> Iterator[str]:
    """What has no owner. What is less than 0.5 % or 0.5 W is in the JSON alone."""
    for row in rest.values():
        parts = (
            "" if not row["memory_bytes"] else _bytes(row["memory_bytes"]),
            "" if (row["sm_ratio"] or 0.0) < 0.005 else f"SM {_percent(row['sm_ratio'])}",
            "" if (row["power_watts"] or 0.0) < 0.5 else _watts(row["power_watts"]),
        )
        if not any(parts):
            continue
        yield f"{_INDENT}unattributed {', '.join(filter(None, parts))}: {row['sentence']}"


def _amount(row: Document, name: str) -> str:
    """A quantity of a process, with ~ if it is a share of what the driver reported for the GPU."""
    if row[f"{name}_basis"] is None:
        return _NONE
    text = {
        "memory": lambda: _bytes(row["memory_bytes"]),
        "sm": lambda: _percent(row["sm_ratio"]),
        "power": lambda: _watts(row["power_watts"]),
    }[name]()
    return f"~{text}" if row[f"{name}_basis"] == _APPORTIONED else text


def _bytes(amount: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if amount >= unit:
            return f"{amount / unit:.1f} {name}"
    return f"{amount} B"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def _watts(watts: float) -> str:
    return f"{watts:.0f} W"


def _owner(row: Document, owners: Document) -> str:
    kind, _, id = row["owner"].partition("/")
    owner = owners.get(row["owner"])
    name = id if owner is None else qualified_name(owner["namespace"], owner["name"])
    return f"{kind} {printable(name, _MAX_NAME)}"


def _name(text: str | None) -> str:
    return printable(text, _MAX_NAME) if text else _NONE


def _place(row: Document) -> str:
    if row["gpu_instance_id"] is None:
        return f"GPU {row['gpu_index']}"
    return f"slot {row['slot']}" if row["slot"] else f"GPU {row['gpu_index']}, GPU instance {row['gpu_instance_id']}"


@reading("simulate", "procfs")
def who(
    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Only this account, user, uid or owner.", show_default=False, autocompletion=users
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="INDEX|UUID", help="Only this GPU.", show_default=False, autocompletion=gpus)
    ] = None,
    pid: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Explain step by step how the owner of this process is found.",
            show_default=False,
            autocompletion=pids,
        ),
    ] = None,
    format: TableFormat = Format.TABLE,
    as_json: AsJson = False,
    *,
    reader: Reader,
) -> None:
    """Show what each process uses of each GPU now: memory, SM time and power, its owner, and what has no owner."""
    document = reader.get("who", {"gpu": gpu, "user": user, "pid": None if pid is None else str(pid)})
    reading = document["who"]
    rows_hidden = document["hidden"] and "who" in document["hidden"]["sections"]
    hidden = f" ({document['hidden']['sentence']})" if rows_hidden else ""
    if pid is not None and (reading is None or not reading["processes"]):
        raise NotFound(f"pid {pid} is not on a GPU now{hidden}; `gpucommons who` lists the processes that are")
    if user is not None and (reading is None or not reading["processes"]):
        raise NotFound(f"no user {user!r} on a GPU{hidden}; `gpucommons who` lists the users that are")
    if as_json or format is Format.JSON:
        show(indent(document))
    elif reading is None:
        show_line(missing(reader.get("snapshot")))
    elif format is not Format.TABLE:
        show(exact_who(reading).render(format))
    elif pid is not None:
        show(explain(reading, document["explanations"]))
    else:
        turns = reader.get("turns")["turns"] if user is None and gpu is None else None
        show_lines(who_lines(reading, reader.get("gpus")["gpus"], terminal_width(), turns, user is not None))
        show(hidden_note(document, "who"))
