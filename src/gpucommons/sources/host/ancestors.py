"""The ancestors of a process, read from procfs."""

from collections.abc import Iterator

from gpucommons.base.processes import parent_pid, start_ticks
from gpucommons.model.process_identity import ProcessKey

_MOST_ANCESTORS = 64


def ancestors_from(procfs: str, pid: int) -> Iterator[ProcessKey]:
    """This process, its parent, the parent of that, and so on, with init. Ends where one cannot be read."""
    for _ in range(_MOST_ANCESTORS):
        if pid < 1:
            return
        try:
            with open(f"{procfs}/{pid}/stat", "rb") as file:
                stat = file.read()
            yield ProcessKey(pid, start_ticks(stat))
            pid = parent_pid(stat)
        except (OSError, ValueError, IndexError):
            return
