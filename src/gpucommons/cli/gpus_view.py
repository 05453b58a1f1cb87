"""The table of `gpucommons gpus`, from the API's documents. An unknown value is a dash."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpucommons.base.printable import Printable, printable

_UNKNOWN = "-"
_GIB = 2**30
# A pipe gets every column in full; a narrow terminal gets short UUIDs.
_PIPE_WIDTH = 250
_NARROW = 140
_SHORT_UUID = 12
_COLOURS = {"ok": "green", "warning": "yellow", "critical": "red", "lost": "bold red"}
_COLUMNS = ("GPU", "NAME", "UUID", "MEMORY", "UTIL", "TEMP", "POWER", "PROCESSES", "HEALTH")
_NUMBERS = range(3, 8)

Document = Mapping[str, Any]


def missing(document: Document) -> Printable:
    """Why the snapshot has no GPUs. `document` is that of /api/v1/snapshot."""
    source = document["node"]["sources"].get("nvml")
    why = "; ".join(filter(None, (source["detail"], source["remedy"]))) if source else "there is no source for them"
    return printable(f"no GPU readings: {why}")


class GpuLine(NamedTuple):
    """One line of the table. Only its end, the health, is coloured."""

    text: Printable
    end: Printable
    colour: str = ""


def gpu_lines(gpus: Document, terminal_width: int | None) -> Iterator[GpuLine]:
    """The table and a summary, as wide as the terminal; in full where there is none."""
    width = _PIPE_WIDTH if terminal_width is None else terminal_width
    short = width < _NARROW
    rows: list[tuple[list[str], str]] = [(list(_COLUMNS), "bold")]
    for uuid, gpu in sorted(gpus["by_uuid"].items(), key=lambda item: (item[1]["index"], not item[1]["up"])):
        rows.append(([*map(printable, _gpu_row(uuid, gpu, short))], _COLOURS[gpu["health"]["level"]]))
        for mig_uuid, instance in gpu["mig"].items():
            rows.append(([*map(printable, _instance_row(mig_uuid, instance, short))], ""))
    widths = [max(len(cells[column]) for cells, _ in rows) for column in range(len(_COLUMNS))]
    for cells, colour in rows:
        yield _line(cells, widths, width, colour)
    yield GpuLine(printable(_summary(gpus)), printable(""))


def _line(cells: Sequence[str], widths: Sequence[int], width: int, colour: str) -> GpuLine:
    *begin, last = cells
    aligned = (
        cell.rjust(size) if column in _NUMBERS else cell.ljust(size)
        for column, (cell, size) in enumerate(zip(begin, widths, strict=False))
    )
    text = "  ".join(aligned) + "  "
    end = last[: max(0, width - len(text))]
    return GpuLine(printable(text[:width] if end else text[:width].rstrip()), printable(end), colour)


def _summary(gpus: Document) -> str:
    of_all = f" of {gpus['expected']}" if gpus["present"] != gpus["expected"] else ""
    return f"{gpus['present']} GPUs{of_all}, driver {gpus['driver_version']}, CUDA {gpus['cuda_version']}"


def _gpu_row(uuid: str, gpu: Document, short: bool) -> Iterator[str]:
    yield str(gpu["index"])
    yield gpu["name"]
    yield _uuid(uuid, short)
    yield _memory(gpu)
    yield _percent(gpu["utilization_ratio"])
    yield _or_dash(gpu["temperature_celsius"], " C")
    yield _power(gpu["power_watts"], gpu["power_limit_watts"])
    yield _or_dash(gpu["processes"])
    yield ", ".join((gpu["health"]["level"], *gpu["health"]["reasons"]))


def _instance_row(uuid: str, instance: Document, short: bool) -> Iterator[str]:
    activity = instance["activity"]
    yield f" {instance['slot']}"
    yield f" MIG {instance['profile']}"
    yield _uuid(uuid, short)
    yield _memory(instance)
    yield _percent(None if activity is None else activity["graphics_ratio"])
    yield ""
    yield ""
    yield _or_dash(instance["processes"])
    yield ""


def _uuid(uuid: str, short: bool) -> str:
    return uuid[:_SHORT_UUID] if short else uuid


def _or_dash(value: float | None, unit: str = "") -> str:
    return _UNKNOWN if value is None else f"{value:g}{unit}"


def _percent(ratio: float | None) -> str:
    return _UNKNOWN if ratio is None else f"{100 * ratio:.0f}%"


def _memory(of: Document) -> str:
    used, total = of["memory_used_bytes"], of["memory_total_bytes"]
    parts = [_UNKNOWN if value is None else f"{value / _GIB:.1f}" for value in (used, total)]
    return _UNKNOWN if used is None and total is None else f"{parts[0]} / {parts[1]} GiB"


def _power(watts: float | None, limit: float | None) -> str:
    if watts is None:
        return _UNKNOWN
    return f"{watts:.0f} W" if limit is None else f"{watts:.0f} / {limit:.0f} W"
