"""Reads one job from the ledger file: all that was billed under its name. Never writes."""

import sqlite3
from functools import reduce
from pathlib import Path

from gpucommons.ledger.query import ACCOUNT_COLUMNS, SUM_COLUMNS, has_jobs, models_in, queried, slots_in
from gpucommons.ledger.rollups import DAY
from gpucommons.model.accounts import Amounts, JobFigures, JobUsage
from gpucommons.model.allocations import Account, Slot
from gpucommons.rules.identities import account_name

_FIGURES = ", ".join(JobFigures._fields)
_END = 1 << 40


def read_job(path: Path, name: str, user: str | None = None) -> JobUsage | None:
    """A Slurm job by its id, a lease as lease-ID, a pod as NAMESPACE/POD or by its name; None where it has no row.

    With `user`, only what is billed to that name. Raises LedgerError of one line if the ledger cannot be read.
    """
    return queried(path, lambda connection: _read(connection, name, user))


def _read(connection: sqlite3.Connection, name: str, user: str | None) -> JobUsage | None:
    connection.execute("BEGIN")
    namespace, _, pod = name.rpartition("/")
    if not pod:
        return None
    found = _accounts(connection, "job = ?", (name,)) or _accounts(
        connection, "pod = ? AND (namespace = ? OR ? = '')", (pod, namespace, namespace)
    )
    chosen = {number: row for number, row in found.items() if user in (None, account_name(row[0]))}
    if not chosen:
        return None
    known = [figures for _, figures in chosen.values() if figures is not None]
    figures = reduce(JobFigures.merged, known) if len(known) == len(chosen) else None
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
