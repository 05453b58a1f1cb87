"""The details of one GPU in `gpucommons top`: its history as two graphs, and a page of text. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpucommons.base.text import Printable, printable_lines
from gpucommons.cli.gpus_view import slot_owners, slot_state
from gpucommons.cli.top_graph import graph
from gpucommons.cli.top_table import MISSING, percent, size, watts

_GAP = "  "
_SCALE = len("100 % ")

Document = Mapping[str, Any]


def graph_lines(
    name: str,
    gpu: Document,
    utilization: Sequence[float | None],
    memory_bytes: Sequence[float | None],
    room: tuple[int, int],
) -> Printable:
    """Utilisation and memory next to each other, in `room`: columns and lines. The titles have the latest values."""
    width, height = room
    half = max(_SCALE + 1, (width - len(_GAP)) // 2)
    total = gpu["memory_total_bytes"]
    ratios = [None if value is None or not total else value / total for value in memory_bytes]
    minutes = max(len(utilization), len(memory_bytes)) / 60
    over = f"last {minutes:.0f} min" if minutes >= 1 else f"last {minutes * 60:.0f} s"
    left = _one(f"{name} utilisation {percent(_last(utilization))}, {over}", utilization, half, height)
    right = _one(f"{name} memory {percent(_last(ratios))}", ratios, half, height)
    return printable_lines(f"{first:<{half}}{_GAP}{second}".rstrip() for first, second in zip(left, right, strict=True))


def _one(title: str, values: Sequence[float | None], width: int, height: int) -> list[str]:
    lines = graph(values, width - _SCALE, height - 1)
    marks = ["100 %", *["     "] * (len(lines) - 2), "  0 %"]
    return [title[:width], *(f"{mark} {line}" for mark, line in zip(marks, lines, strict=True))]


def _last(values: Sequence[float | None]) -> float | None:
    return values[-1] if values else None


def gpu_page(document: Document, uuid: str) -> Printable:
    """`uuid` is that of a GPU or of a MIG device."""
    gpus = document["gpus"]["by_uuid"]
    gpu_uuid = gpu_of(document, uuid)
    return printable_lines(_lines(document, gpu_uuid, gpus[gpu_uuid]) if gpu_uuid else ["this GPU is gone"])


def gpu_of(document: Document, uuid: str) -> str | None:
    """The UUID of the GPU that this UUID means: its own, or that of one of its MIG devices."""
    gpus = (document["gpus"] or {}).get("by_uuid") or {}
    return next((each for each, gpu in gpus.items() if uuid == each or uuid in gpu["mig"]), None)


def _lines(document: Document, uuid: str, gpu: Document) -> Iterator[str]:
    yield f"GPU {gpu['index']}  {gpu['name']}"
    yield f"  UUID         {uuid}"
    yield f"  utilisation  {percent(gpu['utilization_ratio'])}"
    yield f"  memory       {size(gpu['memory_used_bytes'])} of {size(gpu['memory_total_bytes'])}"
    yield f"  power        {watts(gpu['power_watts'])} of {watts(gpu['power_limit_watts'])}"
    heat = gpu["temperature_celsius"]
    yield f"  temperature  {MISSING if heat is None else f'{heat:g} °C'}"
    yield f"  health       {', '.join((gpu['health']['level'], *gpu['health']['reasons']))}"
    slots = document["slots"] or {}
    for slot_uuid in (uuid, *gpu["mig"]):
        if slot_uuid in slots:
            slot = slots[slot_uuid]
            yield f"  slot {slot['slot']:<8}{slot_state(slot)}  {slot_owners(slot, full=True)}".rstrip()
    for problem in document["problems"].values():
        if problem["gpu_uuid"] == uuid:
            yield f"  {problem['level']}: {problem['sentence']} {problem['remedy']}"
