"""Start times of the processes on GPUs: pid and start time identify a process. Read once for each new pid."""

from pathlib import Path

from gpucommons.base.processes import start_ticks
from gpucommons.model.process_identity import ProcessKey
from gpucommons.sources.host.procfs import read_file


class StartTimes:
    """A pid that is not in this /proc, because of another pid namespace or because it has ended, has no key."""

    def __init__(self, procfs: Path) -> None:
        self._procfs = procfs
        self._known: dict[int, ProcessKey | None] = {}
        self._used: dict[int, ProcessKey | None] = {}

    def key_of(self, pid: int) -> ProcessKey | None:
        if pid in self._used:
            return self._used[pid]
        key = self._known[pid] if pid in self._known else self._read(pid)
        self._used[pid] = key
        return key

    def end_pass(self) -> None:
        """Forget the pids that were not used in this pass: one that comes back later is another process."""
        self._known, self._used = self._used, {}

    def _read(self, pid: int) -> ProcessKey | None:
        try:
            return ProcessKey(pid, start_ticks(read_file(self._procfs, f"{pid}/stat")))
        except (OSError, ValueError, IndexError):
            return None
