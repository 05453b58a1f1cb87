"""The processes of `gpucommons top`, in the order of nvitop's columns; as a list, or as a tree below their jobs. Pure.

Names come from users and may hold any character: what is not printable is escaped.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gpucommons.base.text import parse_decimal, printable
from gpucommons.cli.top_table import (
    MISSING,
    Column,
    TopRow,
    about,
    duration,
    hundredths,
    printables,
    size,
    sum_known,
)
from gpucommons.rules.identities import qualified_name

Document = Mapping[str, Any]


class HostUse(NamedTuple):
    """What a process uses of the host; `cpu_ratio` 1 is one core. None is unknown."""

    cpu_ratio: float | None = None
    rss_bytes: float | None = None
    age_s: float | None = None


PROCESS_COLUMNS = (
    Column("GPU", False, 3),
    Column("PID", width=7),
    Column("User", False, 8),
    Column("GPU mem", width=9),
    Column("%GPU", width=5),
    Column("%CPU", width=5),
    Column("Host mem", width=8),
    Column("Time", width=6),
    Column("Command", False, 9, whole=True),
)
_UNKNOWN = HostUse()
_MOST_COMMAND = 4096


def process_rows(document: Document, host: Mapping[str, HostUse] | None = None, tree: bool = False) -> list[TopRow]:
    """A row for each process on each GPU; with `tree`, also one for each job, container, pod or unit above them."""
    processes = (document["who"] or {"processes": {}})["processes"]
    known = host or {}
    if not tree:
        return [_process_row(key, row, known.get(key, _UNKNOWN)) for key, row in processes.items()]
    works: dict[str, list[str]] = {}
    for key, row in processes.items():
        works.setdefault(_work(row), []).append(key)
    rows: list[TopRow] = []
    for work, keys in works.items():
        parent = f"work/{work}" if work else ""
        if parent:
            rows.append(_work_row(parent, work, [(processes[key], known.get(key, _UNKNOWN)) for key in keys]))
        rows += [_process_row(key, processes[key], known.get(key, _UNKNOWN), parent) for key in keys]
    return rows


def _work(row: Document) -> str:
    """What the process is a part of, with its kind; empty for a process that stands alone."""
    if row["job"]:
        return f"job {row['job']}"
    if row["pod_uid"]:
        return f"pod {qualified_name(row['namespace'] or '', row['pod'] or row['pod_uid'])}"
    if row["container_id"]:
        return f"container {row['container'] or row['container_id'][:12]}"
    return f"unit {row['unit']}" if row["unit"] else ""


def _work_row(key: str, work: str, members: list[tuple[Document, HostUse]]) -> TopRow:
    """Sums. A process on several GPUs has a row on each, and its part of the host counts once."""
    places = list(dict.fromkeys(_place(row) for row, _ in members))
    user = _user(members[0][0])
    memory, sm = (sum_known(row[name] for row, _ in members) for name in ("memory_bytes", "sm_ratio"))
    host = {row["pid"]: use for row, use in members}.values()
    cpu, rss = sum_known(use.cpu_ratio for use in host), sum_known(use.rss_bytes for use in host)
    age = max((use.age_s for use in host if use.age_s is not None), default=None)
    cells = (
        places[0] if len(places) == 1 else f"{places[0]}+",
        f"{len(host)} pids" if len(host) > 1 else "",
        user,
        _about_any(row["memory_basis"] for row, _ in members) + size(memory),
        _about_any(row["sm_basis"] for row, _ in members) + hundredths(sm),
        hundredths(cpu),
        size(rss),
        MISSING if age is None else duration(age),
        work,
    )
    return TopRow(key, printables(cells), (_order(members[0][0]), None, user, memory, sm, cpu, rss, age, work))


def _about_any(bases: Iterable[str | None]) -> str:
    return next((mark for basis in bases if (mark := about(basis))), "")


def _place(row: Document) -> str:
    return row["slot"] or str(row["gpu_index"])


def _order(row: Document) -> float:
    """GPUs by their index, and the MIG devices of each by theirs."""
    instance = parse_decimal((row["slot"] or "").partition(".")[2])
    return float(row["gpu_index"]) + (0 if instance is None else (instance + 1) / 1000)


def _user(row: Document) -> str:
    return printable(row["account"] or (row["reason"] or "").replace("_", " "))


def _process_row(key: str, row: Document, use: HostUse, parent: str = "") -> TopRow:
    name = printable(command_of(row) or row["name"] or "unknown", _MOST_COMMAND)
    user, place = _user(row), _place(row)
    cpu, rss, age = use
    cells = (
        place,
        str(row["pid"]),
        user,
        about(row["memory_basis"]) + size(row["memory_bytes"]),
        about(row["sm_basis"]) + hundredths(row["sm_ratio"]),
        hundredths(cpu),
        size(rss),
        MISSING if age is None else duration(age),
        name,
    )
    sort = (_order(row), row["pid"], user, row["memory_bytes"], row["sm_ratio"], cpu, rss, age, name)
    more = printable(" ".join(str(row[field] or "") for field in ("owner", "user", "container", "pod", "job")))
    return TopRow(key, printables(cells), sort, search=f"{name} {row['pid']} {user} {more}", parent=parent)


def host_use(before: Document | None, now: Document) -> Mapping[str, HostUse]:
    """What each process uses of the host, by the key of its row, from two documents of /api/v1/who."""
    earlier = (before["host_use"] if before else None) or {}
    found: dict[str, HostUse] = {}
    for key, use in (now["host_use"] or {}).items():
        first = earlier.get(key)
        span_s = now["time_unix_s"] - before["time_unix_s"] if before else 0.0
        ratio = None
        if first and span_s > 0 and use["cpu_seconds"] is not None and first["cpu_seconds"] is not None:
            ratio = (use["cpu_seconds"] - first["cpu_seconds"]) / span_s
        age_s = None if use["start_unix_s"] is None else now["time_unix_s"] - use["start_unix_s"]
        found[key] = HostUse(ratio, use["rss_bytes"], age_s)
    return found


def command_of(row: Document) -> str | None:
    """An agent of an older release sends no command."""
    command: str | None = row.get("command")
    return command
