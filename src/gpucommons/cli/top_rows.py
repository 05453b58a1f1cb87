"""The rows of `gpucommons top`: pure functions of the API's document.

Names come from users and may hold any character: what is not printable is escaped.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucommons.base.printable import Printable, printable

MISSING = "-"
SPARK_WIDTH = 15
_BLOCKS = "▁▂▃▄▅▆▇█"

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """`wide` columns grow with a terminal of more than 80 columns."""

    title: str
    number: bool = True
    width: int = 0
    wide: bool = False


@dataclass(frozen=True, slots=True)
class TopRow:
    """`sort` has the value to sort by for each cell; `grave` rows are red."""

    key: str
    cells: tuple[Printable, ...]
    sort: tuple[float | str | None, ...]
    grave: bool = False
    search: str = field(default="")


GPU_COLUMNS = (
    Column("GPU", False, 3),
    Column("Busy", width=5),
    Column("Memory", width=17),
    Column("Power", width=11),
    Column("Temp", width=6),
    Column("Procs", width=5),
    Column("Last 2 min", False, SPARK_WIDTH, wide=True),
)
OWNER_COLUMNS = (
    Column("Owner", False, 24, wide=True),
    Column("Memory", width=9),
    Column("SM", width=7),
    Column("Power", width=8),
    Column("Today", width=7),
    Column("GPUs", False, 9),
)
PROCESS_COLUMNS = (
    Column("Process", False, 20, wide=True),
    Column("PID", width=7),
    Column("Memory", width=9),
    Column("SM", width=7),
    Column("GPU", width=3),
    Column("Owner", False, 18),
)
TURN_COLUMNS = (
    Column("Client", False, 19),
    Column("GPU", width=3),
    Column("Now", False, 23, wide=True),
    Column("Wait", width=7),
    Column("Quota", width=6),
    Column("Turns", width=6),
)


def head_line(document: Document, lost: str) -> Printable:
    node = document["node"]
    health, cpu, memory = node["health"], node["cpu"], node["memory"]
    parts = [document["hostname"]]
    if document["simulated"]:
        parts.append(f"SIMULATED {document['simulated']}")
    parts.append(f"health {MISSING if health is None else format(health['score'], '.1f')}")
    parts.append(f"CPU {percent(None if cpu is None else cpu['utilization_ratio'])}")
    if memory is not None and memory["available_bytes"] is not None:
        parts.append(f"memory {percent(1 - memory['available_bytes'] / memory['total_bytes'])}")
    failing = [name for name, source in node["sources"].items() if source["state"] in ("failing", "stale")]
    if failing:
        parts.append(f"not read: {', '.join(failing)}")
    if lost:
        parts.insert(0, "LOST, last known state")
    return printable(" · ".join(parts))


def _printables(cells: Iterable[str]) -> tuple[Printable, ...]:
    return tuple(map(printable, cells))


def gpu_rows(
    document: Document, recent: Mapping[str, Iterable[float | None]], spark_width: int = SPARK_WIDTH
) -> list[TopRow]:
    gpus = document["gpus"]
    if gpus is None:
        return []
    found = sorted(gpus["by_uuid"].items(), key=lambda item: int(item[1]["index"]))
    return [_gpu_row(uuid, gpu, spark(recent.get(uuid, ()), spark_width)) for uuid, gpu in found]


def _gpu_row(uuid: str, gpu: Mapping[str, Any], lately: str) -> TopRow:
    index, level, reasons = gpu["index"], gpu["health"]["level"], gpu["health"]["reasons"]
    if not gpu["up"]:
        reason = ", ".join(reasons).replace("_", " ")
        cells = (f"{index}!", "LOST", reason[:17], "", "", "", lately)
        return TopRow(uuid, _printables(cells), (index, None, None, None, None, None, None), grave=True)
    healthy = level == "ok"
    cells = (
        str(index) if healthy else f"{index}!",
        percent(gpu["utilization_ratio"]),
        f"{size(gpu['memory_used_bytes'])}/{size(gpu['memory_total_bytes'])}",
        f"{_whole(gpu['power_watts'])}/{_whole(gpu['power_limit_watts'])} W",
        f"{_whole(gpu['temperature_celsius'])} °C",
        _whole(gpu["processes"]),
        lately,
    )
    sort = (
        index,
        gpu["utilization_ratio"],
        gpu["memory_used_bytes"],
        gpu["power_watts"],
        gpu["temperature_celsius"],
        gpu["processes"],
        None,
    )
    return TopRow(uuid, _printables(cells), sort, grave=not healthy)


def owner_rows(document: Document) -> list[TopRow]:
    who = document["who"]
    if who is None:
        return []
    rows = [_owner_row(key, owner) for key, owner in who["owners"].items()]
    rest: dict[str, list[Mapping[str, Any]]] = {}
    for reasons in who["unattributed"].values():
        for reason, part in reasons.items():
            if _is_visible(part):
                rest.setdefault(reason, []).append(part)
    return rows + [_rest_row(reason, parts) for reason, parts in rest.items()]


def _is_visible(part: Mapping[str, Any]) -> bool:
    """False if every cell would be a zero, as for a remainder of rounding."""
    memory, sm, power = (part[name] or 0 for name in ("memory_bytes", "sm_ratio", "power_watts"))
    return bool(memory >= 2**19 or sm >= 0.0005 or power >= 0.5)


def _owner_row(key: str, owner: Mapping[str, Any]) -> TopRow:
    name = owner["name"] or owner["id"]
    label = printable(f"{owner['namespace']}/{name}" if owner["namespace"] else name)
    gpus = sorted(share["gpu_index"] for share in owner["by_gpu"].values())
    hours = owner["gpu_hours_today"]
    cells = (
        label,
        about(owner["memory_basis"]) + size(owner["memory_bytes"]),
        about(owner["sm_basis"]) + percent(owner["sm_ratio"]),
        about(owner["power_basis"]) + watts(owner["power_watts"]),
        MISSING if hours is None else f"{hours:.1f} h",
        " ".join(map(str, gpus)),
    )
    sort = (label, owner["memory_bytes"], owner["sm_ratio"], owner["power_watts"], hours, gpus[0] if gpus else None)
    return TopRow(key, _printables(cells), sort, search=f"{label} {owner['kind']}")


def _rest_row(reason: str, parts: Iterable[Mapping[str, Any]]) -> TopRow:
    parts = list(parts)
    label = f"unattributed: {reason.replace('_', ' ')}"
    memory, sm, power = (_sum(part[name] for part in parts) for name in ("memory_bytes", "sm_ratio", "power_watts"))
    gpus = sorted(part["gpu_index"] for part in parts)
    cells = (label, size(memory), percent(sm), watts(power), MISSING, " ".join(map(str, gpus)))
    return TopRow(f"rest/{reason}", _printables(cells), (label, memory, sm, power, None, gpus[0]), search=label)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def process_rows(document: Document) -> list[TopRow]:
    who = document["who"]
    return [] if who is None else [_process_row(key, row, who["owners"]) for key, row in who["processes"].items()]


def _process_row(key: str, row: Mapping[str, Any], owners: Mapping[str, Any]) -> TopRow:
    name = printable(row["name"] or "unknown")
    owner = owners.get(row["owner"] or "")
    whose = printable((owner["name"] or owner["id"]) if owner else (row["reason"] or "").replace("_", " "))
    cells = (
        name,
        str(row["pid"]),
        about(row["memory_basis"]) + size(row["memory_bytes"]),
        about(row["sm_basis"]) + percent(row["sm_ratio"]),
        str(row["gpu_index"]),
        whose,
    )
    sort = (name, row["pid"], row["memory_bytes"], row["sm_ratio"], row["gpu_index"], whose)
    more = printable(" ".join(str(row[field] or "") for field in ("user", "container", "pod", "job")))
    return TopRow(key, _printables(cells), sort, search=f"{name} {row['pid']} {whose} {more}")


def turn_rows(document: Document) -> list[TopRow]:
    turns = document["turns"]
    if turns is None:
        return []
    order = {
        client: (gpu["index"] or 0, place)
        for gpu in turns["gpus"].values()
        for place, client in enumerate([*gpu["running"], *gpu["waiting"]])
    }
    ids = sorted(turns["clients"], key=lambda id: order.get(id, (99, 99)))
    parked = {} if turns["parking"] is None else turns["parking"]["programs"]
    return [
        *(_turn_row(id, turns["clients"][id]) for id in ids),
        *(_parked_row(key, one, turns["gpus"].get(one["gpu_uuid"])) for key, one in parked.items()),
    ]


def _parked_row(key: str, program: Mapping[str, Any], gpu: Mapping[str, Any] | None) -> TopRow:
    name, index = printable(program["name"]), None if gpu is None else gpu["index"]
    now = f"{program['stage']}: {size(program['host_bytes'])} in host memory"
    if program["waits"]:
        now += f"; {program['waits']}"
    return TopRow(
        key,
        _printables((name, _whole(index), now, "", "", "")),
        (name, index, now, program["remaining_s"], None, None),
        grave=program["stage"] == "stranded",
        search=f"{name} {now}",
    )


def _turn_row(id: str, client: Mapping[str, Any]) -> TopRow:
    name = printable(client["name"])
    wait = client["wait"]
    expected = None if wait is None else wait["expected_s"]
    if client["turn_s"] is not None:
        now = f"runs {duration(client['turn_s'])}"
    elif wait is not None:
        now = f"waits {duration(wait['waited_s'])}: {wait['sentence']}"
    else:
        now = client["standing"]
    cells = (
        name,
        _whole(client["gpu_index"]),
        now,
        "" if wait is None else MISSING if expected is None else f"~{duration(expected)}",
        f"{client['core_quota_percent']} %",
        str(client["turns_total"]),
    )
    sort = (name, client["gpu_index"], now, expected, client["core_quota_percent"], client["turns_total"])
    return TopRow(
        id, _printables(cells), sort, grave=client["revoked"], search=f"{name} {printable(client['namespace'])} {now}"
    )


def arranged(rows: Iterable[TopRow], text: str, column: int | None, down: bool) -> list[TopRow]:
    """The rows that contain the text, sorted. Rows without a reading come last in both directions."""
    needle = text.strip().lower()
    found = [row for row in rows if needle in (row.search or " ".join(row.cells)).lower()]
    if column is None:
        return found
    known = [row for row in found if row.sort[column] is not None]
    unknown = [row for row in found if row.sort[column] is None]
    # A column holds either numbers or texts.
    return sorted(known, key=_by(column), reverse=down) + unknown


def _by(column: int) -> Callable[[TopRow], Any]:
    def key(row: TopRow) -> Any:
        value = row.sort[column]
        return value.lower() if isinstance(value, str) else value

    return key


def spark(readings: Iterable[float | None], width: int) -> str:
    """The values as at most `width` blocks, each the mean of several values; a gap is a space."""
    values = list(readings)
    if not values:
        return ""
    length = max(1, -(-len(values) // width))
    cells = []
    for start in range(0, len(values), length):
        known = [value for value in values[start : start + length] if value is not None]
        mean = sum(known) / len(known) if known else None
        cells.append(" " if mean is None else _BLOCKS[min(7, max(0, round(mean * 7)))])
    return "".join(cells).rjust(width)


def about(basis: str | None) -> str:
    return "~" if basis == "apportioned" else ""


def percent(ratio: float | None) -> str:
    return MISSING if ratio is None else f"{100 * ratio:.0f} %"


def watts(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0f} W"


def _whole(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0f}"


def size(value: float | None) -> str:
    if value is None:
        return MISSING
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1000 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h"
