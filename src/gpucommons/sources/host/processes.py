"""Every process from /proc/PID/stat: one small read each, parsed only if it has changed.

Thousands of processes are read, a few get series of their own: the busiest by CPU time and by memory. Trees of
processes that keep a core busy or wait for a disk are watched as well: their program is at work while its GPU is
idle.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from gpucommons.base.text import parse_decimal
from gpucommons.model.process_identity import ProcessKey, ProcessRow, ProcessTable, TreeActivity
from gpucommons.sources.source import SourceAbsent, SourceError

# Choose the processes that get series of their own: the busiest by CPU time and by memory.
#
# The choice is stable: it does not depend on the order of the process table, and near-equals do not alternate.
# No I/O: `choose` gets the table and the time.

# A process keeps its series until another uses half as much again.
_INCUMBENT_BONUS = 1.5
_WINDOW_S = 60.0
_MARK_EVERY_S = 10.0


class CpuWindow:
    """CPU seconds of each process over the last minute, from a few marks of the whole table."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, dict[ProcessKey, float]]] = deque()

    def measure_use(self, rows: Iterable[ProcessRow], now_s: float) -> dict[ProcessKey, float]:
        rows = list(rows)
        if not self._marks or now_s - self._marks[-1][0] >= _MARK_EVERY_S:
            self._marks.append((now_s, {row.key: row.cpu_seconds for row in rows}))
        while len(self._marks) > 1 and now_s - self._marks[1][0] >= _WINDOW_S:
            self._marks.popleft()
        oldest = self._marks[0][1]
        # A process that is not in the oldest mark started after it, so all its CPU time is within the window.
        return {row.key: row.cpu_seconds - oldest.get(row.key, 0.0) for row in rows}


class Busiest:
    """Keeps the choice from one pass to the next. Chooses at most 2 x `limit` processes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._window = CpuWindow()
        self._by_cpu: frozenset[ProcessKey] = frozenset()
        self._by_memory: frozenset[ProcessKey] = frozenset()

    def choose(self, rows: Mapping[int, ProcessRow], now_s: float) -> tuple[ProcessKey, ...]:
        used = self._window.measure_use(rows.values(), now_s)
        keys = [row.key for row in rows.values()]
        memory = {row.key: float(row.rss_bytes) for row in rows.values()}
        self._by_cpu = _top(keys, used.__getitem__, self._by_cpu, self._limit)
        self._by_memory = _top(keys, memory.__getitem__, self._by_memory, self._limit)
        return tuple(sorted(self._by_cpu | self._by_memory))


def _top(
    keys: list[ProcessKey],
    score: Callable[[ProcessKey], float],
    incumbents: frozenset[ProcessKey],
    limit: int,
) -> frozenset[ProcessKey]:
    if len(keys) <= limit:
        return frozenset(keys)

    def rank(key: ProcessKey) -> tuple[float, bool, ProcessKey]:
        held = key in incumbents
        # Among equals, which are mostly idle, a chosen process stays; then the lower pid wins.
        return (-score(key) * (_INCUMBENT_BONUS if held else 1.0), not held, key)

    return frozenset(sorted(keys, key=rank)[:limit])


# Which trees of processes keep a CPU core busy or wait for a disk, from two passes over all processes. Pure.

# A process that has used this much of a core since the last pass keeps it busy. On a machine with more work than cores
# it gets less, but it runs or waits for a core whenever it is looked at.
_BUSY_CORES = 0.9
_RUNNABLE, _UNINTERRUPTIBLE = "R", "D"
_DEEPEST = 256


class TreeWatch:
    """Keeps the CPU times of the last pass, and which processes ran or waited for a core then."""

    def __init__(self) -> None:
        self._before: Mapping[ProcessKey, float] | None = None
        self._before_s = 0.0
        self._runnable: set[ProcessKey] = set()

    def step(self, rows: Mapping[int, ProcessRow], now_s: float) -> TreeActivity | None:
        """None in the first pass. A process that is new has used all its CPU time since the last pass."""
        before, elapsed_s = self._before, now_s - self._before_s
        self._before, self._before_s = {row.key: row.cpu_seconds for row in rows.values()}, now_s
        runnable_before = self._runnable
        self._runnable = {row.key for row in rows.values() if row.state == _RUNNABLE}
        if before is None or elapsed_s <= 0:
            return None
        runnable, least_s = runnable_before & self._runnable, _BUSY_CORES * elapsed_s
        busy = [
            row for row in rows.values() if row.key in runnable or row.cpu_seconds - before.get(row.key, 0.0) >= least_s
        ]
        blocked = [row for row in rows.values() if row.state == _UNINTERRUPTIBLE]
        return TreeActivity(_with_ancestors(busy, rows), _with_ancestors(blocked, rows))


def _with_ancestors(chosen: Iterable[ProcessRow], rows: Mapping[int, ProcessRow]) -> frozenset[int]:
    """The pids of these processes and of all above them, each of which is the root of a tree that they are in."""
    pids: set[int] = set()
    for row in chosen:
        at: ProcessRow | None = row
        for _ in range(_DEEPEST):
            if at is None or at.key.pid in pids:
                break
            pids.add(at.key.pid)
            at = rows.get(at.parent_pid)
    return frozenset(pids)


# Fields of /proc/PID/stat, counted from the one after the name: state is 0.
_STATE, _PARENT, _UTIME, _STIME, _START, _RSS = 0, 1, 11, 12, 19, 21
_STAT_BYTES = 2048


def parse_stat(text: bytes, ticks_per_s: int, page_bytes: int) -> ProcessRow:
    """One process. Its name is in parentheses and may contain anything, including parentheses and newlines."""
    opened, closed = text.index(b"("), text.rindex(b")")
    fields = text[closed + 2 :].split(None, _RSS + 1)
    name = text[opened + 1 : closed].decode("utf-8", "replace")
    return ProcessRow(
        ProcessKey(int(text[:opened]), int(fields[_START])),
        name,
        (int(fields[_UTIME]) + int(fields[_STIME])) / ticks_per_s,
        int(fields[_RSS]) * page_bytes,
        int(fields[_PARENT]),
        fields[_STATE].decode("ascii", "replace"),
    )


class _Known(NamedTuple):
    text: bytes
    row: ProcessRow


class ProcessTableReader:
    def __init__(
        self,
        procfs: Path,
        busiest_limit: int,
    ) -> None:
        self._procfs = procfs
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._busiest = Busiest(busiest_limit)
        self._trees = TreeWatch()
        self._known: dict[str, _Known] = {}

    def read(self) -> ProcessTable:
        try:
            root = os.open(self._procfs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceAbsent(
                f"no processes: {self._procfs}: {error.strerror}", "set --path.procfs to the host's /proc"
            ) from error
        try:
            entries = self._pass(root)
        finally:
            os.close(root)
        if not entries:
            raise SourceError("empty", f"no process in {self._procfs} can be read")
        self._known = entries
        by_pid = {entry.row.key.pid: entry.row for entry in entries.values()}
        now_s = time.monotonic()
        return ProcessTable(by_pid, self._busiest.choose(by_pid, now_s), self._trees.step(by_pid, now_s))

    def _pass(self, root: int) -> dict[str, _Known]:
        """All processes. One that ends between two reads, or cannot be read, is left out."""
        before, now = self._known, {}
        for pid in os.listdir(root):
            if parse_decimal(pid) is None:
                continue
            try:
                descriptor = os.open(f"{pid}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=root)
                try:
                    text = os.read(descriptor, _STAT_BYTES)
                finally:
                    os.close(descriptor)
            except OSError:
                continue
            entry = before.get(pid)
            if entry is None or entry.text != text:
                try:
                    entry = _Known(text, parse_stat(text, self._ticks_per_s, self._page_bytes))
                except (ValueError, IndexError):
                    continue
            now[pid] = entry
        return now
