"""Who made the user namespace of a process, from the kernel.

A user may give a user namespace of their own many uids. To the rest of the machine all of them are that user: the
kernel knows who made a namespace. Of nested namespaces the outermost one counts, which a process in ours made.
"""

import fcntl
import os
import struct
from typing import Final, NamedTuple

from gpucommons.base.text import lines_of, parse_decimal

# Of linux/nsfs.h.
_GET_PARENT: Final = 0xB702
_GET_OWNER_UID: Final = 0xB704
_UID: Final = struct.Struct("I")
_MAX_DEPTH: Final = 33
_MAX_FILE_BYTES: Final = 1 << 20
_FILE: Final = os.O_RDONLY | os.O_CLOEXEC


class UserNamespace(NamedTuple):
    """A user namespace that is not ours. `owner_uid` made it; `id` distinguishes it from others."""

    owner_uid: int
    id: str

    @property
    def owner(self) -> str:
        """Which owner its processes count for. Root makes namespaces for others, such as services: each is an owner."""
        return f"uid:{self.owner_uid}" if self.owner_uid else f"userns:{self.id}"


def user_namespace(process: int) -> UserNamespace | None:
    """The namespace of a process, by a descriptor of its directory in procfs; None where it is ours, or not known."""
    try:
        descriptor = os.open("ns/user", _FILE, dir_fd=process)
    except PermissionError:
        return _by_uid_map(process)
    except OSError:
        return None
    try:
        return _outermost(descriptor, os.stat("/proc/self/ns/user").st_ino)
    except OSError:
        return None


def _outermost(descriptor: int, own: int) -> UserNamespace | None:
    """Closes the descriptor."""
    outermost: UserNamespace | None = None
    for _ in range(_MAX_DEPTH):
        try:
            inode = os.fstat(descriptor).st_ino
            if inode == own:
                return outermost
            owner = bytearray(_UID.size)
            fcntl.ioctl(descriptor, _GET_OWNER_UID, owner)
            outermost = UserNamespace(_UID.unpack(owner)[0], str(inode))
            parent = fcntl.ioctl(descriptor, _GET_PARENT)
        finally:
            os.close(descriptor)
        descriptor = parent
    os.close(descriptor)
    return None


def _by_uid_map(process: int) -> UserNamespace | None:
    """The same from files that every user may read: without SYS_PTRACE the namespaces of others are hidden.

    A user can map their own uid and their subordinate ones only.
    """
    try:
        rows = _read("uid_map", process).split()
        if rows == _read("/proc/self/uid_map").split() or len(rows) < 3:
            return None
        first_uid = int(rows[1])
    except (OSError, ValueError):
        return None
    return UserNamespace(_owner_of_subordinate(first_uid), ",".join(rows[:12]))


def _owner_of_subordinate(uid: int) -> int:
    """The user that has this uid as a subordinate one; the uid itself where none has."""
    for name, first, count in (row for row in _rows("/etc/subuid") if len(row) == 3):
        begin, size = parse_decimal(first), parse_decimal(count)
        if begin is not None and size is not None and begin <= uid < begin + size:
            # Read as a file: a lookup by name may block.
            by_name = (row[2] for row in _rows("/etc/passwd") if len(row) > 2 and row[0] == name)
            owner = parse_decimal(next(by_name, name))
            return uid if owner is None else owner
    return uid


def _rows(path: str) -> list[list[str]]:
    try:
        return [line.split(":") for line in lines_of(_read(path))]
    except OSError:
        return []


def _read(name: str, directory: int | None = None) -> str:
    descriptor = os.open(name, _FILE, dir_fd=directory)
    try:
        return os.read(descriptor, _MAX_FILE_BYTES).decode("utf-8", "replace")
    finally:
        os.close(descriptor)
