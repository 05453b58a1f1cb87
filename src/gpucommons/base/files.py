"""Files that the agent keeps, and growing files that it follows line by line.

What the agent keeps names users and their work, so that others may not read it. A followed file may be rotated by
renaming, or by copying and truncating.
"""

import errno
import gzip
import os
import re
import stat
import zlib
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

# The mode of the files that the agent keeps: they name users and their work, so that others may not read them.

STATE_FILE_MODE = 0o640


def explain_refusal(path: Path) -> str | None:
    """Why this process may not read the file, in one line; None if it may or if there is no such file.

    The file is not opened: to close a database again would end SQLite's locks in this process.
    """
    try:
        os.stat(path)
        is_allowed = os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids)
    except PermissionError:
        is_allowed = False
    except OSError:
        return None
    return None if is_allowed else f"{path}: no permission to read it; use sudo or join the group of the file"


def open_state_file(path: Path | str, flags: int) -> int:
    """A descriptor; a file that does not exist is created. The mode of an existing file is not changed.

    In a directory that others may write to, what is there may be theirs: a link, a pipe without a reader, or a file
    that they can read. Then it is refused with an OSError.
    """
    flags |= os.O_CREAT | os.O_CLOEXEC
    directory = Path(path).parent
    if not _others_may_write(directory):
        return os.open(path, flags, STATE_FILE_MODE)
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, STATE_FILE_MODE)
    status = os.fstat(descriptor)
    # The owner of the directory can replace all of it: a state directory of the user that the agent ran as before.
    if stat.S_ISREG(status.st_mode) and status.st_uid in (0, os.geteuid(), os.stat(directory).st_uid):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EPERM, "another user has made it, in a directory that others may write to")


def open_without_waiting(path: str, flags: int) -> int:
    """For `open`: does not wait for a writer, where another user has put a pipe in the place of a file."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _others_may_write(directory: Path) -> bool:
    """Root's group has no other members by default; any other group may have."""
    try:
        status = os.stat(directory)
    except OSError:
        return False
    by_group = status.st_mode & 0o020 and status.st_gid not in (0, os.getegid())
    return bool(status.st_mode & 0o002 or by_group) or status.st_uid not in (0, os.geteuid())


@contextmanager
def creation_mode(mode: int) -> Iterator[None]:
    """What is created meanwhile has exactly this mode at once. A chmod afterwards would follow a link that another
    user put in its place. The umask is that of the process: keep it short."""
    before = os.umask(0o777 & ~mode)
    try:
        yield
    finally:
        os.umask(before)


def replace_state_file(path: Path, content: bytes, mode: int = STATE_FILE_MODE, durably: bool = False) -> None:
    """Readers find the old content or the new one. `durably` also survives a power failure. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.new")
    # A draft of an earlier run; or a link of another user, where that user may write to the directory.
    with suppress(FileNotFoundError):
        os.unlink(draft)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        if durably:
            os.fsync(descriptor)
    os.replace(draft, path)


# Follows a growing file line by line, across rotation by renaming and by copy-and-truncate.
#
# A position is an offset and the bytes before it: they show whether the file is still the same, and locate the unread
# rest in its rotated copies. The position can be saved over a restart; no line is read twice or in part.

_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 64
# The suffixes that logrotate uses: .1, .2.gz, -20261115, -20261115.gz
_ROTATED_SUFFIX = re.compile(r"[.-]\d[\d-]*(\.gz)?")


class Position(NamedTuple):
    """How far the file was read: `tail` are the bytes before `offset`, `inode` is that of the live file.

    Rotated copies that were last written up to `rotated_ns` have been read.
    """

    inode: int = 0
    offset: int = 0
    tail: bytes = b""
    rotated_ns: int = 0


class Lines(NamedTuple):
    """Whole lines without line breaks, and the number of lines that were too long."""

    lines: list[bytes]
    too_long: int = 0


class _Rotated(NamedTuple):
    path: Path
    inode: int
    modified_ns: int


@dataclass(slots=True)
class _Segment:
    """A file to read from a position on. The live file is read again whenever it has grown."""

    file: BinaryIO
    place: Position
    is_live: bool = False
    skipping: bool = False

    def read(self) -> bytes | None:
        """The new bytes, or None if this is not the file that was read so far."""
        _, offset, tail, _ = self.place
        try:
            self.file.seek(offset - len(tail))
            data = self.file.read(len(tail) + _CHUNK_BYTES)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            return b""
        return data[len(tail) :] if data.startswith(tail) else None

    def advance(self, read: bytes) -> None:
        _, offset, tail, _ = self.place
        self.place = self.place._replace(offset=offset + len(read), tail=(tail + read)[-_TAIL_BYTES:])


@dataclass(slots=True)
class FileFollower:
    """`position` is the end of the last returned lines. Not thread-safe."""

    path: Path
    position: Position = field(default_factory=Position)
    rotations_lost: int = 0
    _current: _Segment | None = None
    _next: deque[_Segment] = field(default_factory=deque)
    _leaving: bool = False

    def poll(self) -> Iterator[Lines]:
        """All new lines, oldest first, in pieces. Raises OSError if the file does not exist or cannot be read.

        The caller may stop after any piece; the next poll continues after it.
        """
        if self._current is None:
            self._resume()
        while (current := self._current) is not None:
            intact = yield from self._drain(current)
            if not self._next:
                if not self._has_moved_on(current, intact):
                    return
                if os.stat(self.path).st_ino != current.place.inode:
                    # Renamed or removed: an incomplete line at its end will not be completed.
                    current.is_live = False
                    yield from self._drain(current)
                self._find_next(current)
            self._switch_to(self._next.popleft())

    def behind_bytes(self) -> int:
        """The unread bytes of the live file; rotated files are not counted."""
        current = self._current
        if current is None or not current.is_live:
            return 0
        return max(os.fstat(current.file.fileno()).st_size - current.place.offset, 0)

    def close(self) -> None:
        for segment in (self._current, *self._next):
            if segment is not None:
                segment.file.close()
        self._current = None
        self._next.clear()

    def _drain(self, segment: _Segment) -> Generator[Lines, None, bool]:
        """Yield whole lines. Returns False if the file was rewritten, True at its end."""
        while True:
            data = segment.read()
            if data is None or self._was_rotated_unread(segment):
                return False
            end = data.rfind(b"\n") + 1
            if not end and len(data) < _CHUNK_BYTES:
                if data and not segment.is_live and not segment.skipping:
                    self._advance(segment, data)
                    yield Lines([data])
                return True
            lines = data[:end].split(b"\n")[:-1]
            too_long = 0
            if lines and segment.skipping:
                del lines[0]
                segment.skipping = False
            elif not lines:
                too_long, end = int(not segment.skipping), len(data)
                segment.skipping = True
            self._advance(segment, data[:end])
            yield Lines(lines, too_long)

    def _advance(self, segment: _Segment, read: bytes) -> None:
        segment.advance(read)
        self.position = segment.place

    def _has_moved_on(self, live: _Segment, intact: bool) -> bool:
        """Whether the path is another file by now, or the file was truncated."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return False
        if status.st_ino != live.place.inode:
            # The writer may still have it open: check once more before leaving it.
            self._leaving, was_leaving = True, self._leaving
            return was_leaving
        return not intact

    def _was_rotated_unread(self, segment: _Segment) -> bool:
        """If nothing of the live file was read yet, only a newer rotated copy shows that it was truncated."""
        _, offset, _, rotated_ns = segment.place
        return segment.is_live and offset == 0 and bool(self._find_rotated_since(rotated_ns))

    def _find_next(self, current: _Segment) -> None:
        if os.stat(self.path).st_ino == current.place.inode:
            self._queue_unread()
            return
        # It was read to its end through the descriptor, whatever its name is now.
        done_ns = max(os.fstat(current.file.fileno()).st_mtime_ns, current.place.rotated_ns)
        self._queue(self._find_rotated_since(done_ns), done_ns)

    def _resume(self) -> None:
        """Find the saved position: in the live file, or in a rotated copy of it."""
        live = _open_segment(self.path, self.position, is_live=True)
        if self.position.offset and live.place.inode == self.position.inode and live.read() is not None:
            self._current = live
            return
        live.file.close()
        self._queue_unread()
        self._switch_to(self._next.popleft())

    def _queue_unread(self) -> None:
        """After a rotation: queue the rest of the file at the position, the copies since then, and the live file."""
        kept = self.position
        rotated = self._find_rotated_since(kept.rotated_ns)
        done_ns = rotated[-1].modified_ns if rotated else kept.rotated_ns
        if kept.offset:
            number = next((n for n, file in enumerate(rotated) if _holds(file, kept)), None)
            if number is None:
                self.rotations_lost += 1
                rotated = []
            else:
                place = kept._replace(rotated_ns=rotated[number].modified_ns - 1)
                self._next.append(_open_segment(rotated[number].path, place))
                rotated = rotated[number + 1 :]
        self._queue(rotated, done_ns)

    def _queue(self, whole: list[_Rotated], done_ns: int) -> None:
        """Queue these from their start, then the live file from its start."""
        self._next.extend(_open_segment(file.path, Position(rotated_ns=file.modified_ns - 1)) for file in whole)
        done_ns = max((done_ns, *(file.modified_ns for file in whole)))
        self._next.append(_open_segment(self.path, Position(rotated_ns=done_ns), is_live=True))

    def _switch_to(self, segment: _Segment) -> None:
        if self._current is not None:
            self._current.file.close()
        self._current, self._leaving = segment, False
        self.position = segment.place

    def _find_rotated_since(self, modified_ns: int) -> list[_Rotated]:
        """The rotated copies in the same directory that were written after that time, oldest first."""
        name = self.path.name
        by_name: dict[str, _Rotated] = {}
        with os.scandir(self.path.parent) as entries:
            for entry in entries:
                if entry.name.startswith(name) and _ROTATED_SUFFIX.fullmatch(entry.name, len(name)):
                    try:
                        status = entry.stat()
                    except FileNotFoundError:
                        continue
                    by_name[entry.name] = _Rotated(Path(entry.path), status.st_ino, status.st_mtime_ns)
        once = (file for name, file in by_name.items() if name.removesuffix(".gz") == name or name[:-3] not in by_name)
        return sorted((file for file in once if file.modified_ns > modified_ns), key=lambda file: file.modified_ns)


def _open_segment(path: Path, place: Position, is_live: bool = False) -> _Segment:
    plain = path.open("rb", buffering=0)
    place = place._replace(inode=os.fstat(plain.fileno()).st_ino)
    if path.suffix != ".gz":
        return _Segment(plain, place, is_live)
    plain.close()
    return _Segment(gzip.open(path, "rb"), place)  # type: ignore[arg-type]


def _holds(rotated: _Rotated, place: Position) -> bool:
    """Whether this is a copy of the file that was read up to that position."""
    segment = _open_segment(rotated.path, place)
    try:
        return segment.read() is not None
    finally:
        segment.file.close()
