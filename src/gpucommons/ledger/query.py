"""Reads a period from the ledger file, also while an agent writes it. Never writes."""

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from gpucommons.base.files import refused
from gpucommons.ledger.batch import Gap
from gpucommons.ledger.errors import SQLITE_ERRORS, LedgerError, from_sqlite
from gpucommons.ledger.rollups import DAY, HOUR, LAYERS, Piece, pieces
from gpucommons.ledger.schema import APPLICATION_ID, MIGRATIONS
from gpucommons.model.accounts import Amounts, OwnerKey, SlotTime
from gpucommons.model.allocations import UNATTRIBUTED, Account, Slot

_Result = TypeVar("_Result")
_LOST_SLOT = Slot("unknown", "unknown", "?", None)
SUM_COLUMNS = ", ".join(f"sum({name})" for name in Amounts._fields)
ACCOUNT_COLUMNS = ", ".join(f'"{name}"' for name in Account._fields)
_SLOT = ", ".join(f'"{name}"' for name in Slot._fields)
_TIMES = ", ".join(f"sum({name})" for name in SlotTime._fields)


@dataclass(frozen=True, slots=True)
class PeriodUsage:
    """What was billed in [since_s, until_s): the requested period, or slightly more where fine layers were pruned.

    `models` are the names of the GPUs' models, by the GPU's UUID. `days` divides the usage by the first second of the
    day (UTC); it is empty where it was not asked for.
    """

    since_s: int
    until_s: int
    usage: dict[tuple[Slot, Account], Amounts] = field(default_factory=dict)
    slot_time: dict[Slot, SlotTime] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    models: Mapping[str, str] = field(default_factory=dict)
    days: Mapping[int, Mapping[tuple[Slot, Account], Amounts]] = field(default_factory=dict)


class Totals(NamedTuple):
    """All that one owner was ever billed, and when it was last billed."""

    amounts: Amounts
    last_wall_s: float


def totals_in(connection: sqlite3.Connection) -> dict[OwnerKey, Totals]:
    rows = connection.execute(f"SELECT kind, owner, namespace, last_wall_s, {', '.join(Amounts._fields)} FROM totals")
    return {OwnerKey(*row[:3]): Totals(Amounts(*row[4:]), row[3]) for row in rows}


def read_totals(path: Path) -> dict[OwnerKey, Totals]:
    """Raises LedgerError if the ledger cannot be read."""
    return queried(path, totals_in)


def read_period(path: Path, since_s: int, until_s: int, by_day: bool = False) -> PeriodUsage:
    """Raises LedgerError of one line if the ledger cannot be read."""
    return queried(path, lambda connection: _read(connection, since_s, until_s, by_day))


def queried(path: Path, query: Callable[[sqlite3.Connection], _Result]) -> _Result:
    """Raises LedgerError of one line if the ledger cannot be read."""
    if reason := refused(path):
        raise LedgerError("cannot_open", reason)
    if not path.exists():
        raise LedgerError("absent", f"{path}: no ledger; 'gpucommons up' writes it ([ledger] file)")
    try:
        with closing(_connected(path)) as connection:
            return query(connection)
    except SQLITE_ERRORS as error:
        found = from_sqlite(error)
        raise LedgerError(found.reason, f"{path}: {found}") from error


def _connected(path: Path) -> sqlite3.Connection:
    """Through the WAL file of a writer; without a writer, immutable, so that no WAL file of ours is created."""
    if Path(f"{path}-wal").exists():
        try:
            return _checked(path, "mode=ro")
        except sqlite3.OperationalError:
            # The WAL file of a killed writer, in a directory that is not writable: read the main file only.
            pass
    return _checked(path, "mode=ro&immutable=1")


def _checked(path: Path, options: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?{options}"
    connection = sqlite3.connect(uri, uri=True, timeout=5.0, isolation_level=None)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise LedgerError("foreign", f"{path}: not a gpucommons ledger")
        if not 1 <= version <= len(MIGRATIONS):
            raise LedgerError("version", f"{path}: schema version {version}, this program reads 1 to {len(MIGRATIONS)}")
    except BaseException:
        connection.close()
        raise
    return connection


def _read(connection: sqlite3.Connection, since_s: int, until_s: int, by_day: bool) -> PeriodUsage:
    connection.execute("BEGIN")
    kept = dict(connection.execute("SELECT layer, since FROM kept"))
    parts = pieces(since_s, until_s, {layer: kept.get(layer.name, 0) for layer in LAYERS})
    if not parts:
        return PeriodUsage(since_s, until_s)
    accounts = {
        row[0]: Account(*row[1:]) for row in connection.execute(f"SELECT number, {ACCOUNT_COLUMNS} FROM accounts")
    }
    slots = slots_in(connection)
    usage: dict[tuple[int, int], Amounts] = {}
    days: dict[int, dict[tuple[int, int], Amounts]] = {}
    times: dict[int, SlotTime] = {}
    # Each layer's buckets lie within a day, so that the days add up to the period.
    keys = f"start / {DAY.seconds} * {DAY.seconds}, slot, account" if by_day else "0, slot, account"
    for part in parts:
        for day, slot, account, *sums in _rows(connection, f"{keys}, {SUM_COLUMNS}", "usage", part, "1, 2, 3"):
            amounts = Amounts(*sums)
            for table in (usage, days.setdefault(day, {})) if by_day else (usage,):
                table[slot, account] = table.get((slot, account), Amounts()).plus(amounts)
        for slot, *sums in _rows(connection, f"slot, {_TIMES}", "time", part, "slot"):
            times[slot] = times.get(slot, SlotTime()).plus(SlotTime(*sums))
    gaps = connection.execute(
        "SELECT start, slot_uuid, reason, ns FROM gaps WHERE start >= ? AND start < ?",
        (parts[0].since_s // HOUR.seconds * HOUR.seconds, parts[-1].until_s),
    )
    return PeriodUsage(
        parts[0].since_s,
        parts[-1].until_s,
        _named(usage, slots, accounts),
        {slots(slot): time for slot, time in times.items() if slots(slot) is not _LOST_SLOT},
        tuple(Gap(*row) for row in gaps),
        models_in(connection),
        {day: _named(table, slots, accounts) for day, table in days.items()},
    )


def slots_in(connection: sqlite3.Connection) -> Callable[[int], Slot]:
    """The slot of each number; the one of a lost row is unknown."""
    slots = {row[0]: Slot(*row[1:]) for row in connection.execute(f"SELECT number, {_SLOT} FROM slots")}
    return lambda number: slots.get(number, _LOST_SLOT)


def models_in(connection: sqlite3.Connection) -> dict[str, str]:
    """Empty in a file that only an older release has written: it has no models."""
    if not has_jobs(connection):
        return {}
    return dict(connection.execute("SELECT gpu_uuid, model FROM slots WHERE model IS NOT NULL"))


def has_jobs(connection: sqlite3.Connection) -> bool:
    """Whether the file has the columns of the second schema. The agent adds them when it opens the file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0]) > 1


def _named(
    usage: dict[tuple[int, int], Amounts], slots: Callable[[int], Slot], accounts: dict[int, Account]
) -> dict[tuple[Slot, Account], Amounts]:
    """A row whose slot or account is missing is still used time: it must not hide the other rows."""
    named: dict[tuple[Slot, Account], Amounts] = {}
    for (slot, account), amounts in usage.items():
        key = (slots(slot), accounts.get(account, UNATTRIBUTED))
        named[key] = named.get(key, Amounts()).plus(amounts)
    return named


def _rows(connection: sqlite3.Connection, columns: str, table: str, part: Piece, by: str) -> sqlite3.Cursor:
    return connection.execute(
        f"SELECT {columns} FROM {table}_{part.layer.name} WHERE start >= ? AND start < ? GROUP BY {by}",
        (part.since_s, part.until_s),
    )
