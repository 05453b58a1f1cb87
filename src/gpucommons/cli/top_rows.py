"""The rows of `gpucommons top`: pure functions of the API's document.

Names come from users and may hold any character: what is not printable is escaped.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpucommons.base.printable import Printable, printable
from gpucommons.cli.gpus_view import slot_owners, slot_state

MISSING = "-"
SPARK_WIDTH = 9
_BAR_WIDTH = 5
_BLOCKS = "▁▂▃▄▅▆▇█"

Document = Mapping[str, Any]
HostUse = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True, slots=True)
class Column:
    """`wide` columns grow with a terminal of more than 80 columns. One that is `whole` is as wide as its texts: the
    table scrolls to the right.
    """

    title: str
    number: bool = True
    width: int = 0
    wide: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class TopRow:
    """`sort` has the value to sort by for each cell; `grave` rows are red."""

    key: str
    cells: tuple[Printable, ...]
    sort: tuple[float | str | None, ...]
    grave: bool = False
    search: str = field(default="")


GPU_COLUMNS = (
    Column("GPU", False, 4),
    Column("Busy", width=11),
    Column("Memory", width=15),
    Column("Power", width=5),
    Column("Temp", width=5),
    Column("State", False, 14),
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
    Column("GPU", False, 3),
    Column("PID", width=7),
    Column("User", False, 8),
    Column("GPU mem", width=9),
    Column("%GPU", width=5),
    Column("%CPU", width=5),
    Column("Host mem", width=8),
    Column("Time", width=6),
    Column("Command", False, 9, wide=True, whole=True),
)
EVENT_COLUMNS = (
    Column("Time", False, 19),
    Column("Type", False, 18),
    Column("User", False, 10),
    Column("Details", False, 20, wide=True, whole=True),
)
QUEUE_COLUMNS = (
    Column("Place", False, 5),
    Column("Id", False, 8),
    Column("User", False, 10),
    Column("GPUs", False, 6),
    Column("For", width=10),
    Column("Expected", width=10),
    Column("Why", False, 14, wide=True, whole=True),
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
    document: Document,
    recent: Mapping[str, Iterable[float | None]],
    spark_width: int = SPARK_WIDTH,
    slots: Document | None = None,
) -> list[TopRow]:
    """A row for each GPU, and below it one for each of its MIG devices. `slots` is that of /api/v1/slots."""
    gpus = document["gpus"]
    if gpus is None:
        return []
    found = sorted(gpus["by_uuid"].items(), key=lambda item: int(item[1]["index"]))
    known = slots or {}
    rows: list[TopRow] = []
    for uuid, gpu in found:
        rows.append(_gpu_row(uuid, gpu, known, spark(recent.get(uuid, ()), spark_width)))
        rows += [_instance_row(mig_uuid, each, known.get(mig_uuid)) for mig_uuid, each in gpu["mig"].items()]
    return rows


def _instance_row(uuid: str, instance: Mapping[str, Any], slot: Mapping[str, Any] | None) -> TopRow:
    activity = instance["activity"]
    ratio = None if activity is None else activity["graphics_ratio"]
    owner = slot_owners(slot, full=False) if slot else ""
    cells = (
        f" {instance['slot']}",
        _with_bar(ratio, percent(ratio)),
        _memory(instance),
        "",
        "",
        slot_state(slot) if slot else "",
        owner or instance["profile"],
    )
    sort = (instance["slot"], ratio, instance["memory_used_bytes"], None, None, None, None)
    return TopRow(uuid, _printables(cells), sort)


def _with_bar(ratio: float | None, text: str) -> str:
    """The text, right-aligned, after a bar of that ratio."""
    if ratio is None:
        return text
    filled = min(_BAR_WIDTH, max(0, round(ratio * _BAR_WIDTH)))
    return f"{'█' * filled}{'░' * (_BAR_WIDTH - filled)} {text}"


def _memory(of: Mapping[str, Any]) -> str:
    used, total = of["memory_used_bytes"], of["memory_total_bytes"]
    text = f"{MISSING if used is None else round(used / 2**30)}/{MISSING if total is None else round(total / 2**30)} G"
    return _with_bar(used / total if used is not None and total else None, text)


def _gpu_row(uuid: str, gpu: Mapping[str, Any], slots: Document, lately: str) -> TopRow:
    index, level, reasons = gpu["index"], gpu["health"]["level"], gpu["health"]["reasons"]
    if not gpu["up"]:
        reason = ", ".join(reasons).replace("_", " ")
        cells = (f"{index}!", "LOST", reason[:14], "", "", "lost", lately)
        return TopRow(uuid, _printables(cells), (index, None, None, None, None, None, None), grave=True)
    healthy = level == "ok"
    cells = (
        str(index) if healthy else f"{index}!",
        _with_bar(gpu["utilization_ratio"], percent(gpu["utilization_ratio"])),
        _memory(gpu),
        watts(gpu["power_watts"]),
        f"{_whole(gpu['temperature_celsius'])} °C",
        slot_state(slots[uuid]) if uuid in slots else "",
        lately,
    )
    sort = (
        index,
        gpu["utilization_ratio"],
        gpu["memory_used_bytes"],
        gpu["power_watts"],
        gpu["temperature_celsius"],
        None,
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


def process_rows(document: Document, host: HostUse | None = None) -> list[TopRow]:
    """`host` has what the processes use of the host, by the key of the row."""
    who = document["who"]
    known = host or {}
    return [] if who is None else [_process_row(key, row, known.get(key)) for key, row in who["processes"].items()]


def _process_row(key: str, row: Mapping[str, Any], use: Mapping[str, float | None] | None) -> TopRow:
    name = printable(row["name"] or "unknown")
    user = printable(row["account"] or (row["reason"] or "").replace("_", " "))
    place = row["slot"] or str(row["gpu_index"])
    cpu, rss, age = (use.get(part) if use else None for part in ("cpu_ratio", "rss_bytes", "age_s"))
    cells = (
        place,
        str(row["pid"]),
        user,
        about(row["memory_basis"]) + size(row["memory_bytes"]),
        about(row["sm_basis"]) + percent(row["sm_ratio"]),
        percent(cpu),
        size(rss),
        MISSING if age is None else duration(age),
        name,
    )
    sort = (place, row["pid"], user, row["memory_bytes"], row["sm_ratio"], cpu, rss, age, name)
    more = printable(" ".join(str(row[field] or "") for field in ("owner", "user", "container", "pod", "job")))
    return TopRow(key, _printables(cells), sort, search=f"{name} {row['pid']} {user} {more}")


def host_use(before: Document | None, now: Document) -> HostUse:
    """The ratio of a CPU core, the memory and the age of each process, from two documents of /api/v1/who."""
    earlier = (before["host_use"] if before else None) or {}
    found: dict[str, Mapping[str, float | None]] = {}
    for key, use in (now["host_use"] or {}).items():
        first = earlier.get(key)
        span_s = now["time_unix_s"] - before["time_unix_s"] if before else 0.0
        ratio = None
        if first and span_s > 0 and use["cpu_seconds"] is not None and first["cpu_seconds"] is not None:
            ratio = (use["cpu_seconds"] - first["cpu_seconds"]) / span_s
        age_s = None if use["start_unix_s"] is None else now["time_unix_s"] - use["start_unix_s"]
        found[key] = {"cpu_ratio": ratio, "rss_bytes": use["rss_bytes"], "age_s": age_s}
    return found


def event_rows(document: Document) -> list[TopRow]:
    """The newest first."""
    rows: list[TopRow] = []
    for id, event in (document["events"] or {}).items():
        when = datetime.fromtimestamp(event["time_unix_s"]).strftime("%Y-%m-%d %H:%M:%S")
        details = " ".join(f"{name}={value}" for name, value in event["details"].items() if value not in ("", "None"))
        cells = _printables((when, event["type"], event["user"], details))
        rows.append(TopRow(id, cells, tuple(cells), grave=event["type"].endswith("lost"), search=" ".join(cells)))
    return rows


def queue_rows(queue: Document | None, now_s: float) -> list[TopRow]:
    """Leases first, then the requests in the order in which they are served."""
    if queue is None:
        return []
    rows: list[TopRow] = []
    for id, lease in queue["leases"].items():
        length = duration(now_s - lease["since_unix_s"])
        cells = _printables(("lease", id, lease["user"], ",".join(lease["slots"]), length, "", lease["name"]))
        rows.append(TopRow(f"lease/{id}", cells, tuple(cells)))
    for id, request in queue["waiting"].items():
        start_s = request["expected_start_unix_s"]
        expected = MISSING if start_s is None else f"~{duration(start_s - now_s)}"
        length = duration(now_s - request["since_unix_s"])
        place, gpus = str(request["position"]), str(request["gpus"])
        cells = _printables((place, id, request["user"], gpus, length, expected, request["sentence"]))
        rows.append(TopRow(f"request/{id}", cells, tuple(cells)))
    return rows


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
