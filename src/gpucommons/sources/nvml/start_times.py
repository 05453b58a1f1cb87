"""When the processes on GPUs started: with the pid that makes their identity. Read once for each new pid."""

from pathlib import Path

from gpucommons.model.process_identity import ProcessKey
from gpucommons.sources.host.procfs import read_file

_START_TICKS = 19


def start_ticks(stat: bytes) -> int:
    """The start time in a line of /proc/PID/stat. The name in brackets before it may hold anything."""
    return int(stat[stat.rindex(b")") + 2 :].split()[_START_TICKS])


class StartTimes:
    """A pid that is not in this /proc (another pid namespace, just gone) has no key, not a wrong one."""

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
        """Forget who was not seen in this pass: a pid that comes back later is another process."""
        self._known, self._used = self._used, {}

    def _read(self, pid: int) -> ProcessKey | None:
        try:
            return ProcessKey(pid, start_ticks(read_file(self._procfs, f"{pid}/stat")))
        except (OSError, ValueError, IndexError):
            return None
