"""The record of what is paused: a directory with one small file per pid, written before the process is paused.

It has to survive the death of its writer, not of the machine (pauses do not survive that either), so nothing is
synced: a write is in the kernel once the call returns. Every line has the same length and is replaced by one write, so
that a reader never sees half of the old and half of the new. A file that cannot be read still names its pid.
"""

import fcntl
import json
import math
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from gpucommons.base.text import parse_decimal
from gpucommons.model.process_identity import ProcessKey

MAX_PID: Final = 1 << 22
LONGEST_GPU: Final = 96
_LINE_BYTES: Final = 384
# No lock waits longer, whatever a damaged entry says.
_MAX_SETTLING_S: Final = 61.0
_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Stage(StrEnum):
    """What was being done to the process when the entry was written."""

    LOCKING = "locking"
    LOCKED = "locked"
    CHECKPOINTING = "checkpointing"
    PARKED = "parked"
    RESTORING = "restoring"


@dataclass(frozen=True, slots=True)
class Entry:
    """One paused process. `start_ticks` is None where the file could not be read.

    `settles_at_s`, on the clock that all processes share (CLOCK_MONOTONIC), is when a lock under way has either
    happened or failed: the driver may carry it out after its caller has died. `memory_bytes` is what the process held
    on the GPU, 0 where that is unknown.
    """

    pid: int
    start_ticks: int | None
    stage: Stage
    backend: str = "cuda"
    settles_at_s: float = 0.0
    gpu: str = ""
    memory_bytes: int = 0

    @property
    def key(self) -> ProcessKey | None:
        return None if self.start_ticks is None else ProcessKey(self.pid, self.start_ticks)


def encode(entry: Entry) -> bytes:
    line = json.dumps(
        {
            "pid": entry.pid,
            "start_ticks": entry.start_ticks,
            "stage": entry.stage.value,
            "backend": entry.backend,
            "settles_at_s": round(entry.settles_at_s, 3),
            "gpu": entry.gpu,
            "memory_bytes": entry.memory_bytes,
        }
    ).encode()
    return line.ljust(_LINE_BYTES - 1) + b"\n"


def decode(pid: int, content: bytes) -> Entry:
    """What the file of this pid says. Whatever it holds, the pid is known."""
    try:
        fields: Any = json.loads(content)
        entry = Entry(
            pid=_whole(fields["pid"]),
            start_ticks=_whole(fields["start_ticks"]),
            stage=Stage(fields["stage"]),
            backend=str(fields["backend"]),
            settles_at_s=_instant(fields["settles_at_s"]),
            gpu=str(fields["gpu"]),
            memory_bytes=_whole(fields["memory_bytes"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return Entry(pid, None, Stage.LOCKED)
    return entry if entry.pid == pid else Entry(pid, None, Stage.LOCKED)


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"not a count: {value!r}")
    return value


def _instant(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"not an instant: {value!r}")
    return float(value)


class RecordError(Exception):
    """The record cannot be used: one line that says why and what to do."""


class PauseRecord:
    """An open record. Its calls raise OSError where the file system refuses."""

    def __init__(self, path: Path, directory: int) -> None:
        self.path = path
        self._directory = directory

    @classmethod
    def open(cls, path: Path) -> "PauseRecord":
        """Open the record to write it, and make its directory where there is none."""
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(path, _DIRECTORY_MODE)
            record = cls(path, os.open(path, _OPEN_DIRECTORY))
        except OSError as error:
            raise RecordError(
                f"cannot use the record of paused programs {path}: {error.strerror}; "
                "nothing is paused without it: make the directory writable or choose another"
            ) from error
        try:
            record._check()
        except RecordError:
            record.close()
            raise
        return record

    @classmethod
    def open_existing(cls, path: Path) -> "PauseRecord | None":
        """Open a record to resume what it holds; None where there is none."""
        try:
            return cls(path, os.open(path, _OPEN_DIRECTORY))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RecordError(f"cannot read the record of paused programs {path}: {error.strerror}") from error

    def close(self) -> None:
        os.close(self._directory)

    @property
    def owner(self) -> int:
        """The uid that the record belongs to."""
        return os.fstat(self._directory).st_uid

    def claim(self, within_s: float = 0.0) -> bool:
        """Become its one writer until this process ends; False where another process still is after that time.

        A pauser that was killed needs a moment to be gone: its threads end one after another.
        """
        deadline_s = time.monotonic() + within_s
        while True:
            try:
                fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    return False
                time.sleep(0.01)
            else:
                return True

    def write(self, entry: Entry) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(str(entry.pid), flags, _FILE_MODE, dir_fd=self._directory)
        try:
            os.pwrite(file, encode(entry), 0)
        finally:
            os.close(file)

    def remove(self, pid: int) -> None:
        with suppress(FileNotFoundError):
            os.unlink(str(pid), dir_fd=self._directory)

    def entries(self) -> Iterator[Entry]:
        for name in sorted(os.listdir(self._directory)):
            pid = parse_decimal(name)
            if pid is not None and 0 < pid <= MAX_PID:
                with suppress(FileNotFoundError):
                    entry = decode(pid, self._content(name))
                    yield replace(entry, settles_at_s=min(entry.settles_at_s, time.monotonic() + _MAX_SETTLING_S))

    def _content(self, name: str) -> bytes:
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._directory)
        except FileNotFoundError:
            raise
        except OSError:
            return b""
        try:
            return os.read(file, _LINE_BYTES)
        except OSError:
            return b""
        finally:
            os.close(file)

    def _check(self) -> None:
        """A user that could write here could resume any process, or hide a paused one."""
        status = os.fstat(self._directory)
        if status.st_uid != os.geteuid():
            raise RecordError(
                f"cannot use the record of paused programs {self.path}: it belongs to uid {status.st_uid}; "
                "remove it or choose another"
            )
        try:
            if stat.S_IMODE(status.st_mode) != _DIRECTORY_MODE:
                os.fchmod(self._directory, _DIRECTORY_MODE)
            # No process has pid 0: this only shows that files can be made here.
            self.write(Entry(0, 0, Stage.LOCKING))
            self.remove(0)
        except OSError as error:
            raise RecordError(
                f"cannot write the record of paused programs {self.path}: {error.strerror}; "
                "nothing is paused without it: make the directory writable or choose another"
            ) from error
