"""Errors of the ledger: a reason for a metric label, and one line of text. None of them stops the agent."""

import errno
import sqlite3

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
