"""Which process a pid is now: its start time in /proc/PID/stat distinguishes a reused pid from the original process."""

from typing import Final

from gpucommons.model.process_identity import ProcessKey

# Of the fields that follow the name: the state, and the start time in clock ticks since boot.
_STATE: Final = 0
_START_TICKS: Final = 19
_ENDED: Final = ("Z", "X", "x")


def key_of(pid: int) -> ProcessKey | None:
    """The process that has this pid now; None where there is none."""
    fields = _stat(pid)
    return None if fields is None else ProcessKey(pid, int(fields[_START_TICKS]))


def state_letter(pid: int) -> str:
    """The kernel's letter for what the process does (R, S, T, Z); empty where there is no such process."""
    fields = _stat(pid)
    return "" if fields is None else fields[_STATE]


def has_ended(key: ProcessKey) -> bool:
    """Whether this very process is gone, or is a zombie that its parent has not collected."""
    return key_of(key.pid) != key or state_letter(key.pid) in _ENDED


def _stat(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
        # The name in brackets may hold anything, also brackets and spaces.
        fields = text[text.rindex(b")") + 2 :].decode().split()
    except (OSError, ValueError):
        return None
    return fields if len(fields) > _START_TICKS else None
