"""`gpucommons allocations`: who holds which GPU now, through what, and whether anything works there."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated

import typer

from gpucommons.base.decimal_text import parse_decimal
from gpucommons.cli.one_sample import take_sample
from gpucommons.cli.options import ConfigFile, Procfs, Simulate
from gpucommons.cli.run import CommandError
from gpucommons.cli.text_table import Format, TextTable
from gpucommons.model.allocations import Allocation, AllocationReading
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.usage import WHOLE_SHARE, WHOLE_SM

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
    user: Annotated[str | None, typer.Option(metavar="NAME", help="Only this user's.", show_default=False)] = None,
    format: Annotated[Format, typer.Option(help="How to print it.")] = Format.TABLE,
    config: ConfigFile = None,
    simulate: Simulate = None,
    procfs: Procfs = None,
) -> None:
    """List who holds which GPU now: held (stopped), running or active, and whether it was allocated."""
    _, snapshot = take_sample(config, simulate, procfs)
    sys.stdout.write(rendered(_reading(snapshot), user, format))


def rendered(reading: AllocationReading, user: str | None, format: Format) -> str:
    rows = [each for each in reading.allocations if user in (None, each.account.user)]
    if format is Format.JSON:
        return json.dumps([_as_json(each) for each in rows], indent=2, ensure_ascii=False) + "\n"
    held = {each.slot.uuid for each in reading.allocations if each.share}
    free = [info.slot.name for info in reading.slots if info.slot.uuid not in held and not info.is_rest]
    cells = [_cells(each) for each in rows if not each.is_access_only]
    # One line for a container that may use every GPU and uses none: it would stand between all the others.
    anywhere = {each.workload_id: replace(each, profile="") for each in rows if each.is_access_only}
    cells += [[_ANY, *_cells(each)[1:]] for each in anywhere.values()]
    if user is None:
        cells += [[name, _FREE, *[""] * (len(_HEADER) - 2)] for name in free]
    grid = TextTable(_HEADER, sorted(cells, key=_order), numbers=_NUMBERS)
    if format is Format.CSV:
        return grid.as_csv()
    if format is Format.MARKDOWN:
        return grid.as_markdown()
    note = "" if reading.complete else "not everybody who knows of holders answers now: some may be missing\n"
    return grid.as_table() + note


def _reading(snapshot: Snapshot) -> AllocationReading:
    reading = snapshot.readings.allocations
    if reading is None or not (reading.slots or reading.allocations):
        state = snapshot.sources.get("nvml")
        why = "; ".join(filter(None, (state.detail, state.remedy))) if state else "none is read on this machine"
        raise CommandError(f"no GPU and nobody who holds one: {why}")
    return reading


def _order(cells: Sequence[str]) -> tuple[list[int], Sequence[str]]:
    """By slot as a number: 2 before 10, 1.0 before 1.1."""
    numbers = map(parse_decimal, cells[0].split("."))
    return [1 << 20 if number is None else number for number in numbers], cells


def _cells(each: Allocation) -> list[str]:
    equivalents = each.equivalents
    return [
        each.slot.name,
        each.account.user or each.account.namespace or each.account.owner,
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


def _as_json(each: Allocation) -> dict[str, object]:
    return {
        "slot": each.slot.name,
        "slot_uuid": each.slot.uuid,
        "gpu_uuid": each.slot.gpu_uuid,
        "profile": each.profile,
        "user": each.account.user,
        "group": each.account.group,
        "owner": {"kind": each.account.kind, "name": each.account.owner, "namespace": each.account.namespace},
        "job": each.account.job,
        "workload": each.workload,
        "workload_id": each.workload_id,
        "kind": each.kind.value,
        "state": each.state.value,
        "share_ratio": each.share / WHOLE_SHARE,
        "gpu_equivalents": each.equivalents,
        "interface": each.interface,
        "managed": each.managed,
        "access": each.access.value,
        "since_unix_s": each.since_wall_s,
        "sm_ratio": None if each.sm is None else each.sm / WHOLE_SM,
        "memory_bytes": each.memory_bytes,
        "power_watts": None if each.milliwatts is None else each.milliwatts / 1000,
    }
