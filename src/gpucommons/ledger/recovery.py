"""Reads what can be read from a damaged ledger into a new one, on a copy: the damaged file is never changed.

Each table is read in the order of its keys. Where SQLite reports damage, reading continues behind it, then once more
from the other end and from the middle. Rows with values that no ledger has are dropped. Then the layers repair each
other: a lost hour is the sum of its minutes, a lost day that of its hours, and a lost total that of the days. Where a
finer layer differs from the coarser one, reports read the coarser one.
"""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gpucommons.ledger.errors import SQLITE_ERRORS, LedgerError, from_os, from_sqlite, lock_ledger, set_aside
from gpucommons.ledger.schema import DAY, HOUR, LAYERS, MINUTE, Layer, migrate
from gpucommons.ledger.store import create_file
from gpucommons.model.accounts import Amounts, SlotTime
from gpucommons.model.allocations import UNATTRIBUTED

_PAGE_BYTES = 4096
_ROWS_AT_ONCE = 1000
# A table with more damage than this is given up.
_MAX_DAMAGE = 1000
_BEYOND_EVERY_KEY = 1 << 40
# A bit error in an amount must not make every sum absurd: 10 kW are 10^10 µJ a second, 10 TiB are 10^10 KiB.
_MAX_PER_SECOND = 10**10
_LARGEST_TOTAL = 1 << 60


class _Table(NamedTuple):
    """`key` is the leading column of the primary key where that is a number, `width` the distance of two keys."""

    name: str
    key: str | None = None
    width: int = 1
    largest: int = _LARGEST_TOTAL


_LAYER_TABLES = tuple(
    _Table(f"{kind}_{layer.name}", "start", layer.seconds, _MAX_PER_SECOND * layer.seconds)
    for layer in reversed(LAYERS)
    for kind in ("usage", "time")
)
_TABLES = (
    _Table("accounts", "number"),
    _Table("slots", "number"),
    *_LAYER_TABLES,
    _Table("gaps", "start", HOUR.seconds),
    _Table("runs", "id"),
    _Table("totals"),
    _Table("kept"),
)


@dataclass(slots=True)
class Recovered:
    """`rows` by table; `damage`: how often SQLite reported damage; `dropped`: rows with impossible values."""

    rows: dict[str, int] = field(default_factory=dict)
    damage: int = 0
    dropped: int = 0

    def __str__(self) -> str:
        usage = sum(count for table, count in self.rows.items() if table.startswith("usage_"))
        rest = sum(self.rows.values()) - usage
        return f"{usage} rows of usage and {rest} others; {self.damage} unreadable places, {self.dropped} rows dropped"


def replace_damaged(path: Path, wall_s: float) -> tuple[Path, Recovered | LedgerError]:
    """Rename a damaged ledger and put a new one with the recovered rows in its place.

    Returns the new name of the damaged file, and what was recovered or why nothing was. Raises LedgerError if it cannot
    be renamed, or if there is no room for a new file: then the damaged one stays in its place for the next attempt. A
    process that dies meanwhile leaves it there too.
    """
    lock = lock_ledger(path)
    workplace = path.with_name(f"{path.name}.recovery")
    try:
        shutil.rmtree(workplace, ignore_errors=True)
        recovered: Recovered | LedgerError
        try:
            workplace.mkdir(mode=0o700)
            recovered = recover(path, workplace / "new", workplace / "copy")
        except OSError as error:
            recovered = from_os(error)
        except LedgerError as error:
            recovered = error
        if isinstance(recovered, LedgerError) and recovered.reason in ("full", "read_only"):
            raise recovered
        aside = set_aside(path, wall_s)
        if isinstance(recovered, Recovered):
            os.rename(workplace / "new", path)
        return aside, recovered
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
        os.close(lock)


def recover(damaged: Path, new: Path, copy: Path) -> Recovered:
    """Create the ledger `new` from what `damaged` has. Raises LedgerError if nothing can be read, or OSError."""
    shutil.copyfile(damaged, copy)
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(f"{damaged}-wal", f"{copy}-wal")
    create_file(new)
    try:
        with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as target:
            migrate(target)
            _put_first_page(target, new, copy)
            # Every statement is its own transaction; the file is synchronised once, at the end.
            target.execute("PRAGMA synchronous = OFF")
            recovered = Recovered()
            with contextlib.closing(_opened(copy)) as source:
                for table in _TABLES:
                    _copy_table(source, target, table, recovered)
            if not any(recovered.rows.values()):
                raise LedgerError("corrupt", "nothing in it can be read")
            _repair(target)
    except SQLITE_ERRORS as error:
        raise from_sqlite(error) from error
    descriptor = os.open(new, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return recovered


def _opened(copy: Path) -> sqlite3.Connection:
    """With a writable schema, SQLite opens files with a damaged schema or a missing end. Text is checked later."""
    connection = sqlite3.connect(copy, isolation_level=None)
    connection.text_factory = bytes
    connection.execute("PRAGMA writable_schema = ON")
    return connection


def _put_first_page(target: sqlite3.Connection, new: Path, copy: Path) -> None:
    """Where the tables are not found, put the first page of a new ledger into the copy.

    It has the header and the whole schema. No ledger is vacuumed: its tables begin at the same pages in every file.
    """
    schema = "SELECT CAST(name AS BLOB), rootpage, CAST(sql AS BLOB) FROM sqlite_master ORDER BY 1"
    with contextlib.suppress(*SQLITE_ERRORS), contextlib.closing(_opened(copy)) as source:
        if source.execute(schema).fetchall() == target.execute(schema).fetchall():
            return
    first_page = bytearray(new.read_bytes()[:_PAGE_BYTES])
    pages = os.stat(copy).st_size // _PAGE_BYTES
    # The number of pages; no list of free pages.
    first_page[28:40] = pages.to_bytes(4, "big") + bytes(8)
    with copy.open("r+b") as file:
        file.write(first_page)


def _copy_table(source: sqlite3.Connection, target: sqlite3.Connection, table: _Table, recovered: Recovered) -> None:
    columns = target.execute(f"PRAGMA table_info({table.name})").fetchall()
    names = [f'"{column[1]}"' for column in columns]
    insert = f"INSERT OR IGNORE INTO {table.name} VALUES ({', '.join('?' * len(names))})"
    before = target.total_changes
    pending: list[Sequence[object]] = []

    def write() -> None:
        target.execute("BEGIN")
        target.executemany(insert, pending)
        target.execute("COMMIT")
        pending.clear()

    damage = 0
    for number, (is_forward, begin) in enumerate(_ways(target, table)):
        for row in _scan(source, table, ", ".join(names), is_forward, begin):
            if row is None:
                damage += number == 0
                continue
            valid = _valid(row, columns, table)
            if valid is None:
                recovered.dropped += number == 0
                continue
            pending.append(valid)
            if len(pending) >= _ROWS_AT_ONCE:
                write()
        write()
        if not damage:
            break
    recovered.rows[table.name] = target.total_changes - before
    recovered.damage += damage


def _ways(target: sqlite3.Connection, table: _Table) -> Iterator[tuple[bool, int]]:
    """The directions and first keys of the scans. The first is enough for a table without damage.

    With damage at both ends, no search by growing steps finds times in the middle. The layers that were copied before,
    the coarser ones first, have such times.
    """
    yield True, 0
    yield False, _BEYOND_EVERY_KEY
    known = [
        start
        for each in _LAYER_TABLES
        if each.width > table.width
        for (start,) in target.execute(f"SELECT DISTINCT start FROM {each.name}")
    ]
    if table.key == "start" and known:
        middle = sorted(known)[len(known) // 2]
        yield True, middle
        yield False, middle


def _scan(
    source: sqlite3.Connection, table: _Table, columns: str, is_forward: bool, begin: int
) -> Iterator[Sequence[object] | None]:
    """The rows of a table in the order of its key, or in reverse. None stands for damage that was passed over."""
    order = "ASC" if is_forward else "DESC"
    if table.key is None:
        try:
            yield from source.execute(f"SELECT {columns} FROM {table.name} ORDER BY 1 {order}")
        except SQLITE_ERRORS:
            yield None
        return
    compare, sign = (">=", 1) if is_forward else ("<=", -1)
    question = f"SELECT {table.key}, {columns} FROM {table.name} WHERE {table.key} {compare} ? ORDER BY 1 {order}"

    def is_readable(key: int) -> bool:
        try:
            source.execute(f"{question} LIMIT 1", (key,)).fetchone()
        except SQLITE_ERRORS:
            return False
        return True

    at = begin
    for _ in range(_MAX_DAMAGE):
        begun_at, count = at, 0
        try:
            for key, *row in source.execute(question, (at,)):
                if not isinstance(key, int) or (key - at) * sign < 0:
                    break
                at, count = key, count + 1
                yield row
            else:
                return
        except SQLITE_ERRORS:
            # The sqlite3 module reads one row ahead: the last row before the damage was read but not returned.
            with contextlib.suppress(*SQLITE_ERRORS):
                for key, *row in source.execute(f"{question} LIMIT 1 OFFSET ?", (begun_at, count)):
                    if isinstance(key, int) and (key - at) * sign >= 0:
                        at = key
                        yield row
        yield None
        # Find the next key from which SQLite can read: in growing steps, then by halves.
        unreadable, step = at, table.width
        while step < _BEYOND_EVERY_KEY and not is_readable(unreadable + sign * step):
            unreadable += sign * step
            step *= 2
        readable = unreadable + sign * step
        while abs(readable - unreadable) > table.width:
            middle = (readable + unreadable) // 2
            readable, unreadable = (middle, unreadable) if is_readable(middle) else (readable, middle)
        if not 0 <= readable < _BEYOND_EVERY_KEY:
            return
        at = readable


def _valid(row: Sequence[object], columns: Sequence[Sequence[object]], table: _Table) -> Sequence[object] | None:
    """The row with its texts decoded, or None if a value has the wrong type or size."""
    values: list[object] = []
    for value, (_, name, type_name, is_required, _, in_key) in zip(row, columns, strict=True):
        if value is None and not is_required and not in_key:
            values.append(None)
        elif type_name == "TEXT" and isinstance(value, bytes):
            try:
                values.append(value.decode())
            except UnicodeDecodeError:
                return None
        elif type_name == "INTEGER" and isinstance(value, int) and 0 <= value <= table.largest:
            if name == table.key and value % table.width:
                return None
            values.append(value)
        elif type_name == "REAL" and isinstance(value, int | float) and 0 <= value < _BEYOND_EVERY_KEY:
            values.append(value)
        else:
            return None
    return values


def _repair(target: sqlite3.Connection) -> None:
    for fine, coarse in ((MINUTE, HOUR), (HOUR, DAY)):
        _fill_from_finer(target, fine, coarse)
    sums = ", ".join(f"sum({name})" for name in Amounts._fields)
    target.execute(
        f"INSERT INTO totals SELECT kind, owner, namespace, max(start), {sums} FROM usage_day "
        "JOIN accounts ON number = account GROUP BY 1, 2, 3 ON CONFLICT DO NOTHING"
    )
    # After the totals: the owner of a lost account may still have its total.
    _name_the_lost(target)
    for fine, coarse in ((HOUR, DAY), (MINUTE, HOUR)):
        _mark_complete_since(target, fine, coarse)


def _name_the_lost(target: sqlite3.Connection) -> None:
    """Usage whose account or slot was lost stays usage; its number must not be given to another account or slot."""
    for kind in ("account", "slot"):
        tables = [table.name for table in _LAYER_TABLES if kind == "slot" or table.name.startswith("usage_")]
        used = " UNION ".join(f"SELECT {kind} AS lost FROM {name}" for name in tables)
        missing = f"SELECT lost FROM ({used}) WHERE lost NOT IN (SELECT number FROM {kind}s)"
        if kind == "account":
            target.execute(
                'INSERT INTO accounts (number, kind, owner, namespace, id, user, "group", pod, job) '
                f"SELECT lost, ?, ?, '', 'lost-' || lost, '', '', '', '' FROM ({missing})",
                (UNATTRIBUTED.kind, UNATTRIBUTED.owner),
            )
        else:
            target.execute(
                'INSERT INTO slots (number, uuid, gpu_uuid, name, slices, "of") '
                f"SELECT lost, 'unknown-' || lost, 'unknown', '?', NULL, 1 FROM ({missing})"
            )


def _fill_from_finer(target: sqlite3.Connection, fine: Layer, coarse: Layer) -> None:
    start = f"start / {coarse.seconds} * {coarse.seconds}"
    for kind, keys, fields in (("usage", "slot, account", Amounts._fields), ("time", "slot", SlotTime._fields)):
        sums = ", ".join(f"sum({name})" for name in fields)
        target.execute(
            f"INSERT INTO {kind}_{coarse.name} SELECT {start}, {keys}, {sums} FROM {kind}_{fine.name} "
            f"WHERE true GROUP BY {start}, {keys} ON CONFLICT DO NOTHING"
        )


def _mark_complete_since(target: sqlite3.Connection, fine: Layer, coarse: Layer) -> None:
    """Let reports read the finer layer only from where its sums are those of the coarser one."""
    row = target.execute("SELECT since FROM kept WHERE layer = ?", (fine.name,)).fetchone()
    kept = row[0] if row else 0
    first_whole = -(-kept // coarse.seconds) * coarse.seconds
    (last,) = target.execute(
        f"SELECT max(start) FROM (SELECT start, sum(held_ns) AS held FROM usage_{coarse.name} GROUP BY start) "
        f"LEFT JOIN (SELECT start / {coarse.seconds} * {coarse.seconds} AS bucket, sum(held_ns) AS fine_held "
        f"FROM usage_{fine.name} GROUP BY 1) ON bucket = start WHERE start >= ? AND held != ifnull(fine_held, 0)",
        (first_whole,),
    ).fetchone()
    if last is not None:
        target.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", (fine.name, last + coarse.seconds))
