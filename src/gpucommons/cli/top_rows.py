"""The rows of `gpucommons top`, and the page of one GPU: pure functions of the API's document."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from gpucommons.base.text import Printable, printable, printable_lines
from gpucommons.cli.gpus_view import free_instances, slot_owners, slot_state
from gpucommons.cli.top_table import (
    GRAVE,
    LEVEL_COLOURS,
    MISSING,
    Column,
    TopRow,
    about,
    duration,
    graph,
    percent,
    printables,
    size,
    spark,
    sum_known,
    watts,
    whole,
)

# The rows of `gpucommons top`: pure functions of the API's document.
#
# Names come from users and may hold any character: what is not printable is escaped.

SPARK = "2 min"
_BAR_WIDTH = 5

Document = Mapping[str, Any]


GPU_COLUMNS = (
    Column("GPU", False, 4),
    Column("Busy", width=11),
    Column("Memory", width=15),
    Column("Power", width=5),
    Column("Temp", width=5),
    Column("Owner", False, 8, most=26),
    Column("State", False, 16, state=True),
    Column(SPARK, False, most=60),
)
OWNER_COLUMNS = (
    Column("Owner", False, 24, most=60),
    Column("Memory", width=9),
    Column("SM", width=7),
    Column("Power", width=8),
    Column("Today", width=7),
    Column("GPUs", False, 9),
)
EVENT_COLUMNS = (
    Column("Time", False, 19),
    Column("Type", False, 18),
    Column("User", False, 10),
    Column("Details", False, 20, whole=True),
)
QUEUE_COLUMNS = (
    Column("Place", False, 5),
    Column("Id", False, 5),
    Column("User", False, 9),
    Column("GPUs", False, 6),
    Column("For", width=6),
    Column("Expected", width=8),
    Column("Why", False, 25, whole=True),
)
PROBLEM_COLUMNS = (
    Column("Level", False, 8),
    Column("Problem", False, 32, whole=True),
    Column("What to do", False, 20, whole=True),
)
TURN_COLUMNS = (
    Column("Client", False, 19, most=40),
    Column("GPU", width=3),
    Column("Now", False, 23, most=200),
    Column("Wait", width=7),
    Column("Quota", width=6),
    Column("Turns", width=6),
)


def gpu_rows(document: Document, recent: Mapping[str, Iterable[float | None]], spark_width: int = 0) -> list[TopRow]:
    """A row for each GPU, and below it one for each of its MIG devices. `recent` has the utilisation by UUID."""
    gpus = document["gpus"]
    if gpus is None:
        return []
    ordered = sorted(gpus["by_uuid"].items(), key=lambda item: int(item[1]["index"]))
    slots = document["slots"] or {}
    rows: list[TopRow] = []
    for uuid, gpu in ordered:
        rows.append(_gpu_row(uuid, gpu, slots, spark(recent.get(uuid, ()), spark_width) if spark_width else ""))
        rows += [_instance_row(mig_uuid, instance, slots.get(mig_uuid)) for mig_uuid, instance in gpu["mig"].items()]
    return rows


def _instance_row(uuid: str, instance: Mapping[str, Any], slot: Mapping[str, Any] | None) -> TopRow:
    activity = instance["activity"]
    ratio = None if activity is None else activity["graphics_ratio"]
    cells = (
        f" {instance['slot']}",
        _busy(ratio),
        _memory(instance),
        "",
        "",
        slot_owners(slot, full=False) if slot else "",
        slot_state(slot) if slot else "",
        instance["profile"],
    )
    sort = (instance["slot"], ratio, instance["memory_used_bytes"], None, None, None, None, None)
    return TopRow(uuid, printables(cells), sort)


def _with_bar(ratio: float | None, text: str, width: int) -> str:
    """The text, right-aligned in `width`, after a bar of that ratio. The bars of all rows begin in one column."""
    if ratio is None:
        return text
    filled = min(_BAR_WIDTH, max(0, round(ratio * _BAR_WIDTH)))
    return f"{'█' * filled}{'░' * (_BAR_WIDTH - filled)} {text:>{width}}"


def _busy(ratio: float | None) -> str:
    return _with_bar(ratio, percent(ratio), len("100 %"))


def _memory(of: Mapping[str, Any]) -> str:
    used, total = of["memory_used_bytes"], of["memory_total_bytes"]
    text = f"{MISSING if used is None else round(used / 2**30)}/{MISSING if total is None else round(total / 2**30)} G"
    return _with_bar(used / total if used is not None and total else None, text, len("140/140 G"))


def _gpu_row(uuid: str, gpu: Mapping[str, Any], slots: Document, lately: str) -> TopRow:
    index, level, reasons = gpu["index"], gpu["health"]["level"], gpu["health"]["reasons"]
    if not gpu["up"]:
        reason = ", ".join(reasons).replace("_", " ")
        cells = (f"{index}!", "LOST", reason[:15], "", "", "", "lost", lately)
        return TopRow(uuid, printables(cells), (index, *[None] * 7), GRAVE)
    healthy, slot = level == "ok", slots.get(uuid)
    instances = [slots[mig_uuid] for mig_uuid in gpu["mig"] if mig_uuid in slots]
    cells = (
        str(index) if healthy else f"{index}!",
        _busy(gpu["utilization_ratio"]),
        _memory(gpu),
        watts(gpu["power_watts"]),
        f"{whole(gpu['temperature_celsius'])} °C",
        slot_owners(slot, full=False) if slot else "",
        slot_state(slot) if slot else free_instances(instances),
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
        None,
    )
    return TopRow(uuid, printables(cells), sort, LEVEL_COLOURS[level])


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
    return TopRow(key, printables(cells), sort, search=f"{label} {owner['kind']}")


def _rest_row(reason: str, parts: Iterable[Mapping[str, Any]]) -> TopRow:
    parts = list(parts)
    label = f"unattributed: {reason.replace('_', ' ')}"
    memory, sm, power = (
        sum_known(part[name] for part in parts) for name in ("memory_bytes", "sm_ratio", "power_watts")
    )
    gpus = sorted(part["gpu_index"] for part in parts)
    cells = (label, size(memory), percent(sm), watts(power), MISSING, " ".join(map(str, gpus)))
    return TopRow(f"rest/{reason}", printables(cells), (label, memory, sm, power, None, gpus[0]), search=label)


def event_rows(document: Document) -> list[TopRow]:
    """The newest first."""
    rows: list[TopRow] = []
    for id, event in (document["events"] or {}).items():
        when = datetime.fromtimestamp(event["time_unix_s"]).strftime("%Y-%m-%d %H:%M:%S")
        details = " ".join(f"{name}={value}" for name, value in event["details"].items() if value not in ("", "None"))
        cells = printables((when, event["type"], event["user"], details))
        rows.append(
            TopRow(id, cells, tuple(cells), GRAVE if event["type"].endswith("lost") else "", search=" ".join(cells))
        )
    return rows


def problem_rows(document: Document) -> list[TopRow]:
    """The gravest first."""
    ordered = sorted(document["problems"].items(), key=lambda item: int(item[1]["rank"]))
    rows = [
        (key, problem, printables((problem["level"], problem["sentence"], problem["remedy"])))
        for key, problem in ordered
    ]
    return [TopRow(key, cells, tuple(cells), LEVEL_COLOURS[problem["level"]]) for key, problem, cells in rows]


def queue_rows(document: Document) -> list[TopRow]:
    """Leases first, then the requests in the order in which they are served."""
    queue, now_s = document["queue"], document["time_unix_s"]
    if queue is None:
        return []
    rows: list[TopRow] = []
    for id, lease in queue["leases"].items():
        length = duration(now_s - lease["since_unix_s"])
        cells = printables(("lease", id, lease["user"], ",".join(lease["slots"]), length, "", lease["name"]))
        rows.append(TopRow(f"lease/{id}", cells, tuple(cells)))
    for id, request in queue["waiting"].items():
        start_s = request["expected_start_unix_s"]
        expected = MISSING if start_s is None else f"~{duration(start_s - now_s)}"
        length = duration(now_s - request["since_unix_s"])
        place, gpus = str(request["position"]), str(request["gpus"])
        cells = printables((place, id, request["user"], gpus, length, expected, request["sentence"]))
        rows.append(TopRow(f"request/{id}", cells, tuple(cells)))
    return rows


def turn_rows(document: Document) -> list[TopRow]:
    turns = document["turns"]
    if turns is None:
        return []
    slots = {uuid: gpu["slot"] for uuid, gpu in turns["gpus"].items()}
    order = {
        client: (_number(gpu["slot"]) or 0.0, place)
        for gpu in turns["gpus"].values()
        for place, client in enumerate([*gpu["running"], *gpu["waiting"]])
    }
    ids = sorted(turns["clients"], key=lambda id: order.get(id, (math.inf, 0)))
    parked = {} if turns["parking"] is None else turns["parking"]["programs"]
    return [
        *(_turn_row(id, turns["clients"][id], slots) for id in ids),
        *(_parked_row(key, program, slots) for key, program in parked.items()),
    ]


def _number(slot: str | None) -> float | None:
    """To sort by: GPU 6, then its MIG devices 6.0 and 6.1. Each GPU has at most seven."""
    return float(slot) if slot else None


def _parked_row(key: str, program: Mapping[str, Any], slots: Mapping[str, str | None]) -> TopRow:
    name, slot = printable(program["name"]), slots.get(program["gpu_uuid"])
    now = f"{program['stage']}: {size(program['host_bytes'])} in host memory"
    if program["waits"]:
        now += f"; {program['waits']}"
    elif program["sentence"]:
        now += f"; {program['sentence']}"
    return TopRow(
        key,
        printables((name, slot or MISSING, now, "", "", "")),
        (name, _number(slot), now, program["remaining_s"], None, None),
        colour=GRAVE if program["stage"] == "stranded" else "",
        search=f"{name} {now}",
    )


def _turn_row(id: str, client: Mapping[str, Any], slots: Mapping[str, str | None]) -> TopRow:
    name, slot = printable(client["name"]), slots.get(client["gpu_uuid"])
    wait = client["wait"]
    expected = None if wait is None else wait["expected_s"]
    if client["turn_s"] is not None:
        now = f"runs {duration(client['turn_s'])}"
    elif wait is not None:
        now = f"waits {duration(wait['waited_s'])}: {wait['sentence']}"
    else:
        now = client["held_up"] or client["standing"]
    if client["sharing_class"] != "batch":
        now = f"{client['sharing_class']}, {now}"
    cells = (
        name,
        slot or MISSING,
        now,
        "" if wait is None else MISSING if expected is None else f"~{duration(expected)}",
        f"{client['core_quota_percent']} %",
        str(client["turns_total"]),
    )
    sort = (name, _number(slot), now, expected, client["core_quota_percent"], client["turns_total"])
    return TopRow(
        id,
        printables(cells),
        sort,
        colour=GRAVE if client["revoked"] else "",
        search=f"{name} {printable(client['namespace'])} {now}",
    )


# The details of one GPU in `gpucommons top`: its history as two graphs, and a page of text. Pure.

_GAP = "  "
_SCALE = len("100 % ")


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
    return next((gpu_uuid for gpu_uuid, gpu in gpus.items() if uuid == gpu_uuid or uuid in gpu["mig"]), None)


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
