"""The tabs of `gpucommons top`: the columns and rows of each, the key that opens it, and what it says when empty."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpucommons.cli.top_node import TopNode
from gpucommons.cli.top_processes import PROCESS_COLUMNS, process_rows
from gpucommons.cli.top_rows import (
    EVENT_COLUMNS,
    OWNER_COLUMNS,
    PROBLEM_COLUMNS,
    QUEUE_COLUMNS,
    TURN_COLUMNS,
    Document,
    event_rows,
    owner_rows,
    problem_rows,
    queue_rows,
    turn_rows,
)
from gpucommons.cli.top_table import Column, TopRow


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
