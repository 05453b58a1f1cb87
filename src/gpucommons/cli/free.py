"""`gpucommons free`: the slots that no workload holds now."""

import re
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import typer

from gpucommons.base.periods import spoken_duration
from gpucommons.base.text import memory_text, printable
from gpucommons.cli.command_line import CommandError, NotFound
from gpucommons.cli.fleet import OfFleet, PrometheusUrl, has_memory, show_free_fleet
from gpucommons.cli.gpus_view import missing
from gpucommons.cli.options import AsJson, TableFormat
from gpucommons.cli.output import show, show_line, show_lines, terminal_width
from gpucommons.cli.reader import Reader, reading
from gpucommons.cli.text_table import Format, TextTable, exact_table
from gpucommons.faces.documents.values import indent

_HEADER = ("slot", "uuid", "profile", "memory", "free since")
_EXACT = ("slot", "uuid", "profile", "memory_total_bytes", "memory_free_bytes", "since_unix_s")
_WORDS = {
    "busy": "busy",
    "held_idle": "held but idle",
    "reserved": "reserved",
    "lost": "lost",
    "unknown": "perhaps held",
}

_UUID = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)

Document = Mapping[str, Any]


@reading("simulate", "procfs")
def free(
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Only slots with this much free memory, such as 20G.", show_default=False),
    ] = None,
    export: Annotated[
        bool, typer.Option("--export", help="Print CUDA_VISIBLE_DEVICES=UUID,... for a command line or a script.")
    ] = False,
    fleet: OfFleet = False,
    prometheus: PrometheusUrl = None,
    format: TableFormat = Format.TABLE,
    as_json: AsJson = False,
    *,
    reader: Reader,
) -> None:
    """List the free GPUs and MIG devices. Exit status 1 if there is none."""
    if export and (as_json or format is not Format.TABLE):
        other = "--json" if as_json else "--format"
        raise CommandError(f"--export and {other} exclude each other: --export prints one line for a shell")
    if export and (fleet or prometheus):
        raise CommandError("--export and --fleet exclude each other: a command cannot use the GPUs of another node")
    if export:
        _export(reader, memory)
        return
    as_json = as_json or format is Format.JSON
    needed = _bytes(memory)
    if fleet or prometheus:
        show_free_fleet(reader, prometheus, needed, Format.JSON if as_json else format)
        return
    document, chosen = _find_free(reader, needed)
    if as_json:
        show(indent({**document, "slots": chosen}))
        raise typer.Exit(0 if chosen else NotFound.status)
    if not chosen:
        raise NotFound(_none(document, needed, memory))
    if format is not Format.TABLE:
        show(exact_table([{**slot, "uuid": uuid} for uuid, slot in chosen.items()], _EXACT).render(format))
    else:
        rows = [_cells(uuid, slot, needed) for uuid, slot in chosen.items()]
        table = TextTable(_HEADER, rows, shortest={"uuid": 13}, left_out=("free since", "profile"))
        show_lines(table.fit(terminal_width()))


def _export(reader: Reader, memory: str | None) -> None:
    """One line for `env`. Where no GPU is free, or none can be looked for, it names no device: a program that would
    take any GPU must not land on one that another user holds."""
    uuids = ""
    try:
        needed = _bytes(memory)
        document, chosen = _find_free(reader, needed)
        if not chosen:
            raise NotFound(_none(document, needed, memory))
        uuids = _words(usable_together(chosen))
    finally:
        show_line(printable(f"CUDA_VISIBLE_DEVICES={uuids}"))


def _find_free(reader: Reader, needed: int) -> tuple[Document, dict[str, Any]]:
    """The document of the slots, and those that are free and have the memory."""
    document = reader.get("slots")
    slots = document["slots"]
    if slots is None:
        raise CommandError(missing(reader.get("snapshot")))
    free_slots = {uuid: slot for uuid, slot in slots.items() if slot["state"] == "free" and has_memory(slot, needed)}
    return document, free_slots


def usable_together(slots: Document) -> list[str]:
    """UUIDs that one CUDA program can use at once: every whole GPU; without one, the largest MIG device.

    CUDA uses one MIG device at most, and none together with a whole GPU.
    """
    whole = [uuid for uuid, slot in slots.items() if not slot["profile"]]
    return whole or sorted(slots, key=lambda uuid: -(slots[uuid]["memory_total_bytes"] or 0))[:1]


def _words(uuids: list[str]) -> str:
    """For a shell: what is not a UUID could be taken for a command."""
    wrong = [uuid for uuid in uuids if _UUID.fullmatch(uuid) is None]
    if wrong:
        raise CommandError(f"the agent sent {wrong[0]!r}, which is not the UUID of a GPU; is it an agent?")
    return ",".join(uuids)


def _bytes(memory: str | None) -> int:
    from gpucommons.base.text import parse_gpu_memory

    try:
        return 0 if memory is None else parse_gpu_memory(memory)
    except ValueError as error:
        raise CommandError(f"--memory: {error}") from error


def _none(document: Document, needed: int, memory: str | None) -> str:
    """When the next one is expected, which one has been idle the longest, and how to wait for one."""
    slots, now_s = document["slots"], document["time_unix_s"]
    if not slots:
        return "none free: this node has no GPU"
    states = Counter(slot["state"] for slot in slots.values())
    enough = f" with {memory} of memory" if memory else ""
    small = [f"{states.pop('free')} free with less"] if states["free"] else []
    others = ", ".join([*small, *(f"{count} {_WORDS[state]}" for state, count in states.items() if count)])
    fitting = [slot for slot in slots.values() if (slot["memory_total_bytes"] or 0) >= needed]
    if not fitting:
        largest = max(slot["memory_total_bytes"] or 0 for slot in slots.values())
        return f"none free{enough}: {others}; no GPU here has that much, the largest has {memory_text(largest, needed)}"
    ready = [slot["expected_free_unix_s"] for slot in fitting if slot["expected_free_unix_s"] is not None]
    idle = max(fitting, key=lambda slot: slot["idle_s"] or 0)
    parts = [f"none free{enough}: {others}"]
    if idle["idle_s"]:
        holder = idle["holders"][0]["account"] if idle["holders"] else "another user"
        parts.append(f"GPU {idle['slot']} is held by {holder}, idle for {spoken_duration(idle['idle_s'])}")
    if ready:
        parts.append(f"next in about {spoken_duration(max(0.0, round(min(ready) - now_s)))}")
    option = f" --memory {memory}" if memory else ""
    return f"{'; '.join(parts)}; 'gpucommons run{option} COMMAND' waits in line"


def _cells(uuid: str, slot: Document, needed: int) -> list[str]:
    """The memory in the unit in which it was asked for."""
    since_s, free_bytes = slot["since_unix_s"], slot["memory_free_bytes"] or slot["memory_total_bytes"]
    return [
        slot["slot"],
        uuid,
        slot["profile"],
        "?" if free_bytes is None else memory_text(free_bytes, needed) if needed else f"{free_bytes / 2**30:.1f} GiB",
        "" if since_s is None else datetime.fromtimestamp(since_s).strftime("%Y-%m-%d %H:%M"),
    ]
