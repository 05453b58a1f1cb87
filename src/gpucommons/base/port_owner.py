"""The process that listens on a TCP port, from /proc. Best effort: every failure means unknown."""

import os
from pathlib import Path

from gpucommons.base.decimal_text import parse_decimal

_LISTEN = "0A"
_LOCAL_ADDRESS, _STATE, _INODE = 1, 3, 9


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
            lines = (procfs / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if len(columns) > _INODE and columns[_STATE] == _LISTEN:
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
