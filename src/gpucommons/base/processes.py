"""Processes in /proc: the line that identifies one, files of any length, the boot that its pid belongs to, the owner
of a port, and whether users see each other's processes.

A process is its pid and its start time, within one boot.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpucommons.base.text import lines_of, parse_decimal

# The line of /proc/PID/stat: state, session, and the start time that identifies a process together with its pid.

# Among the fields that follow the name.
_STATE: Final = 0
_PARENT: Final = 1
_SESSION: Final = 3
_USER_TICKS: Final = 11
_SYSTEM_TICKS: Final = 12
_START_TICKS: Final = 19
_PART_BYTES: Final = 64 * 1024


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


# Files of a process whose length that process chooses: its command line, environment and maps.

# A process may place its arguments anywhere in its memory (PR_SET_MM_MAP), so that they have gigabytes.
MAX_COMMAND_BYTES: Final = 4096
# More than the arguments and the environment of any program that was started without such a trick.
MAX_ARGUMENTS_BYTES: Final = 2 << 20
# 65,530 mappings, the kernel's limit, usually have 6 MB. Long paths make more of them.
MAX_MAPS_BYTES: Final = 16 << 20


def read_beginning(path: Path, max_bytes: int) -> bytes:
    """At most so many bytes of the file. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        parts: list[bytes] = []
        while max_bytes > 0 and (part := file.read(min(max_bytes, _PART_BYTES))):
            parts.append(part)
            max_bytes -= len(part)
    return b"".join(parts)


# The kernel's id of this boot. Pids and start times of processes identify them within one boot only.

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Empty where the kernel has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


# The process that listens on a TCP port, from /proc. Best effort: every failure means unknown.

_LISTEN = "0A"
_LOCAL_ADDRESS, _SOCKET_STATE, _INODE = 1, 3, 9


def port_owner(port: int, procfs: Path = Path("/proc")) -> str | None:
    """NAME (pid N); None where it is unknown: not Linux, not visible to this user, or ended."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port, procfs)}
    if not sockets:
        return None
    for entry in _listdir(procfs):
        if parse_decimal(entry) is not None and _holds(procfs / entry / "fd", sockets):
            return f"{_name(procfs / entry)} (pid {entry})"
    return None


def _listening_inodes(port: int, procfs: Path) -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = lines_of((procfs / "net" / table).read_text())[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if len(columns) > _INODE and columns[_SOCKET_STATE] == _LISTEN:
                local_port = columns[_LOCAL_ADDRESS].rpartition(":")[2]
                if local_port == f"{port:04X}":
                    inodes.add(columns[_INODE])
    return inodes


def _holds(descriptors: Path, sockets: set[str]) -> bool:
    for descriptor in _listdir(descriptors):
        try:
            if os.readlink(descriptors / descriptor) in sockets:
                return True
        except OSError:
            continue
    return False


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return "a process"


def _listdir(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


_HIDEPID: Final = "hidepid="
_SHOWN: Final = ("0", "off")


def hides_processes(procfs: Path) -> bool:
    """Whether procfs is mounted with hidepid: `ps` then shows each user only the user's own processes.

    The mounts of pid 1 are those of the machine, also for an agent in a container. Only root may read them; another
    user sees the mounts of this process.
    """
    for mounts, mount_point in ((procfs / "1/mountinfo", "/proc"), (Path("/proc/self/mountinfo"), str(procfs))):
        try:
            text = mounts.read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        return _hidepid_of(text, mount_point) not in (None, *_SHOWN)
    return False


def _hidepid_of(mountinfo: str, mount_point: str) -> str | None:
    """Its value for the last procfs at this place; None where it is not set."""
    hidepid = None
    for line in lines_of(mountinfo):
        mount, _, filesystem = line.partition(" - ")
        fields, kind = mount.split(), filesystem.split()
        if len(fields) > 4 and fields[4] == mount_point and len(kind) > 2 and kind[0] == "proc":
            options = kind[2].split(",")
            hidepid = next((option.removeprefix(_HIDEPID) for option in options if option.startswith(_HIDEPID)), None)
    return hidepid


_MAX_ANCESTORS: Final = 64


def ancestors_from(procfs: str, pid: int) -> Iterator[tuple[int, int]]:
    """Pid and start time of this process, its parent, the parent of that, and so on, with init. Ends where one cannot
    be read."""
    for _ in range(_MAX_ANCESTORS):
        if pid < 1:
            return
        try:
            with open(f"{procfs}/{pid}/stat", "rb") as file:
                stat = file.read()
            yield pid, start_ticks(stat)
            pid = parent_pid(stat)
        except (OSError, ValueError, IndexError):
            return
