"""The table of `gpucommons gpus`, from the API's documents. An unknown value is a dash."""

from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from gpucommons.base.printable import Printable, printable
from gpucommons.cli.output import rich_text

_UNKNOWN = "-"
_GIB = 2**30
# A pipe gets every column in full; a narrow terminal gets short UUIDs.
_PIPE_WIDTH = 250
_NARROW = 140
_SHORT_UUID = 12
_STYLES = {"ok": "green", "warning": "yellow", "critical": "red", "lost": "bold red"}
_COLUMNS = ("GPU", "NAME", "UUID", "MEMORY", "UTIL", "TEMP", "POWER", "PROCESSES", "HEALTH")

Document = Mapping[str, Any]


def missing(document: Document) -> Printable:
    """Why the snapshot has no GPUs."""
    source = document["node"]["sources"].get("nvml")
    why = "; ".join(filter(None, (source["detail"], source["remedy"]))) if source else "there is no source for them"
    return printable(f"no GPU readings: {why}")


def render(gpus: Document, to: TextIO) -> None:
    # Imported here: importing rich takes a tenth of a second, and JSON output does not need it.
    from rich.console import Console
    from rich.table import Table

    console = Console(file=to, width=None if to.isatty() else _PIPE_WIDTH, highlight=False)
    short = console.width < _NARROW
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in _COLUMNS[3:8] else "left", no_wrap=True)
    for uuid, gpu in sorted(gpus["by_uuid"].items(), key=lambda item: (item[1]["index"], not item[1]["up"])):
        *cells, health = map(printable, _gpu_row(uuid, gpu, short))
        table.add_row(*map(rich_text, cells), rich_text(health, _STYLES[gpu["health"]["level"]]))
        for mig_uuid, instance in gpu["mig"].items():
            table.add_row(*map(rich_text, map(printable, _instance_row(mig_uuid, instance, short))))
    console.print(table)
    console.print(rich_text(printable(_summary(gpus))), soft_wrap=True)


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
