"""Which processes are worth a series: the busiest by CPU time and by memory, chosen so that it holds still.

Pure: told the whole table and the time, it answers with keys. Never cuts by the order of a directory.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from gpucommons.model.process_identity import ProcessKey, ProcessRow

# One who has a series keeps it until a newcomer beats it by half: near-equals must not take turns.
_INCUMBENT_BONUS = 1.5


class CpuWindow:
    """CPU seconds that each process used over the last `window_s`, from a few whole-table marks."""

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
        # One that is not in the oldest mark began after it: all its CPU time is within the window.
        return {row.key: row.cpu_seconds - oldest.get(row.key, 0.0) for row in rows}


class Busiest:
    """Keeps the choice from one pass to the next. At most 2 x `limit` processes are chosen."""

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
        # Among equals (mostly: the idle) the incumbent stays, then the older pid: the choice is repeatable.
        return (-score(key) * (_INCUMBENT_BONUS if held else 1.0), not held, key)

    return frozenset(sorted(keys, key=rank)[:limit])
