"""The table of `gpucommons gpus`, from the API's documents. An unknown value is a dash."""

from collections.abc import Iterator, Mapping, Sequence
from shutil import get_terminal_size
from typing import Any, TextIO

from gpucommons.base.printable import Printable, printable

_UNKNOWN = "-"
_GIB = 2**30
# A pipe gets every column in full; a narrow terminal gets short UUIDs.
_PIPE_WIDTH = 250
_NARROW = 140
_SHORT_UUID = 12
_STYLES = {"ok": "\033[32m", "warning": "\033[33m", "critical": "\033[31m", "lost": "\033[1;31m"}
_BOLD, _PLAIN = "\033[1m", "\033[0m"
_COLUMNS = ("GPU", "NAME", "UUID", "MEMORY", "UTIL", "TEMP", "POWER", "PROCESSES", "HEALTH")
_NUMBERS = range(3, 8)

Document = Mapping[str, Any]


def missing(document: Document) -> Printable:
    """Why the snapshot has no GPUs. `document` is that of /api/v1/snapshot."""
    source = document["node"]["sources"].get("nvml")
    why = "; ".join(filter(None, (source["detail"], source["remedy"]))) if source else "there is no source for them"
    return printable(f"no GPU readings: {why}")


def render(gpus: Document, to: TextIO) -> None:
    width = get_terminal_size().columns if to.isatty() else _PIPE_WIDTH
    short = width < _NARROW
    rows: list[tuple[list[str], str]] = [(list(_COLUMNS), _BOLD)]
    for uuid, gpu in sorted(gpus["by_uuid"].items(), key=lambda item: (item[1]["index"], not item[1]["up"])):
        rows.append(([*map(printable, _gpu_row(uuid, gpu, short))], _STYLES[gpu["health"]["level"]]))
        for mig_uuid, instance in gpu["mig"].items():
            rows.append(([*map(printable, _instance_row(mig_uuid, instance, short))], ""))
    widths = [max(len(cells[column]) for cells, _ in rows) for column in range(len(_COLUMNS))]
    for cells, style in rows:
        to.write(_line(cells, widths, width, style if to.isatty() else "") + "\n")
    to.write(_summary(gpus) + "\n")


def _line(cells: Sequence[str], widths: Sequence[int], width: int, style: str) -> str:
    """One line of at most `width` characters. Only the last column is coloured: the health."""
    *begin, last = cells
    aligned = (
        cell.rjust(size) if column in _NUMBERS else cell.ljust(size)
        for column, (cell, size) in enumerate(zip(begin, widths, strict=False))
    )
    text = "  ".join(aligned) + "  "
    end = last[: max(0, width - len(text))]
    return f"{text}{style}{end}{_PLAIN}" if style and end else f"{text}{end}"[:width].rstrip()


def _summary(gpus: Document) -> str:
    of_all = f" of {gpus['expected']}" if gpus["present"] != gpus["expected"] else ""
    versions = printable(f"driver {gpus['driver_version']}, CUDA {gpus['cuda_version']}")
    return f"{gpus['present']} GPUs{of_all}, {versions}"


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
