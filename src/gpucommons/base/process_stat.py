"""The line of /proc/PID/stat: state, session, and the start time that identifies a process together with its pid."""

from typing import Final

# Among the fields that follow the name.
_STATE: Final = 0
_PARENT: Final = 1
_SESSION: Final = 3
_USER_TICKS: Final = 11
_SYSTEM_TICKS: Final = 12
_START_TICKS: Final = 19


def start_ticks(stat: bytes) -> int:
    """The start time in clock ticks since boot."""
    return int(_fields(stat)[_START_TICKS])


def session_id(stat: bytes) -> int | None:
    """The POSIX session; None where its first process is outside the pid namespace of this procfs."""
    return int(_fields(stat)[_SESSION]) or None


def parent_pid(stat: bytes) -> int:
    return int(_fields(stat)[_PARENT])


def cpu_ticks(stat: bytes) -> int:
    """The CPU time of all its threads, ended ones too, in clock ticks."""
    fields = _fields(stat)
    return int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])


def state_letter(stat: bytes) -> str:
    """The kernel's letter for what the process does: R, S, T, Z, ..."""
    return _fields(stat)[_STATE].decode()


def _fields(stat: bytes) -> list[bytes]:
    """The fields after the name in parentheses, which may contain anything."""
    return stat[stat.rindex(b")") + 2 :].split()
