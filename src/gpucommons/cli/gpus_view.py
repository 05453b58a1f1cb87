"""The table of `gpucommons gpus`, the node's state in one sentence, and its problems, from the API's documents.

An unknown value is a dash.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpucommons.base.periods import spoken_duration
from gpucommons.base.text import Printable, printable
from gpucommons.cli.output import Line, Span, plain_line
from gpucommons.cli.text_table import TextTable, exact_table, wrap_lines

# The table of `gpucommons gpus`, from the API's documents. An unknown value is a dash.

_UNKNOWN = "-"
_GIB = 2**30
_HEADER = ("gpu", "model", "util", "memory", "temp", "power", "processes", "owner", "state", "uuid", "health")
_NUMBERS = frozenset({2, 3, 4, 5, 6})
_EXACT = (
    "slot",
    "uuid",
    "model",
    "profile",
    "utilization_ratio",
    "memory_used_bytes",
    "memory_total_bytes",
    "temperature_celsius",
    "power_watts",
    "power_limit_watts",
    "processes",
    "owners",
    "state",
    "idle_s",
    "health",
    "reasons",
)
_SHORTEST = {"model": 9, "owner": 10, "state": 14, "health": 16}
# Names that fit the column at 80 columns.
_SHORT_NAMES = 16
_LEFT_OUT = ("processes", "health", "power", "temp")
_HEAT = ("hot", "hw_thermal_slowdown", "sw_thermal_slowdown")
_STATE_WORDS = {"held_idle": "held idle"}

Document = Mapping[str, Any]


def missing(document: Document) -> Printable:
    """Why the snapshot has no GPUs. `document` is that of /api/v1/snapshot."""
    source = document["node"]["sources"].get("nvml")
    why = "; ".join(filter(None, (source["detail"], source["remedy"]))) if source else "there is no source for them"
    return printable(f"no GPU readings: {why}")


def gpu_lines(gpus: Document, slots: Document | None, terminal_width: int | None, wide: bool = False) -> Iterator[Line]:
    """The table and the number of GPUs, as wide as the terminal; in full where there is none.

    `slots` is null where the holders are not known. UUIDs are shown in a pipe, or if the table is to be wide.
    """
    by_uuid = slots or {}
    rows = [cells for gpu in _order_gpus(gpus) for cells in _rows(*gpu, by_uuid, full=terminal_width is None)]
    shown = [*range(len(_HEADER))]
    if terminal_width is not None and not wide:
        shown.remove(_HEADER.index("uuid"))
    table = TextTable(
        [_HEADER[column] for column in shown],
        [[row[column] for column in shown] for row in rows],
        numbers=_NUMBERS,
        shortest=_SHORTEST,
        left_out=_LEFT_OUT,
        states=("state", "health"),
    )
    # A wide table is not cut: the terminal breaks its lines.
    yield from table.fit(None if wide else terminal_width)
    yield plain_line(_count(gpus))


def _order_gpus(gpus: Document) -> list[tuple[str, Document]]:
    return sorted(gpus["by_uuid"].items(), key=lambda item: (item[1]["index"], not item[1]["up"]))


def _is_hot(gpu: Document) -> bool:
    return any(reason in _HEAT for reason in gpu["health"]["reasons"])


def _count(gpus: Document) -> str:
    of_all = f" of {gpus['expected']}" if gpus["present"] != gpus["expected"] else ""
    count = "1 GPU" if gpus["present"] == 1 else f"{gpus['present']} GPUs"
    return f"{count}{of_all}, driver {gpus['driver_version']}, CUDA {gpus['cuda_version']}"


def _rows(uuid: str, gpu: Document, slots: Document, full: bool) -> Iterator[list[str]]:
    slot = slots.get(uuid)
    instances = [slots[mig_uuid] for mig_uuid in gpu["mig"] if mig_uuid in slots]
    health = gpu["health"]
    state = slot_state(slot) if slot else free_instances(instances)
    problem = "hot" if _is_hot(gpu) else next(iter(health["reasons"]), "")
    yield [
        str(gpu["index"]),
        gpu["name"] if full else short_model(gpu["name"]),
        _percent(gpu["utilization_ratio"]),
        _memory(gpu, full),
        _or_dash(gpu["temperature_celsius"], " C"),
        _power(gpu["power_watts"], gpu["power_limit_watts"], full),
        _or_dash(gpu["processes"]),
        slot_owners(slot, full) if slot else "",
        ", ".join(filter(None, (problem, state))) if gpu["up"] else "lost",
        uuid,
        ", ".join((health["level"], *health["reasons"])),
    ]
    for mig_uuid, instance in gpu["mig"].items():
        slot, activity = slots.get(mig_uuid), instance["activity"]
        yield [
            f" {instance['slot']}",
            f" {'MIG ' if full else ''}{instance['profile']}",
            _percent(None if activity is None else activity["graphics_ratio"]),
            _memory(instance, full),
            "",
            "",
            _or_dash(instance["processes"]),
            slot_owners(slot, full) if slot else "",
            slot_state(slot) if slot else "",
            mig_uuid,
            "",
        ]


def exact_gpus(gpus: Document, slots: Document | None) -> TextTable:
    """A row for each GPU and MIG device, with the names and values of the API, for CSV and Markdown."""
    by_uuid = slots or {}
    rows: list[Document] = []
    for uuid, gpu in _order_gpus(gpus):
        rows.append({**gpu, "slot": gpu["index"], "profile": "", **_exact_state(uuid, gpu, by_uuid.get(uuid))})
        for mig_uuid, instance in gpu["mig"].items():
            activity = instance["activity"]
            ratio = activity and activity["graphics_ratio"]
            state = _exact_state(mig_uuid, gpu, by_uuid.get(mig_uuid))
            rows.append({**instance, **state, "utilization_ratio": ratio, "health": None, "reasons": None})
    return exact_table([{name: row.get(name) for name in _EXACT} for row in rows], _EXACT)


def _exact_state(uuid: str, gpu: Document, slot: Document | None) -> Document:
    return {
        "uuid": uuid,
        "model": gpu["name"],
        "owners": slot and slot_owners(slot, full=True),
        "state": slot and slot["state"],
        "idle_s": slot and slot["idle_s"],
        "health": gpu["health"]["level"],
        "reasons": list(gpu["health"]["reasons"]),
    }


def short_model(name: str) -> str:
    """`NVIDIA GeForce RTX 4090` is `RTX 4090`."""
    return name.removeprefix("NVIDIA ").removeprefix("GeForce ").removeprefix("Tesla ")


def slot_state(slot: Document) -> str:
    state: str = slot["state"]
    idle = f" {_brief(slot['idle_s'])}" if state == "held_idle" and slot["idle_s"] is not None else ""
    return f"{_STATE_WORDS.get(state, state)}{idle}"


def free_instances(slots: Sequence[Document]) -> str:
    free = sum(slot["state"] == "free" for slot in slots)
    return f"{free} of {len(slots)} free" if slots else ""


def slot_owners(slot: Document, full: bool) -> str:
    """A terminal gets short names all together; else the first owner, who uses the slot if one does, and the number of
    the others."""
    holders = sorted(slot["holders"], key=lambda holder: holder["active"] is not True)
    names = list(dict.fromkeys(holder["account"] for holder in holders))
    everyone = ", ".join([*names, *([f"{slot['hidden_holders']} hidden"] if slot["hidden_holders"] else [])])
    if full or len(everyone) <= _SHORT_NAMES:
        return everyone
    others = len(names) - 1 + slot["hidden_holders"] if names else slot["hidden_holders"]
    return " ".join([*names[:1], *([f"+{others}" if names else f"{others} hidden"] if others else [])])


def _brief(seconds: float) -> str:
    """The greatest unit alone: `2 h`."""
    return " ".join(spoken_duration(seconds).split()[:2])


def _or_dash(value: float | None, unit: str = "") -> str:
    return _UNKNOWN if value is None else f"{value:g}{unit}"


def _percent(ratio: float | None) -> str:
    return _UNKNOWN if ratio is None else f"{100 * ratio:.0f}%"


def _memory(of: Document, full: bool) -> str:
    used, total = of["memory_used_bytes"], of["memory_total_bytes"]
    if used is None and total is None:
        return _UNKNOWN
    parts = [_UNKNOWN if value is None else f"{value / _GIB:.{1 if full else 0}f}" for value in (used, total)]
    return f"{parts[0]} / {parts[1]} GiB" if full else f"{parts[0]}/{parts[1]} GiB"


def _power(watts: float | None, limit: float | None, full: bool) -> str:
    if watts is None:
        return _UNKNOWN
    return f"{watts:.0f} / {limit:.0f} W" if full and limit is not None else f"{watts:.0f} W"


# The node's state in one sentence, and its problems, for a terminal: the API's texts with their colours. Pure.

_SEPARATOR = " · "
_LEVELS = {"lost": "bold red", "critical": "bold red", "warning": "yellow"}
_COLOURS = {"bad": "bold red", "warning": "yellow", "good": "green", "plain": ""}


def summary_lines(summary: Mapping[str, Any], width: int | None, before: str = "") -> Iterator[Line]:
    """`1 GPU lost (GPU 3) · 3 free (GPU 7.3, 7.4, 7.5)`, broken between the parts where the terminal is narrow.

    `summary` is that of /api/v1/problems. `before` begins the first line.
    """
    line, used, separator = ([Span(printable(before))], len(before), "") if before else ([], 0, "")
    for part in summary["parts"]:
        text = f"{part['text']} ({part['detail']})" if part["detail"] else part["text"]
        if separator and width is not None and used + len(separator) + len(text) > width:
            yield line
            line, used, separator = [], 0, ""
        room = len(text) * 10 if width is None else max(1, width - used - len(separator))
        line += [Span(printable(separator)), Span(printable(text, room), _COLOURS[part["tone"]])]
        used += len(separator) + len(text)
        separator = _SEPARATOR
    yield line


def problem_lines(problems: Mapping[str, Any], width: int | None) -> Iterator[Line]:
    """Each problem with what to do, gravest first. `problems` is that of /api/v1/problems."""
    for problem in sorted(problems.values(), key=lambda problem: int(problem["rank"])):
        level = problem["level"]
        first, *more = wrap_lines([printable(f"{level}: {problem['sentence']} {problem['remedy']}")], width)
        yield [Span(printable(first[: len(level)]), _LEVELS.get(level, "")), Span(printable(first[len(level) :]))]
        yield from map(plain_line, more)
