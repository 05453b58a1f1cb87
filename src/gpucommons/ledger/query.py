"""Reads a period from the ledger's file, beside the agent that writes it. Never writes."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from gpucommons.ledger.batch import Gap
from gpucommons.ledger.errors import SQLITE_ERRORS, LedgerError, from_sqlite
from gpucommons.ledger.rollups import HOUR, LAYERS, Piece, pieces
from gpucommons.ledger.schema import APPLICATION_ID, MIGRATIONS
from gpucommons.model.accounts import Amounts, OwnerKey, SlotTime
from gpucommons.model.usage import UNATTRIBUTED, Account, Slot

_Answer = TypeVar("_Answer")
_LOST_SLOT = Slot("unknown", "unknown", "?", None)
_AMOUNTS = ", ".join(f"sum({name})" for name in Amounts._fields)
_ACCOUNT = ", ".join(f'"{name}"' for name in Account._fields)
_SLOT = ", ".join(f'"{name}"' for name in Slot._fields)
_TIMES = ", ".join(f"sum({name})" for name in SlotTime._fields)


@dataclass(frozen=True, slots=True)
class PeriodUsage:
    """What was billed in [since_s, until_s), which is the period asked for or, at an edge, a little more."""

    since_s: int
    until_s: int
    usage: dict[tuple[Slot, Account], Amounts] = field(default_factory=dict)
    slot_time: dict[Slot, SlotTime] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()


class Totals(NamedTuple):
    """What one owner was ever billed, and when last."""

    amounts: Amounts
    last_wall_s: float


def totals_in(connection: sqlite3.Connection) -> dict[OwnerKey, Totals]:
    rows = connection.execute(f"SELECT kind, owner, namespace, last_wall_s, {', '.join(Amounts._fields)} FROM totals")
    return {OwnerKey(*row[:3]): Totals(Amounts(*row[4:]), row[3]) for row in rows}


def read_totals(path: Path) -> dict[OwnerKey, Totals]:
    """Raises LedgerError where there is no ledger to read."""
    return _asked(path, totals_in)


def read_period(path: Path, since_s: int, until_s: int) -> PeriodUsage:
    """Raises LedgerError, in one line, where there is no ledger to read."""
    return _asked(path, lambda connection: _read(connection, since_s, until_s))


def _asked(path: Path, ask: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
    if not path.exists():
        raise LedgerError("absent", f"{path}: no ledger here; 'gpucommons up' writes it ([ledger] file)")
    try:
        with closing(_connected(path)) as connection:
            return ask(connection)
    except SQLITE_ERRORS as error:
        found = from_sqlite(error)
        raise LedgerError(found.reason, f"{path}: {found}") from error


def _connected(path: Path) -> sqlite3.Connection:
    """Beside a writer, through its log; where there is none, without leaving one that is ours in its way."""
    if Path(f"{path}-wal").exists():
        try:
            return _checked(path, "mode=ro")
        except sqlite3.OperationalError:
            # The log of a writer that was killed, in a directory that we may not write: the file alone must do.
            pass
    return _checked(path, "mode=ro&immutable=1")


def _checked(path: Path, options: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?{options}"
    connection = sqlite3.connect(uri, uri=True, timeout=5.0, isolation_level=None)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise LedgerError("foreign", f"{path}: not a ledger of gpucommons")
        if version != len(MIGRATIONS):
            raise LedgerError("version", f"{path}: schema version {version}, this program reads {len(MIGRATIONS)}")
    except BaseException:
        connection.close()
        raise
    return connection


def _read(connection: sqlite3.Connection, since_s: int, until_s: int) -> PeriodUsage:
    connection.execute("BEGIN")
    kept = dict(connection.execute("SELECT layer, since FROM kept"))
    parts = pieces(since_s, until_s, {layer: kept.get(layer.name, 0) for layer in LAYERS})
    if not parts:
        return PeriodUsage(since_s, until_s)
    accounts = {row[0]: Account(*row[1:]) for row in connection.execute(f"SELECT number, {_ACCOUNT} FROM accounts")}
    slots = {row[0]: Slot(*row[1:]) for row in connection.execute(f"SELECT number, {_SLOT} FROM slots")}
    usage: dict[tuple[int, int], Amounts] = {}
    times: dict[int, SlotTime] = {}
    for part in parts:
        for slot, account, *sums in _rows(connection, f"slot, account, {_AMOUNTS}", "usage", part, "slot, account"):
            usage[slot, account] = usage.get((slot, account), Amounts()).plus(Amounts(*sums))
        for slot, *sums in _rows(connection, f"slot, {_TIMES}", "time", part, "slot"):
            times[slot] = times.get(slot, SlotTime()).plus(SlotTime(*sums))
    found = connection.execute(
        "SELECT start, slot_uuid, reason, ns FROM gaps WHERE start >= ? AND start < ?",
        (parts[0].since_s // HOUR.seconds * HOUR.seconds, parts[-1].until_s),
    )
    return PeriodUsage(
        parts[0].since_s,
        parts[-1].until_s,
        _named(usage, slots, accounts),
        {slots[slot]: time for slot, time in times.items() if slot in slots},
        tuple(Gap(*row) for row in found),
    )


def _named(
    usage: dict[tuple[int, int], Amounts], slots: dict[int, Slot], accounts: dict[int, Account]
) -> dict[tuple[Slot, Account], Amounts]:
    """A row whose slot or account is lost is still somebody's time: it must not silence the others."""
    named: dict[tuple[Slot, Account], Amounts] = {}
    for (slot, account), amounts in usage.items():
        key = (slots.get(slot, _LOST_SLOT), accounts.get(account, UNATTRIBUTED))
        named[key] = named.get(key, Amounts()).plus(amounts)
    return named


def _rows(connection: sqlite3.Connection, columns: str, table: str, part: Piece, by: str) -> sqlite3.Cursor:
    return connection.execute(
        f"SELECT {columns} FROM {table}_{part.layer.name} WHERE start >= ? AND start < ? GROUP BY {by}",
        (part.since_s, part.until_s),
    )
