"""`gpucommons allocations`: which owner holds which slot now, through which interface, and whether it is active."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated

import typer

from gpucommons.base.decimal_text import parse_decimal
from gpucommons.base.printable import Printable, printable_lines
from gpucommons.cli.one_sample import take_sample
from gpucommons.cli.options import ConfigFile, Procfs, Simulate
from gpucommons.cli.output import show
from gpucommons.cli.run import CommandError
from gpucommons.cli.text_table import Format, TextTable
from gpucommons.cli.who_view import no_gpu_readings
from gpucommons.faces.documents.allocations import allocations as allocations_document
from gpucommons.faces.documents.values import indented
from gpucommons.faces.documents.view import View
from gpucommons.model.allocations import Allocation, AllocationReading
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.usage import WHOLE_SM
from gpucommons.rules.identities import account_name

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
_FREE = "(free)"
_ANY = "any"


def allocations(
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only what is billed to this user or pod.", show_default=False)
    ] = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.TABLE,
    config: ConfigFile = None,
    simulate: Simulate = None,
    procfs: Procfs = None,
) -> None:
    """List the holders of each GPU now: held (stopped), running or active, and whether it was allocated."""
    _, snapshot = take_sample(config, simulate, procfs)
    show(rendered(snapshot, user, format))


def rendered(snapshot: Snapshot, user: str | None, format: Format) -> Printable:
    reading = _reading(snapshot)
    if format is Format.JSON:
        return indented({**View(snapshot).envelope(), "allocations": allocations_document(snapshot, user)})
    rows = [each for each in reading.allocations if user in (None, account_name(each.account))]
    held = {each.slot.uuid for each in reading.allocations if each.share}
    free = [info.slot.name for info in reading.slots if info.slot.uuid not in held and not info.is_rest]
    cells = [_cells(each) for each in rows if not each.is_access_only]
    # A container that may use every GPU and uses none is one line, not one for each GPU.
    anywhere = {each.workload_id: replace(each, profile="") for each in rows if each.is_access_only}
    cells += [[_ANY, *_cells(each)[1:]] for each in anywhere.values()]
    if user is None:
        cells += [[name, _FREE, *[""] * (len(_HEADER) - 2)] for name in free]
    grid = TextTable(_HEADER, sorted(cells, key=_order), numbers=_NUMBERS)
    if format is Format.CSV:
        return grid.as_csv()
    if format is Format.MARKDOWN:
        return grid.as_markdown()
    note = "incomplete: a source of holders (Docker, Podman, the kubelet, DS01) does not answer"
    return printable_lines([*grid.lines(), *([] if reading.complete else [note])])


def _reading(snapshot: Snapshot) -> AllocationReading:
    reading = snapshot.readings.allocations
    if reading is None or not (reading.slots or reading.allocations):
        raise CommandError(no_gpu_readings(snapshot))
    return reading


def _order(cells: Sequence[str]) -> tuple[list[int], Sequence[str]]:
    """Sorts slots by number: 2 before 10, 1.0 before 1.1."""
    numbers = map(parse_decimal, cells[0].split("."))
    return [1 << 20 if number is None else number for number in numbers], cells


def _cells(each: Allocation) -> list[str]:
    equivalents = each.equivalents
    return [
        each.slot.name,
        account_name(each.account),
        each.workload,
        each.kind.value,
        each.state.value,
        "?" if equivalents is None else f"{equivalents:.3f}",
        "?" if each.sm is None else f"{each.sm / WHOLE_SM:.0%}",
        "?" if each.memory_bytes is None else f"{each.memory_bytes / 2**30:.1f} GiB",
        each.interface,
        "yes" if each.managed else "no",
        each.profile,
        "" if each.since_wall_s is None else datetime.fromtimestamp(each.since_wall_s).strftime("%Y-%m-%d %H:%M"),
    ]
