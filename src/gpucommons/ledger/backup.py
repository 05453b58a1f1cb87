"""A copy of the ledger, made once a day next to it, and how it takes the place of a damaged ledger.

SQLite makes the copy (its backup call), while reports read the ledger. A copy is checked before it replaces that of the
day before, so that damage that nothing has read yet is found within a day, and a whole copy is left then. A damaged
ledger is renamed, never changed; what was billed after its copy is missing in the new file, and counts as a gap.
"""

import contextlib
import errno
import os
import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from gpucommons.base.files import open_state_file
from gpucommons.ledger.errors import (
    SQLITE_ERRORS,
    LedgerCorrupt,
    from_os,
    from_sqlite,
    lock_ledger,
    set_aside,
)
from gpucommons.ledger.query import Totals
from gpucommons.model.accounts import Amounts, OwnerKey

# A bit error must not make a counter absurd: 64 GPUs of 10 kW are 64 * 10^10 µJ a second, and 10 TiB 10^10 KiB.
_MAX_PER_SECOND = 64 * 10**10


def backup_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.backup")


def backup_time(path: Path) -> float | None:
    """When the backup of this ledger was made, by the ledger's clock; None where there is none."""
    try:
        return backup_of(path).stat().st_mtime
    except OSError:
        return None


def back_up(path: Path, wall_s: float) -> None:
    """Replaces the backup. Raises LedgerCorrupt where the ledger is damaged, and LedgerError where it is not written.

    The backup before stays in both cases.
    """
    draft = path.with_name(f"{path.name}.backup.new")
    try:
        _remove(draft)
        # SQLite's own mode would be readable by all.
        os.close(open_state_file(draft, os.O_RDWR))
        with (
            contextlib.closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as source,
            contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as target,
        ):
            source.backup(target)
            _check(target)
        _synchronize(draft)
        os.utime(draft, (wall_s, wall_s))
        os.replace(draft, backup_of(path))
    except SQLITE_ERRORS as error:
        raise from_sqlite(error) from error
    except OSError as error:
        raise from_os(error) from error
    finally:
        _remove(draft)


def replace_damaged(path: Path, wall_s: float) -> tuple[Path, float | None]:
    """Renames a damaged ledger and puts a copy of its backup in its place.

    Returns the new name of the damaged file, and when the backup was made: None where there is none, or it is damaged,
    too. Raises LedgerError if the file cannot be renamed, or if there is no room for the copy: then the damaged one
    stays in its place for the next attempt. A process that dies meanwhile leaves it there, too.
    """
    lock = lock_ledger(path)
    draft = path.with_name(f"{path.name}.restored")
    try:
        made_s = _copy_backup(path, draft)
        aside = set_aside(path, wall_s)
        if made_s is not None:
            os.rename(draft, path)
        return aside, made_s
    finally:
        _remove(draft)
        os.close(lock)


def _copy_backup(path: Path, draft: Path) -> float | None:
    made_s = backup_time(path)
    if made_s is None:
        return None
    try:
        _remove(draft)
        os.close(open_state_file(draft, os.O_RDWR))
        shutil.copyfile(backup_of(path), draft)
        with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as copy:
            _check(copy)
        _synchronize(draft)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise from_os(error) from error
        return None
    except (*SQLITE_ERRORS, LedgerCorrupt):
        return None
    return made_s


def _check(connection: sqlite3.Connection) -> None:
    problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise LedgerCorrupt(problem)


def _synchronize(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")


def counters_of_both(
    restored: Mapping[OwnerKey, Totals], damaged: Mapping[OwnerKey, Totals], elapsed_s: float
) -> dict[OwnerKey, Totals]:
    """The counters of a restored ledger, continued where the damaged one has values that are possible after that time.

    A counter that decreases is a reset for Prometheus: it would add the whole counter to the sums of that hour.
    """
    largest = max(0.0, elapsed_s) * _MAX_PER_SECOND
    counters = dict(restored)
    for key, later in damaged.items():
        earlier = restored.get(key, Totals(Amounts(), 0.0))
        if all(0 <= after - before <= largest for before, after in zip(earlier.amounts, later.amounts, strict=True)):
            counters[key] = later
    return counters
