"""Choose the processes that get series of their own: the busiest by CPU time and by memory.

The choice is stable: it does not depend on the order of the process table, and near-equals do not alternate.
No I/O: `choose` gets the table and the time.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from gpucommons.model.process_identity import ProcessKey, ProcessRow

# A process keeps its series until another uses half as much again.
_INCUMBENT_BONUS = 1.5


class CpuWindow:
    """CPU seconds of each process over the last `window_s`, from a few marks of the whole table."""

    def __init__(self, window_s: float = 60.0, marks: int = 6) -> None:
        self._window_s = window_s
        self._mark_every_s = window_s / marks
        self._marks: deque[tuple[float, dict[ProcessKey, float]]] = deque()

    def used(self, rows: Iterable[ProcessRow], now_s: float) -> dict[ProcessKey, float]:
        rows = list(rows)
        if not self._marks or now_s - self._marks[-1][0] >= self._mark_every_s:
            self._marks.append((now_s, {row.key: row.cpu_seconds for row in rows}))
        while len(self._marks) > 1 and now_s - self._marks[1][0] >= self._window_s:
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
        used = self._window.used(rows.values(), now_s)
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
