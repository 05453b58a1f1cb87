"""The mounted file systems: the mount table without the excluded ones, and the space of each.

A file system that hangs (a dead NFS server, a stopped FUSE daemon) costs its own reading, within a deadline.
"""

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from gpucommons.model.host import Filesystem, FilesystemReading, Space
from gpucommons.sources.host.procfs import read_whole
from gpucommons.sources.source import SourceAbsent, SourceError

# The mount table of a node, from /proc/1/mounts. Pure except for `read_mounts`.

_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """`path` is the location of the mount; `mount_point` is node_exporter's label for it, which is decoded less."""

    device: str
    path: str
    mount_point: str
    type: str
    read_only: bool


def parse_mounts(text: bytes, rootfs: PurePosixPath) -> Iterator[Mount]:
    """A mount below `rootfs` gets its path on the host; duplicates are left out."""
    seen = set()
    # Not splitlines: a name may contain characters that Python treats as line breaks.
    for line in text.decode("utf-8", "surrogateescape").rstrip("\n").split("\n"):
        device, place, kind, options, *_ = line.split(" ")
        # node_exporter decodes only space and tab. Its label is kept, since dashboards and silences use it.
        named = _below(place.replace(r"\040", " ").replace(r"\011", "\t"), rootfs)
        path = _below(_ESCAPE.sub(lambda code: chr(int(code[1], 8)), place), rootfs)
        if (device, named, kind) not in seen:
            seen.add((device, named, kind))
            yield Mount(device, path, named, kind, "ro" in options.split(","))


def _below(place: str, rootfs: PurePosixPath) -> str:
    path = PurePosixPath(place)
    if rootfs == PurePosixPath("/") or not path.is_relative_to(rootfs):
        return place
    return f"/{path.relative_to(rootfs)}" if path != rootfs else "/"


def read_mounts(procfs: Path) -> bytes:
    """The mounts of the host's first process; our own if that process is hidden (hidepid)."""
    try:
        return read_whole(procfs, "1/mounts")
    except FileNotFoundError:
        return read_whole(procfs, "mounts")


# Reads the space of file systems within a deadline. A file system that hangs (a dead NFS server, a stopped FUSE
# daemon) blocks one daemon thread until its call returns; until then it is not read again.
#
# Usually one thread reads all of them in turn. If that takes too long, each of the remaining ones gets its own thread,
# so that one that hangs, or many that are slow, do not delay the others.


def space_of(path: str) -> Space:
    answer = os.statvfs(path)
    # Blocks times block size, as in node_exporter; a FUSE file system may count its blocks in fragments.
    unit = answer.f_bsize
    return Space(
        size_bytes=answer.f_blocks * unit,
        free_bytes=answer.f_bfree * unit,
        available_bytes=answer.f_bavail * unit,
        files=answer.f_files,
        files_free=answer.f_ffree,
    )


@dataclass(slots=True)
class _Round:
    """One pass over the file systems. `changed` guards the fields and is notified of each answer."""

    changed: threading.Condition
    answers: dict[str, Space | None] = field(default_factory=dict)
    current: str = ""
    in_turn: bool = True


class SpaceReader:
    """A file system has `deadline_s` to answer; after `patience_s` they are no longer read in turn.

    `read_space` is the system call; it may block indefinitely.
    """

    def __init__(self, patience_s: float, deadline_s: float, read_space: Callable[[str], Space] = space_of) -> None:
        self._patience_s = patience_s
        self._deadline_s = deadline_s
        self._read_space = read_space
        self._lock = threading.Lock()
        self._stuck: set[str] = set()

    @property
    def stuck(self) -> frozenset[str]:
        """The file systems whose call has not returned yet."""
        with self._lock:
            return frozenset(self._stuck)

    def read(self, paths: Iterable[str]) -> dict[str, Space | None]:
        """The space of each; None if the call failed or did not return in time."""
        paths = list(dict.fromkeys(paths))
        stuck = self.stuck
        pending = [path for path in paths if path not in stuck]
        round = _Round(threading.Condition(self._lock))
        if pending:
            _start(self._read_in_turn, round, pending)
            with round.changed:
                if not _all_answered(round, pending, self._patience_s):
                    round.in_turn = False
                    for path in pending:
                        if path not in round.answers and path != round.current:
                            _start(self._read_one, round, path)
                    _all_answered(round, pending, self._deadline_s)
                self._stuck.update(path for path in pending if path not in round.answers)
        return {path: round.answers.get(path) for path in paths}

    def _read_in_turn(self, round: _Round, paths: list[str]) -> None:
        for path in paths:
            with round.changed:
                if not round.in_turn:
                    return
                round.current = path
            self._read_one(round, path)

    def _read_one(self, round: _Round, path: str) -> None:
        try:
            answer = self._read_space(path)
        except OSError:
            answer = None
        with round.changed:
            if path in self._stuck:
                # Too late for its round, which has ended: the next round reads it again.
                self._stuck.discard(path)
            else:
                round.answers[path] = answer
                round.changed.notify()


def _all_answered(round: _Round, paths: list[str], within_s: float) -> bool:
    return round.changed.wait_for(lambda: all(path in round.answers for path in paths), within_s)


def _start(target: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, name="statfs", daemon=True).start()


# Short enough that a command that takes one sample still gets the others if one file system hangs.
_IN_TURN_S, _ANSWER_WITHIN_S = 0.5, 1.0


class FilesystemReader:
    """Mounts whose mount point or type matches an `exclude` pattern are left out; an empty pattern excludes none."""

    def __init__(self, procfs: Path, rootfs: Path, mount_points_exclude: str, types_exclude: str) -> None:
        self._procfs = procfs
        self._rootfs = rootfs
        self._mount_points_exclude = re.compile(mount_points_exclude or "(?!)")
        self._types_exclude = re.compile(types_exclude or "(?!)")
        self._space = SpaceReader(_IN_TURN_S, _ANSWER_WITHIN_S)
        # The mount table at the last pass, and where each of its mounts is that is not excluded.
        self._table: bytes | None = None
        self._places: dict[Mount, str] = {}

    def read(self) -> FilesystemReading:
        places = self._find_places()
        spaces = self._space.read(places.values())
        return FilesystemReading(
            tuple(
                Filesystem(mount.device, mount.mount_point, mount.type, mount.read_only, spaces[place])
                for mount, place in places.items()
            )
        )

    def _find_places(self) -> dict[Mount, str]:
        try:
            table = read_mounts(self._procfs)
            if table != self._table:
                mounts = parse_mounts(table, PurePosixPath(self._rootfs))
                included = [mount for mount in mounts if not self._is_excluded(mount)]
                self._places = {mount: str(self._rootfs / mount.path.lstrip("/")) for mount in included}
                self._table = table
            return self._places
        except FileNotFoundError:
            raise SourceAbsent(
                f"no mount table: {self._procfs / 'mounts'} does not exist",
                "mount the host's /proc and set --path.procfs to it",
            ) from None
        except OSError as error:
            raise SourceError("unreadable", f"mount table of {self._procfs}: {error.strerror}") from error
        except ValueError as error:
            raise SourceError("garbage", f"mount table of {self._procfs}: a line has too few fields") from error

    def _is_excluded(self, mount: Mount) -> bool:
        return bool(self._mount_points_exclude.search(mount.mount_point) or self._types_exclude.search(mount.type))
