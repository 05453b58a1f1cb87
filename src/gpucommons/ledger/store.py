"""The ledger file: SQLite in WAL mode. One flush is one transaction, and counts once however often it is retried.

Used by one thread. Raises LedgerError if the disk refuses; never repairs or overwrites a damaged file.
"""

import contextlib
import os
import shutil
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from gpucommons.base.files import open_state_file
from gpucommons.ledger.errors import SQLITE_ERRORS, LedgerCorrupt, LedgerError, from_os, from_sqlite, lock_ledger
from gpucommons.ledger.integrate import NS, Batch, Gap, Moment
from gpucommons.ledger.query import Totals, totals_in
from gpucommons.ledger.schema import DAY_S, HOUR, LAYERS, Retention, migrate
from gpucommons.model.accounts import Amounts, OwnerKey, SlotTime
from gpucommons.model.allocations import Account, Slot

RESTART = "restart"
RESTORED = "restored"

_BUSY_S = 5.0
_ADD_AMOUNTS = ", ".join(f"{name} = {name} + excluded.{name}" for name in Amounts._fields)
_ADD_TIME = ", ".join(f"{name} = {name} + excluded.{name}" for name in SlotTime._fields)
_AT_LEAST = ", ".join(f"{name} = max({name}, excluded.{name})" for name in Amounts._fields)
_QUESTION_MARKS = ", ".join("?" * len(Amounts._fields))

_ACCOUNT = [f'"{name}"' for name in Account._fields]
_INSERT_ACCOUNT = f"INSERT INTO accounts ({', '.join(_ACCOUNT)}) VALUES ({', '.join('?' * len(_ACCOUNT))})"
_FIND_ACCOUNT = f"SELECT number FROM accounts WHERE {' AND '.join(f'{name} = ?' for name in _ACCOUNT)}"
# As JobFigures.merged; a NULL is not known yet. max() of SQLite is NULL if one of its values is.
_ADD_JOB = """UPDATE accounts SET first_s = min(ifnull(first_s, ?1), ?1), last_s = max(ifnull(last_s, ?2), ?2),
    peak_kib = coalesce(max(peak_kib, ?3), peak_kib, ?3), idle_seen_ns = ifnull(idle_seen_ns, 0) + ?4,
    idle_cpu_ns = ifnull(idle_cpu_ns, 0) + ?5, idle_disk_ns = ifnull(idle_disk_ns, 0) + ?6,
    waited_ms = ifnull(waited_ms, ?7), asked_kib = ifnull(asked_kib, ?8) WHERE number = ?9"""
_SLOT = [f'"{name}"' for name in Slot._fields]
_INSERT_SLOT = f"INSERT INTO slots ({', '.join(_SLOT)}) VALUES ({', '.join('?' * len(_SLOT))})"
_FIND_SLOT = f"SELECT number FROM slots WHERE {' AND '.join(f'{name} IS ?' for name in _SLOT)}"

# The identities of the file and of its write-ahead log; None for a file that does not exist.
_Files = tuple[tuple[int, int] | None, tuple[int, int] | None]
_Key = TypeVar("_Key", Account, Slot)


class Store:
    """An open ledger. `run` identifies one start of the agent, also if the file is reopened."""

    def __init__(self, path: Path, run: str, boot_id: str) -> None:
        self._path = path
        self._run = run
        self._boot_id = boot_id
        self._accounts: dict[Account, int] = {}
        self._slots: dict[Slot, int] = {}
        self._files: _Files = (None, None)
        self._lock: int | None = lock_ledger(path)
        try:
            create_file(path)
            self._connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            with _ledger_errors():
                self._open()
            self._files = _inodes(path)
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        run = self._connection.execute
        run("PRAGMA journal_mode = WAL")
        # Flushes are seconds apart: a sync for each is cheap, and a power failure loses at most one flush.
        run("PRAGMA synchronous = FULL")
        run("PRAGMA journal_size_limit = 8388608")
        problem = run("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise LedgerCorrupt(problem)
        migrate(self._connection)

    def close(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        self._remove_old_log()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _remove_old_log(self) -> None:
        """SQLite leaves the write-ahead log of a file that was replaced: it would be applied to the new file."""
        (file, log), (file_now, log_now) = self._files, _inodes(self._path)
        if file != file_now and log is not None and log == log_now:
            for suffix in ("-wal", "-shm"):
                with contextlib.suppress(OSError):
                    os.unlink(f"{self._path}{suffix}")

    def is_in_place(self) -> bool:
        """False if the file was deleted or replaced since it was opened, or its write-ahead log was deleted.

        SQLite would continue to write into a file that has no name any more.
        """
        return self._files == _inodes(self._path)

    def totals(self) -> dict[OwnerKey, Totals]:
        with _ledger_errors():
            return totals_in(self._connection)

    def gap_ns(self) -> dict[str, int]:
        with _ledger_errors():
            return dict(self._connection.execute("SELECT reason, sum(ns) FROM gaps GROUP BY reason").fetchall())

    def begin(self, begun: Moment, reason: str = RESTART) -> None:
        """Record this run, once, and the time since the end of the last run as a gap."""
        with self._transaction():
            if self._last_batch() is not None:
                return
            gap = self._gap_before(begun, reason)
            if gap is not None:
                self._add_gaps((gap,))
            self._connection.execute(
                "INSERT INTO runs (token, boot_id, last_batch, last_monotonic_ns, last_wall_s) VALUES (?, ?, 0, ?, ?)",
                (self._run, self._boot_id, begun.monotonic_ns, begun.wall_s),
            )

    def write(self, number: int, batch: Batch, until: Moment) -> None:
        """Add a batch, unless this run has already written it."""
        with self._transaction():
            last = self._last_batch()
            if last is None:
                raise LedgerError("database", "the run was not recorded")
            if last >= number:
                return
            self._add_usage(batch)
            self._add_times(batch)
            self._add_gaps(batch.gaps)
            self._add_totals(batch, until.wall_s)
            self._add_models(batch.models)
            self._add_jobs(batch)
            self._connection.execute(
                "UPDATE runs SET last_batch = ?, last_monotonic_ns = ?, last_wall_s = ? WHERE token = ?",
                (number, until.monotonic_ns, until.wall_s, self._run),
            )

    def seed_totals(self, totals: Mapping[OwnerKey, Totals]) -> None:
        """Copy the counters of a file that was renamed or deleted into a new one. None of them decreases."""
        with self._transaction():
            self._connection.executemany(
                f"INSERT INTO totals VALUES (?, ?, ?, ?, {_QUESTION_MARKS}) ON CONFLICT DO UPDATE SET "
                f"last_wall_s = max(last_wall_s, excluded.last_wall_s), {_AT_LEAST}",
                [(*key, total.last_wall_s, *total.amounts) for key, total in totals.items()],
            )

    def prune(self, retention: Retention, now_wall_s: float) -> None:
        """Delete rows that are older than their retention, and accounts without rows."""
        for layer, first_kept_s in retention.cutoffs(now_wall_s):
            with self._transaction():
                for table in (f"usage_{layer.name}", f"time_{layer.name}"):
                    self._connection.execute(f"DELETE FROM {table} WHERE start < ?", (first_kept_s,))
                self._connection.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", (layer.name, first_kept_s))
        with self._transaction():
            self._connection.execute("DELETE FROM gaps WHERE start < ?", (first_kept_s,))
            # Pods and jobs do not return. Users do, and their counters continue.
            self._connection.execute(
                "DELETE FROM totals WHERE kind != 'user' AND last_wall_s < ?", (now_wall_s - retention.hours_d * DAY_S,)
            )
            used = " UNION ".join(f"SELECT account FROM usage_{layer.name}" for layer in LAYERS)
            self._connection.execute(f"DELETE FROM accounts WHERE number NOT IN ({used})")
            self._connection.execute(
                "DELETE FROM runs WHERE token != ? AND id < (SELECT max(id) FROM runs)", (self._run,)
            )
        self._accounts.clear()

    def file_bytes(self) -> int | None:
        try:
            return os.stat(self._path).st_size
        except OSError:
            return None

    def disk_free_bytes(self) -> int | None:
        try:
            return shutil.disk_usage(self._path).free
        except OSError:
            return None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with _ledger_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                # Row numbers that this transaction assigned are invalid.
                self._accounts.clear()
                self._slots.clear()
                if self._connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        self._connection.execute("ROLLBACK")
                raise

    def _last_batch(self) -> int | None:
        row = self._connection.execute("SELECT last_batch FROM runs WHERE token = ?", (self._run,)).fetchone()
        return None if row is None else int(row[0])

    def _gap_before(self, begun: Moment, reason: str) -> Gap | None:
        row = self._connection.execute(
            "SELECT boot_id, last_monotonic_ns, last_wall_s FROM runs ORDER BY id DESC LIMIT 1"
        ).fetchone()
        if row is None:
            return None
        boot_id, monotonic_ns, wall_s = row
        ns = begun.monotonic_ns - monotonic_ns
        if not boot_id or boot_id != self._boot_id or ns < 0:
            # After a boot, or in another time namespace, the monotonic clock differs: use the wall clock.
            ns = round((begun.wall_s - wall_s) * NS)
        return Gap(int(wall_s), "", reason, ns) if ns > 0 else None

    def _add_usage(self, batch: Batch) -> None:
        numbered = [
            (minute, self._slot(slot), self._account(account), amounts)
            for (minute, slot, account), amounts in batch.usage.items()
        ]
        for layer in LAYERS:
            self._connection.executemany(
                f"INSERT INTO usage_{layer.name} VALUES (?, ?, ?, {_QUESTION_MARKS}) "
                f"ON CONFLICT DO UPDATE SET {_ADD_AMOUNTS}",
                [(layer.start_of(minute), slot, account, *amounts) for minute, slot, account, amounts in numbered],
            )

    def _add_times(self, batch: Batch) -> None:
        numbered = [(minute, self._slot(slot), time) for (minute, slot), time in batch.slot_time.items()]
        for layer in LAYERS:
            self._connection.executemany(
                f"INSERT INTO time_{layer.name} VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET {_ADD_TIME}",
                [(layer.start_of(minute), slot, *time) for minute, slot, time in numbered],
            )

    def _add_gaps(self, gaps: tuple[Gap, ...]) -> None:
        self._connection.executemany(
            "INSERT INTO gaps VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET ns = ns + excluded.ns",
            [(HOUR.start_of(gap.wall_s // 60), gap.slot_uuid, gap.reason, gap.ns) for gap in gaps],
        )

    def _add_totals(self, batch: Batch, wall_s: float) -> None:
        self._connection.executemany(
            f"INSERT INTO totals VALUES (?, ?, ?, ?, {_QUESTION_MARKS}) "
            f"ON CONFLICT DO UPDATE SET last_wall_s = excluded.last_wall_s, {_ADD_AMOUNTS}",
            [(*key, wall_s, *amounts) for key, amounts in batch.by_owner().items()],
        )

    def _add_models(self, models: Mapping[str, str]) -> None:
        """Also for slots of former MIG layouts, and of older releases, which did not store the model."""
        self._connection.executemany(
            "UPDATE slots SET model = ?2 WHERE gpu_uuid = ?1 AND model IS NOT ?2", list(models.items())
        )

    def _add_jobs(self, batch: Batch) -> None:
        self._connection.executemany(_ADD_JOB, [(*job, self._account(account)) for account, job in batch.jobs.items()])

    def _account(self, account: Account) -> int:
        return self._number(self._accounts, account, _INSERT_ACCOUNT, _FIND_ACCOUNT)

    def _slot(self, slot: Slot) -> int:
        return self._number(self._slots, slot, _INSERT_SLOT, _FIND_SLOT)

    def _number(self, numbers: dict[_Key, int], key: _Key, insert: str, select: str) -> int:
        number = numbers.get(key)
        if number is None:
            row = self._connection.execute(select, key).fetchone()
            number = numbers[key] = row[0] if row else int(self._connection.execute(insert, key).lastrowid or 0)
        return number


def create_file(path: Path) -> None:
    """Create an empty file with our mode: SQLite's own would be readable by all. Its other files get the same mode.

    An existing file is not opened: to close a descriptor of it would end SQLite's locks in this process.
    """
    try:
        os.close(open_state_file(path, os.O_RDWR | os.O_EXCL))
    except FileExistsError:
        pass
    except OSError as error:
        raise from_os(error) from error


def _inodes(path: Path) -> _Files:
    return _inode(path), _inode(f"{path}-wal")


def _inode(path: Path | str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def new_run() -> str:
    return uuid.uuid4().hex


@contextlib.contextmanager
def _ledger_errors() -> Iterator[None]:
    try:
        yield
    except SQLITE_ERRORS as error:
        raise from_sqlite(error) from error
