"""Reads a period or a job from the ledger file, also while an agent writes it, and sums it up. Never writes."""

import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from gpucommons.base.files import explain_refusal
from gpucommons.base.periods import last_months, month
from gpucommons.base.text import qualified_name
from gpucommons.ledger.errors import SQLITE_ERRORS, LedgerError, from_sqlite
from gpucommons.ledger.integrate import Gap
from gpucommons.ledger.schema import APPLICATION_ID, DAY, DAY_S, HOUR, LAYERS, MIGRATIONS, Piece, pieces
from gpucommons.model.accounts import (
    NO_CHARGE,
    NO_PRICES,
    PERIODS,
    AccountsReading,
    Amounts,
    Billed,
    Charge,
    HeldKey,
    JobFigures,
    JobUsage,
    MonthKey,
    OwnerKey,
    PeriodAccounts,
    Prices,
    SlotTime,
    sum_amounts,
)
from gpucommons.model.allocations import UNATTRIBUTED, Account, Slot
from gpucommons.model.cost import charge_of
from gpucommons.model.names import account_name
from gpucommons.model.words import By

ABSENT = "absent"
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
    return run_query(path, totals_in)


def read_period(path: Path, since_s: int, until_s: int, by_day: bool = False) -> PeriodUsage:
    """Raises LedgerError of one line if the ledger cannot be read."""
    return run_query(path, lambda connection: _read(connection, since_s, until_s, by_day))


def run_query(path: Path, query: Callable[[sqlite3.Connection], _Result]) -> _Result:
    """Raises LedgerError of one line if the ledger cannot be read."""
    if reason := explain_refusal(path):
        raise LedgerError("cannot_open", reason)
    if not path.exists():
        raise LedgerError(ABSENT, f"{path}: no ledger; 'gpucommons up' writes it ([ledger] file)")
    try:
        with closing(_connect(path)) as connection:
            return query(connection)
    except SQLITE_ERRORS as error:
        ours = from_sqlite(error)
        raise LedgerError(ours.reason, f"{path}: {ours}") from error


def _connect(path: Path) -> sqlite3.Connection:
    """Through the WAL file of a writer; without a writer, immutable, so that no WAL file of ours is created."""
    if Path(f"{path}-wal").exists():
        try:
            return _connect_checked(path, "mode=ro")
        except sqlite3.OperationalError:
            # The WAL file of a killed writer, in a directory that is not writable: read the main file only.
            pass
    return _connect_checked(path, "mode=ro&immutable=1")


def _connect_checked(path: Path, options: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?{options}"
    connection = sqlite3.connect(uri, uri=True, timeout=5.0, isolation_level=None)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            if version == 0 and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                # The file is made first, then its tables.
                raise LedgerError(ABSENT, f"{path}: the ledger is being created; try again in a moment")
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
        _name_rows(usage, slots, accounts),
        {slots(slot): time for slot, time in times.items() if slots(slot) is not _LOST_SLOT},
        tuple(Gap(*row) for row in gaps),
        models_in(connection),
        {day: _name_rows(table, slots, accounts) for day, table in days.items()},
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


def _name_rows(
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


# The accounts: what the ledger billed in a period, by user, group, namespace, pod, job, day or GPU. Sums are exact.

NONE = "(none)"
_DAYS = {"7d": 7, "30d": 30}
# The last month is still published for these days, so that a Prometheus that was down on the first has its end.
_LAST_MONTH_DAYS = 7


def accounts_of(period: PeriodUsage, by: By, user: str | None = None, prices: Prices = NO_PRICES) -> PeriodAccounts:
    """One row for each `by`. With `user`, only what is billed to that name: then no slot has free time.

    By day, the period must have been read by day.
    """
    amounts_of: dict[str, list[Amounts]] = {}
    charges: dict[str, Charge] = {}
    for name, slot, account, amounts in _name_amounts(period, by):
        if user is None or account_name(account) == user:
            amounts_of.setdefault(name, []).append(amounts)
            if prices.per_gpu_hour:
                charge = charge_of(slot, period.models.get(slot.gpu_uuid, ""), amounts, prices)
                charges[name] = charges.get(name, NO_CHARGE).plus(charge)
    times: dict[str, SlotTime] | None = None
    if by is By.GPU and user is None:
        times = {}
        for slot, time in period.slot_time.items():
            name = _slot_row(slot)
            times[name] = times.get(name, SlotTime()).plus(time)
            amounts_of.setdefault(name, [])
    rows = {name: sum_amounts(amounts) if amounts else Amounts() for name, amounts in amounts_of.items()}
    gaps: dict[str, int] = {}
    for gap in period.gaps:
        gaps[gap.reason] = gaps.get(gap.reason, 0) + gap.ns
    return PeriodAccounts(by, period.since_s, period.until_s, rows, times, gaps, charges, prices)


def read_accounts(path: Path, now_wall_s: float, prices: Prices = NO_PRICES) -> AccountsReading:
    """Empty while there is no ledger file, or an empty one; raises LedgerError where it cannot be read."""
    try:
        return _read_accounts(path, now_wall_s, prices)
    except LedgerError as error:
        if error.reason == ABSENT:
            return AccountsReading()
        raise


def _read_accounts(path: Path, now_wall_s: float, prices: Prices) -> AccountsReading:
    midnight_s = datetime.fromtimestamp(now_wall_s).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    by_period, today = {}, {}
    for name in PERIODS:
        since_s = int(midnight_s if name == "today" else now_wall_s - _DAYS[name] * DAY_S)
        period = read_period(path, since_s, math.ceil(now_wall_s))
        by_period[name] = accounts_of(period, By.USER, None, prices)
        if name == "today":
            today = _sum_held(period)
    return AccountsReading(by_period, today, _months(path, now_wall_s, prices), prices)


def _months(path: Path, now_wall_s: float, prices: Prices) -> dict[MonthKey, Billed]:
    """This month, and in its first days the last one, by user and group."""
    months: dict[MonthKey, Billed] = {}
    (this,), (last,) = (last_months(1, at_s) for at_s in (now_wall_s, now_wall_s - _LAST_MONTH_DAYS * DAY_S))
    for name in {this, last}:
        period = read_period(path, *month(name, now_wall_s, None))
        for (slot, account), amounts in period.usage.items():
            key = MonthKey(name, account_name(account), account.group)
            charge = charge_of(slot, period.models.get(slot.gpu_uuid, ""), amounts, prices)
            months[key] = months.get(key, Billed()).plus(Billed(amounts, charge))
    return months


def _sum_held(period: PeriodUsage) -> dict[HeldKey, int]:
    held: dict[HeldKey, int] = {}
    for (slot, account), amounts in period.usage.items():
        key = HeldKey(OwnerKey(account.kind, account.owner, account.namespace), account_name(account), slot.gpu_uuid)
        held[key] = held.get(key, 0) + amounts.held_ns
    return held


def _name_amounts(period: PeriodUsage, by: By) -> Iterator[tuple[str, Slot, Account, Amounts]]:
    """What was billed, with the name of its row."""
    if by is not By.DAY:
        for (slot, account), amounts in period.usage.items():
            yield _row_name(by, slot, account), slot, account, amounts
        return
    for day_s, usage in period.days.items():
        name = datetime.fromtimestamp(day_s, UTC).strftime("%Y-%m-%d")
        for (slot, account), amounts in usage.items():
            yield name, slot, account, amounts


def _row_name(by: By, slot: Slot, account: Account) -> str:
    match by:
        case By.USER:
            return account_name(account)
        case By.POD:
            return qualified_name(account.namespace, account.pod) or NONE
        case By.GPU:
            return _slot_row(slot)
        case _:
            return getattr(account, by.value) or NONE


def _slot_row(slot: Slot) -> str:
    """The slot's name and UUID: after a change of the MIG layout, another device has the same name."""
    return f"{slot.name} {slot.uuid}"


# Reads one job from the ledger file: all that was billed under its name. Never writes.

_FIGURES = ", ".join(JobFigures._fields)
_END = 1 << 40


def read_job(path: Path, name: str, user: str | None = None) -> JobUsage | None:
    """A Slurm job by its id, a lease as lease-ID, a pod as NAMESPACE/POD or by its name; None where it has no row.

    With `user`, only what is billed to that name. Raises LedgerError of one line if the ledger cannot be read.
    """
    return run_query(path, lambda connection: _read_job(connection, name, user))


def _read_job(connection: sqlite3.Connection, name: str, user: str | None) -> JobUsage | None:
    connection.execute("BEGIN")
    namespace, _, pod = name.rpartition("/")
    if not pod:
        return None
    accounts = _accounts(connection, "job = ?", (name,)) or _accounts(
        connection, "pod = ? AND (namespace = ? OR ? = '')", (pod, namespace, namespace)
    )
    chosen = {number: row for number, row in accounts.items() if user in (None, account_name(row[0]))}
    if not chosen:
        return None
    recorded = [figures for _, figures in chosen.values() if figures is not None]
    figures = reduce(JobFigures.merge, recorded) if len(recorded) == len(chosen) else None
    usage = _usage(connection, {number: account for number, (account, _) in chosen.items()}, figures)
    return JobUsage(name, usage, figures, models_in(connection)) if usage else None


def _accounts(
    connection: sqlite3.Connection, where: str, values: tuple[str, ...]
) -> dict[int, tuple[Account, JobFigures | None]]:
    width = len(Account._fields)
    figures = f", {_FIGURES}" if has_jobs(connection) else ""
    rows = connection.execute(f"SELECT number, {ACCOUNT_COLUMNS}{figures} FROM accounts WHERE {where}", values)
    return {
        number: (Account(*rest[:width]), JobFigures(*rest[width:]) if figures and rest[width] is not None else None)
        for number, *rest in rows
    }


def _usage(
    connection: sqlite3.Connection, accounts: dict[int, Account], figures: JobFigures | None
) -> dict[tuple[Slot, Account], Amounts]:
    """From the days, which are kept longest: those of the job, where they are known."""
    since_s, until_s = (0, _END) if figures is None else (DAY.start_of(figures.first_s // 60), figures.last_s)
    slots = slots_in(connection)
    marks = ", ".join("?" * len(accounts))
    usage: dict[tuple[Slot, Account], Amounts] = {}
    for slot, account, *sums in connection.execute(
        f"SELECT slot, account, {SUM_COLUMNS} FROM usage_{DAY.name} WHERE start >= ? AND start <= ? "
        f"AND account IN ({marks}) GROUP BY slot, account",
        (since_s, until_s, *accounts),
    ):
        key = slots(slot), accounts[account]
        usage[key] = usage.get(key, Amounts()).plus(Amounts(*sums))
    return usage
