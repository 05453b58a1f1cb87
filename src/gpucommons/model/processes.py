"""The processes of a node at an instant. A process is (pid, start time): a reused pid is another one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class ProcessKey(NamedTuple):
    """Who a process is for as long as the machine is up. The start time is in clock ticks since boot."""

    pid: int
    start_ticks: int


class ProcessRow(NamedTuple):
    """One process. A NamedTuple, not a dataclass: a node has hundreds and each pass makes them anew."""

    key: ProcessKey
    name: str
    cpu_seconds: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """Every process seen in one pass, by pid, and the ones worth a series each."""

    by_pid: Mapping[int, ProcessRow]
    busiest: tuple[ProcessKey, ...]
