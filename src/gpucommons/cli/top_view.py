"""What `gpucommons top` shows of one node or of several: the head, the tabs, and the processes as list or tree."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpucommons.base.text import Printable, parse_decimal, printable, qualified_name
from gpucommons.cli.gpus_view import summary_lines
from gpucommons.cli.output import Line, Span
from gpucommons.cli.top_feed import MEMORY, RECENT_S, UTILIZATION, Feed, FeedUpdate
from gpucommons.cli.top_options import EVERY_GPU, GpuChoice, restrict
from gpucommons.cli.top_rows import (
    EVENT_COLUMNS,
    OWNER_COLUMNS,
    PROBLEM_COLUMNS,
    QUEUE_COLUMNS,
    TURN_COLUMNS,
    event_rows,
    owner_rows,
    problem_rows,
    queue_rows,
    turn_rows,
)
from gpucommons.cli.top_table import (
    MISSING,
    Column,
    TopRow,
    about,
    duration,
    hundredths,
    percent,
    printables,
    size,
    sum_known,
)

# The processes of `gpucommons top`, in the order of nvitop's columns; as a list, or as a tree below their jobs. Pure.
#
# Names come from users and may hold any character: what is not printable is escaped.

Document = Mapping[str, Any]


class HostUse(NamedTuple):
    """What a process uses of the host; `cpu_ratio` 1 is one core. None is unknown."""

    cpu_ratio: float | None = None
    rss_bytes: float | None = None
    age_s: float | None = None


PROCESS_COLUMNS = (
    Column("GPU", False, 3),
    Column("PID", width=7),
    Column("User", False, 8, most=20),
    Column("GPU mem", width=9),
    Column("%GPU", width=5),
    Column("%CPU", width=5),
    Column("Host mem", width=8),
    Column("Time", width=6),
    Column("Command", False, 9, whole=True),
)
_UNKNOWN = HostUse()
_MAX_COMMAND = 4096


def process_rows(document: Document, host: Mapping[str, HostUse] | None = None, tree: bool = False) -> list[TopRow]:
    """A row for each process on each GPU; with `tree`, also one for each job, container, pod or unit above them."""
    processes = (document["who"] or {"processes": {}})["processes"]
    by_key = host or {}
    if not tree:
        return [_process_row(key, row, by_key.get(key, _UNKNOWN)) for key, row in processes.items()]
    works: dict[str, list[str]] = {}
    for key, row in processes.items():
        works.setdefault(_work(row), []).append(key)
    rows: list[TopRow] = []
    for work, keys in works.items():
        parent = f"work/{work}" if work else ""
        if parent:
            rows.append(_work_row(parent, work, [(processes[key], by_key.get(key, _UNKNOWN)) for key in keys]))
        rows += [_process_row(key, processes[key], by_key.get(key, _UNKNOWN), parent) for key in keys]
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
    name = printable(command_of(row) or row["name"] or "unknown", _MAX_COMMAND)
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
    by_key: dict[str, HostUse] = {}
    for key, use in (now["host_use"] or {}).items():
        first = earlier.get(key)
        span_s = now["time_unix_s"] - before["time_unix_s"] if before else 0.0
        ratio = None
        if first and span_s > 0 and use["cpu_seconds"] is not None and first["cpu_seconds"] is not None:
            ratio = (use["cpu_seconds"] - first["cpu_seconds"]) / span_s
        age_s = None if use["start_unix_s"] is None else now["time_unix_s"] - use["start_unix_s"]
        by_key[key] = HostUse(ratio, use["rss_bytes"], age_s)
    return by_key


def command_of(row: Document) -> str | None:
    """An agent of an older release sends no command."""
    command: str | None = row.get("command")
    return command


# What `gpucommons top` knows of one node: its latest document, its recent history, and whether it still answers.

# The reading of a GPU's document that continues each series of the history.
_FIELDS = {UTILIZATION: "utilization_ratio", MEMORY: "memory_used_bytes"}


@dataclass(slots=True)
class TopNode:
    """`document` is the last one that came; `lost` is why no newer one comes, and empty while the node answers.

    `everything` is that document before the GPUs of `choice` are chosen from it. `who` and `who_before` are the last
    two documents of /api/v1/who, from which the CPU use is known.
    """

    feed: Feed
    choice: GpuChoice = EVERY_GPU
    everything: Document | None = None
    document: Document | None = None
    lost: str = ""
    who: Document | None = None
    who_before: Document | None = None
    _recent: dict[str, dict[str, deque[float | None]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.feed.where if self.document is None else str(self.document["hostname"])

    def apply(self, update: FeedUpdate) -> None:
        self.lost = update.lost
        if update.document is None:
            return
        self.everything = update.document
        self.choose(self.choice)
        if update.recent is not None:
            self._recent = {
                series: {uuid: deque(values, RECENT_S) for uuid, values in by_uuid.items()}
                for series, by_uuid in update.recent.items()
            }
        for uuid, gpu in ((update.document["gpus"] or {}).get("by_uuid") or {}).items():
            for series, name in _FIELDS.items():
                column = self._recent.setdefault(series, {}).setdefault(uuid, deque(maxlen=RECENT_S))
                column.append(gpu[name])

    def choose(self, choice: GpuChoice) -> None:
        self.choice = choice
        self.document = None if self.everything is None else restrict(self.everything, choice)

    def recent(self, series: str, last_s: int = RECENT_S) -> Mapping[str, Sequence[float | None]]:
        """The last seconds of each GPU, by UUID; one value a second."""
        return {uuid: list(values)[-last_s:] for uuid, values in self._recent.get(series, {}).items()}

    def host_use(self) -> Mapping[str, HostUse]:
        return host_use(self.who_before, self.who) if self.who else {}

    async def ask_host_use(self) -> None:
        """The stream does not have it."""
        document = await self.feed.ask("who", {})
        if document is not None and (self.who is None or document["sequence"] != self.who["sequence"]):
            self.who, self.who_before = document, self.who


# The tabs of `gpucommons top`: the columns and rows of each, the key that opens it, and what it says when empty.


class TopTab(NamedTuple):
    """`section` is the part of the document that it shows; `absent` is said where that part is null."""

    title: str
    key: str
    columns: tuple[Column, ...]
    rows: Callable[[Document, TopNode, bool], list[TopRow]]
    section: str
    absent: str = ""
    sort: int | None = None


_NO_PROCESSES = "the processes of the GPUs are unknown"
TABS: Mapping[str, TopTab] = {
    "processes": TopTab(
        "Processes",
        "p",
        PROCESS_COLUMNS,
        lambda document, node, tree: process_rows(document, node.host_use(), tree),
        "who",
        _NO_PROCESSES,
        0,
    ),
    "owners": TopTab("Owners", "o", OWNER_COLUMNS, lambda document, *_: owner_rows(document), "who", _NO_PROCESSES, 1),
    "turns": TopTab(
        "Turns",
        "w",
        TURN_COLUMNS,
        lambda document, *_: turn_rows(document),
        "turns",
        "the scheduler does not run (start it with: gpucommons up --share)",
    ),
    "queue": TopTab(
        "Queue", "u", QUEUE_COLUMNS, lambda document, *_: queue_rows(document), "queue", "the agent has no queue"
    ),
    "events": TopTab(
        "Events", "e", EVENT_COLUMNS, lambda document, *_: event_rows(document), "events", "the agent keeps no events"
    ),
    "problems": TopTab(
        "Problems", "exclamation_mark", PROBLEM_COLUMNS, lambda document, *_: problem_rows(document), "problems"
    ),
}


# The first lines of `gpucommons top`: the node, or the nodes, and the state of each in one sentence. Pure.

_LONGEST_REASON = 120


def head_line(nodes: Sequence[TopNode]) -> Printable:
    if len(nodes) > 1:
        lost = sum(bool(node.lost) for node in nodes)
        return printable(f"{len(nodes)} nodes" + (f" · {lost} without an answer" if lost else ""))
    (node,) = nodes
    if node.document is None:
        return printable(
            f"no agent answers at {node.feed.where}: {node.lost}"
            if node.lost
            else f"connecting to {node.feed.where} ..."
        )
    return printable(" · ".join(_parts(node)))


def _parts(node: TopNode) -> Iterator[str]:
    document = node.document
    assert document is not None
    if node.lost:
        yield "LOST, last known state"
    yield document["hostname"]
    if node.choice.names:
        indices = sorted(str(gpu["index"]) for gpu in (document["gpus"] or {"by_uuid": {}})["by_uuid"].values())
        yield (
            f"only GPU {', '.join(indices)} (a: all)" if indices else f"no GPU {', '.join(node.choice.names)} (a: all)"
        )
    if document["simulated"]:
        yield f"SIMULATED {document['simulated']}"
    cpu, memory = document["node"]["cpu"], document["node"]["memory"]
    yield f"CPU {percent(None if cpu is None else cpu['utilization_ratio'])}"
    if memory is not None and memory["available_bytes"] is not None:
        yield f"memory {percent(1 - memory['available_bytes'] / memory['total_bytes'])}"
    sources = document["node"]["sources"].items()
    failing = [name for name, source in sources if source["state"] in ("failing", "stale")]
    if failing:
        yield f"not read: {', '.join(failing)}"


def sentence_lines(nodes: Sequence[TopNode], names: Sequence[str], width: int) -> Iterator[Line]:
    """Of several nodes each has lines of its own, also one that does not answer."""
    if len(nodes) == 1:
        if nodes[0].document is not None:
            yield from summary_lines(nodes[0].document["summary"], width)
        return
    for node, name in zip(nodes, names, strict=True):
        if node.lost:
            reason = printable(f"no answer: {node.lost}", _LONGEST_REASON)
            yield [Span(printable(f"{name}: ")), Span(reason, "bold red")]
        elif node.document is None:
            yield [Span(printable(f"{name}: connecting ..."))]
        else:
            yield from summary_lines(node.document["summary"], width, f"{name}: ")
