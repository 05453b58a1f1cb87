"""Which trees of processes keep a CPU core busy or wait for a disk, from two passes over all processes. Pure."""

from collections.abc import Iterable, Mapping

from gpucommons.model.process_identity import ProcessKey, ProcessRow, TreeActivity

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


def _with_ancestors(found: Iterable[ProcessRow], rows: Mapping[int, ProcessRow]) -> frozenset[int]:
    """The pids of these processes and of all above them, each of which is the root of a tree that they are in."""
    pids: set[int] = set()
    for row in found:
        at: ProcessRow | None = row
        for _ in range(_DEEPEST):
            if at is None or at.key.pid in pids:
                break
            pids.add(at.key.pid)
            at = rows.get(at.parent_pid)
    return frozenset(pids)
