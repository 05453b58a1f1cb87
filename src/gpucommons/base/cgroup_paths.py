"""The lines of /proc/PID/cgroup, and which part of a cgroup path root has named.

A user with a cgroup directory of their own may create others in it, and name one like a container. Containers and pods
that count are named by root: by an engine, the kubelet or systemd.
"""

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from gpucommons.base.text import lines_of

# Twenty hierarchies of version 1 with a path of the greatest length, 4096.
MAX_CGROUP_BYTES: Final = 96 * 1024
_CGROUPFS: Final = Path("/sys/fs/cgroup")
_MAX_SEGMENTS: Final = 128
# Only such names are claims worth a look.
_CLAIM: Final = re.compile(r"[0-9a-f]{64}|pod[0-9a-f]{8}|user@[0-9]")
# A user's own systemd manager: readers of paths know by this name that the user named what is below it.
_USER_MANAGER: Final = re.compile(r"user@[0-9]+\.service")


class CgroupLine(NamedTuple):
    """One hierarchy and the path of the process in it. Version 2 has no controllers here."""

    controllers: str
    path: str


def cgroup_lines(text: str) -> list[CgroupLine]:
    """The lines of /proc/PID/cgroup. One that was cut short is left out."""
    fields = (line.split(":", 2) for line in lines_of(text))
    return [CgroupLine(*parts[1:]) for parts in fields if len(parts) == 3]


def read_cgroups(pid: int, procfs: str = "/proc") -> list[CgroupLine]:
    """Raises OSError."""
    descriptor = os.open(f"{procfs}/{pid}/cgroup", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return cgroup_lines(os.read(descriptor, MAX_CGROUP_BYTES).decode("utf-8", "replace"))
    finally:
        os.close(descriptor)


def trim_to_root_named(text: str) -> str:
    """The text of /proc/PID/cgroup, each path cut off below the first directory that another user may write.

    Paths through a user's own systemd manager, and those that cannot be looked up, stay as they are.
    """
    return "\n".join(_cut(line) for line in text.split("\n"))


def _cut(line: str) -> str:
    parts = line.split(":", 2)
    if len(parts) != 3 or not _CLAIM.search(parts[2]):
        return line
    hierarchy, controllers, path = parts
    mounts = (_CGROUPFS / controllers.removeprefix("name="),) if controllers else (_CGROUPFS, _CGROUPFS / "unified")
    segments = [segment for segment in path.split("/", _MAX_SEGMENTS) if segment]
    if ".." in segments:
        return line
    for mount in mounts:
        kept = _count_root_named(str(mount), segments)
        if kept is not None and not any(map(_USER_MANAGER.fullmatch, segments[:kept])):
            return f"{hierarchy}:{controllers}:/{'/'.join(segments[:kept])}"
    return line


def is_of_user_manager(path: str) -> bool:
    """Whether the path leads through the tree of a user's own systemd manager."""
    return any(map(_USER_MANAGER.fullmatch, path.split("/", _MAX_SEGMENTS)))


def _count_root_named(mount: str, segments: list[str]) -> int | None:
    """How many segments root has named; None where this mount does not have the path."""
    try:
        # Root may appear as another uid, where we are in a user namespace ourselves.
        root_uids = {0, os.stat(mount).st_uid}
        directory = mount
        for count, segment in enumerate(segments, 1):
            directory = f"{directory}/{segment}"
            status = os.stat(directory)
            if status.st_uid not in root_uids or status.st_mode & 0o002:
                return count
    except OSError:
        return None
    return len(segments)
