"""Which process a pid is now: its start time in /proc/PID/stat distinguishes a reused pid from the original process."""

from typing import Final, NamedTuple

from gpucommons.base import processes
from gpucommons.model.process_identity import ProcessKey

_ENDED: Final = ("Z", "X", "x")


class _Process(NamedTuple):
    key: ProcessKey
    state_letter: str


def key_of(pid: int) -> ProcessKey | None:
    """The process that has this pid now; None where there is none."""
    found = _read(pid)
    return None if found is None else found.key


def state_letter(pid: int) -> str:
    """The kernel's letter for what the process does (R, S, T, Z); empty where there is no such process."""
    found = _read(pid)
    return "" if found is None else found.state_letter


def has_ended(key: ProcessKey) -> bool:
    """Whether this very process is gone, or is a zombie that its parent has not collected."""
    found = _read(key.pid)
    return found is None or found.key != key or found.state_letter in _ENDED


def _read(pid: int) -> _Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
        return _Process(ProcessKey(pid, processes.start_ticks(stat)), processes.state_letter(stat))
    except (OSError, ValueError, IndexError):
        return None
