"""Errors of the ledger, its lock, and how a damaged file is set aside.

An error has a reason for a metric label, and one line of text; none stops the agent. Two agents on one file would
bill every GPU twice, hence the lock. A damaged file is renamed; nothing is ever overwritten or deleted.
"""

import errno
import fcntl
import os
import sqlite3
import stat
import time
from pathlib import Path

from gpucommons.base.files import STATE_FILE_MODE, open_state_file

_CORRUPT_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_REASONS = {
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_READONLY: "read_only",
    sqlite3.SQLITE_CANTOPEN: "cannot_open",
    sqlite3.SQLITE_PERM: "cannot_open",
    sqlite3.SQLITE_IOERR: "io_error",
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
}


class LedgerError(Exception):
    """The ledger cannot be read or written. The reason is a short constant."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class LedgerCorrupt(LedgerError):
    """The file is damaged: it is renamed and never written again."""

    def __init__(self, detail: str) -> None:
        super().__init__("corrupt", detail)


# SQLITE_ERRORS are what the sqlite3 module raises. It decodes SQLite's messages, which quote damaged text as it is.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
# Damage that has no error code. The statements are constant: a column that they do not find was lost, and a table that
# they create twice was not listed.
_DAMAGE = ("Could not decode to UTF-8", "no such column", "no such table", "unsupported file format")


def from_sqlite(error: sqlite3.Error | UnicodeDecodeError) -> LedgerError:
    """Our error for an error of SQLite. The low byte of its code is the primary result code."""
    if isinstance(error, UnicodeDecodeError):
        return LedgerCorrupt(error.object.decode("utf-8", "backslashreplace"))
    if str(error).startswith(_DAMAGE) or str(error).endswith(" already exists"):
        return LedgerCorrupt(str(error))
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _CORRUPT_CODES:
        return LedgerCorrupt(str(error))
    return LedgerError(_REASONS.get(code, "database"), str(error))


def from_os(error: OSError) -> LedgerError:
    """Our error for an error of the operating system."""
    return LedgerError(_reason(error), f"{error.strerror}: {error.filename}")


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "full"
    return "read_only" if error.errno == errno.EROFS else "cannot_open"


def lock_ledger(path: Path) -> int:
    """Lock the ledger for this process until the returned descriptor is closed. Raises LedgerError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = open_state_file(f"{path}.lock", os.O_RDWR)
    except OSError as error:
        raise from_os(error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise LedgerError(
            "in_use", "another agent uses it: stop that agent or set another file with [ledger] file"
        ) from None
    except OSError:
        # The file system has no locks: an unlocked ledger is better than none.
        return descriptor
    return descriptor


_COMPANIONS = ("", "-wal", "-shm")


def set_aside(path: Path, wall_s: float) -> Path:
    """Returns the new name. The write-ahead log is renamed too: it may contain data that can be recovered."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall_s))
    target = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while any(os.path.lexists(f"{target}{suffix}") for suffix in _COMPANIONS):
        number += 1
        target = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    try:
        for suffix in reversed(_COMPANIONS):
            if os.path.lexists(f"{path}{suffix}"):
                os.rename(f"{path}{suffix}", f"{target}{suffix}")
                _restrict(f"{target}{suffix}")
    except OSError as error:
        raise LedgerError("cannot_open", f"a damaged file cannot be renamed: {error.strerror}") from error
    return target


def _restrict(path: str) -> None:
    """A file of an earlier release may be readable by all. A link of another user is left as it is.

    Without opening the file: to close it again would end SQLite's locks in this process.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            os.chmod(f"/proc/self/fd/{descriptor}", mode & STATE_FILE_MODE)
    finally:
        os.close(descriptor)
