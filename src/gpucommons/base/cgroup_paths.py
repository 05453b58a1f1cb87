"""The lines of /proc/PID/cgroup, the directories that they name, and which part of a cgroup path root has named.

A user with a cgroup directory of their own may create others in it, and name one like a container. Containers and pods
that count are named by root: by an engine, the kubelet or systemd.

The kernel shows every path from the root of the reader's cgroup namespace. In a container that is often the container's
own cgroup: then a program in another one is in /../../pod/container, whichever procfs that was read from.
"""

import glob
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
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


def read_cgroups(pid: int, procfs: str = "/proc", errors: str = "replace") -> list[CgroupLine]:
    """Raises OSError. `errors`: surrogateescape keeps names that are not UTF-8 as Python's file names have them."""
    descriptor = os.open(f"{procfs}/{pid}/cgroup", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return cgroup_lines(os.read(descriptor, MAX_CGROUP_BYTES).decode("utf-8", errors))
    finally:
        os.close(descriptor)


# The directory of a cgroup, for a reader in any namespace.

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


class CgroupDirectory(NamedTuple):
    """`mount` is the highest directory of the hierarchy that this process can see."""

    mount: Path
    path: Path


class _Place(NamedTuple):
    """A cgroup: from the root of our namespace so many up, and then down."""

    up: int
    down: tuple[str, ...]


class _Mount(NamedTuple):
    """A mounted hierarchy; version 1 has controllers among its options. `root` is the cgroup at `point`.

    `above` are the names that lead from `root` to the root of our namespace, as far as they are known.
    """

    version: int
    options: frozenset[str]
    point: Path
    root: _Place
    above: tuple[str, ...] = ()


def find_cgroup(line: CgroupLine, procfs: str = "/proc") -> CgroupDirectory | None:
    """None where no mount of this process shows that cgroup. Where several do, the one that shows the most above it."""
    place = _place(line.path)
    try:
        mounts = _mounts(procfs)
    except OSError:
        return None
    for mount in mounts:
        directory = _directory(mount, place) if _is_mounted(line.controllers, mount) else None
        # Unlike Path.is_dir, this is false where a user has made the path too long.
        if directory is not None and os.path.isdir(directory):
            return CgroupDirectory(mount.point, directory)
    return None


def _place(path: str) -> _Place:
    names = [name for name in path.split("/") if name]
    up = next((count for count, name in enumerate(names) if name != ".."), len(names))
    return _Place(up, tuple(names[up:]))


def _is_mounted(controllers: str, mount: _Mount) -> bool:
    return mount.options.issuperset(controllers.split(",")) if controllers else mount.version == 2


def _directory(mount: _Mount, place: _Place) -> Path | None:
    between = mount.root.up - place.up
    if not 0 <= between <= len(mount.above):
        return None
    names = (*mount.above[:between], *place.down)
    below = len(mount.root.down)
    return mount.point.joinpath(*names[below:]) if names[:below] == mount.root.down else None


@cache
def _mounts(procfs: str) -> tuple[_Mount, ...]:
    """Read once: the cgroups of a container are mounted before it starts. Raises OSError."""
    text = Path(procfs, "self", "mountinfo").read_text("utf-8", "surrogateescape")
    own = read_cgroups(os.getpid(), procfs, "surrogateescape")
    # One that was mounted later hides what was there.
    shown = {mount.point: mount for mount in _parse_mounts(lines_of(text))}
    mounts = [mount._replace(above=_names_above(mount, own)) for mount in shown.values()]
    return tuple(sorted(mounts, key=lambda mount: (-mount.root.up, len(mount.root.down))))


def _parse_mounts(lines: Iterable[str]) -> Iterator[_Mount]:
    for line in lines:
        before, _, after = line.partition(" - ")
        kind, *_, options = after.split(" ")
        if kind in ("cgroup", "cgroup2"):
            root, point = (_ESCAPE.sub(lambda code: chr(int(code[1], 8)), field) for field in before.split(" ")[3:5])
            version = 2 if kind == "cgroup2" else 1
            yield _Mount(version, frozenset(options.split(",")), Path(point), _place(root))


def _names_above(mount: _Mount, own: Iterable[CgroupLine]) -> tuple[str, ...]:
    """The kernel does not say how the root of our namespace is called: it is above the cgroup that has this process."""
    for place in (_place(line.path) for line in own if _is_mounted(line.controllers, mount)):
        between = mount.root.up - place.up
        if between > 0 and not mount.root.down:
            pattern = "/".join([*["*"] * between, *map(glob.escape, place.down), "cgroup.procs"])
            for file in mount.point.glob(pattern):
                if _lists(file, os.getpid()):
                    return file.relative_to(mount.point).parts[:between]
    return ()


def _lists(file: Path, pid: int) -> bool:
    try:
        return str(pid) in file.read_text().split()
    except OSError:
        return False


# Which part of a path root has named.


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
