"""The tables of the ledger, the migrations from older files, and the layers of amounts (minute, hour, day)."""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from gpucommons.ledger.errors import LedgerCorrupt, LedgerError
from gpucommons.model.accounts import JobFigures

# The three layers to which each amount is added (minute, hour, day), and how long each is kept.
#
# All three are written in one transaction, so that they always agree, even if the clock jumps. A report reads days
# where possible, hours at their edges and minutes at the edges of those.

DAY_S = 86_400


class Layer(NamedTuple):
    name: str
    seconds: int

    def start_of(self, minute: int) -> int:
        """The bucket of a minute, named by its first second."""
        return minute * 60 // self.seconds * self.seconds


MINUTE, HOUR, DAY = Layer("minute", 60), Layer("hour", 3600), Layer("day", DAY_S)
LAYERS = (MINUTE, HOUR, DAY)


class Retention(NamedTuple):
    """How long each layer is kept, in days."""

    minutes_d: float = 2.0
    hours_d: float = 400.0
    days_d: float = 1830.0

    def cutoffs(self, now_wall_s: float) -> tuple[tuple[Layer, int], ...]:
        """For each layer, the first bucket that is kept."""
        kept = zip(LAYERS, self, strict=True)
        return tuple((layer, int((now_wall_s - days * DAY_S) // layer.seconds * layer.seconds)) for layer, days in kept)


class Piece(NamedTuple):
    """Part of a period, [since_s, until_s), to be read from one layer."""

    layer: Layer
    since_s: int
    until_s: int


def pieces(since_s: int, until_s: int, kept_since_s: dict[Layer, int]) -> list[Piece]:
    """Read a period from the coarsest layers that fit, each second once.

    `kept_since_s` is the first second that each layer still has. Where a finer layer was pruned, the edge is
    widened to the bucket of the next coarser layer, so that no usage is missing from every report.
    """
    return _cut(since_s, until_s, list(reversed(LAYERS)), kept_since_s)


def _cut(since_s: int, until_s: int, layers: list[Layer], kept_since_s: dict[Layer, int]) -> list[Piece]:
    if since_s >= until_s or not layers:
        return []
    layer, finer = layers[0], layers[1:]
    width = layer.seconds
    first, last = -(-since_s // width) * width, until_s // width * width
    if not finer or since_s < kept_since_s[finer[0]]:
        # The finer layer was pruned here: take the whole bucket.
        first = since_s // width * width
    if not finer or last < kept_since_s[finer[0]]:
        last = -(-until_s // width) * width
    if first >= last:
        return _cut(since_s, until_s, finer, kept_since_s)
    return [
        *_cut(since_s, min(first, until_s), finer, kept_since_s),
        Piece(layer, first, last),
        *_cut(max(last, since_s), until_s, finer, kept_since_s),
    ]


# The tables of the ledger, and the migrations from older files. Each migration is one transaction.

# "GPCL": distinguishes our file from another program's database.
APPLICATION_ID = 0x4750434C

_AMOUNTS = """
    held_ns INTEGER NOT NULL, active_ns INTEGER NOT NULL, idle_ns INTEGER NOT NULL,
    equivalent_ns INTEGER NOT NULL, sm_ns INTEGER NOT NULL,
    memory_kib_s INTEGER NOT NULL, energy_uj INTEGER NOT NULL
"""


def _layer(name: str) -> tuple[str, str]:
    """`start` is the bucket's first second in Unix time."""
    return (
        f"""CREATE TABLE usage_{name} (
            start INTEGER NOT NULL, slot INTEGER NOT NULL, account INTEGER NOT NULL, {_AMOUNTS},
            PRIMARY KEY (start, slot, account)) WITHOUT ROWID""",
        f"""CREATE TABLE time_{name} (
            start INTEGER NOT NULL, slot INTEGER NOT NULL,
            held_ns INTEGER NOT NULL, free_ns INTEGER NOT NULL, unknown_ns INTEGER NOT NULL,
            PRIMARY KEY (start, slot)) WITHOUT ROWID""",
    )


_FIRST = (
    """CREATE TABLE accounts (
        number INTEGER PRIMARY KEY, kind TEXT NOT NULL, owner TEXT NOT NULL, namespace TEXT NOT NULL, id TEXT NOT NULL,
        user TEXT NOT NULL, "group" TEXT NOT NULL, pod TEXT NOT NULL, job TEXT NOT NULL,
        UNIQUE (kind, owner, namespace, id, user, "group", pod, job))""",
    """CREATE TABLE slots (
        number INTEGER PRIMARY KEY, uuid TEXT NOT NULL, gpu_uuid TEXT NOT NULL, name TEXT NOT NULL,
        slices INTEGER, "of" INTEGER NOT NULL)""",
    # In SQLite each NULL is distinct: without ifnull, an unknown number of slices would insert a new slot each time.
    """CREATE UNIQUE INDEX slots_once ON slots (uuid, gpu_uuid, name, ifnull(slices, -1), "of")""",
    *_layer("minute"),
    *_layer("hour"),
    *_layer("day"),
    # The first second from which each layer is complete: older rows were pruned.
    "CREATE TABLE kept (layer TEXT PRIMARY KEY, since INTEGER NOT NULL) WITHOUT ROWID",
    # Hourly sums, so that a node that flaps all day does not grow the file.
    """CREATE TABLE gaps (
        start INTEGER NOT NULL, slot_uuid TEXT NOT NULL, reason TEXT NOT NULL, ns INTEGER NOT NULL,
        PRIMARY KEY (start, slot_uuid, reason)) WITHOUT ROWID""",
    f"""CREATE TABLE totals (
        kind TEXT NOT NULL, owner TEXT NOT NULL, namespace TEXT NOT NULL, last_wall_s REAL NOT NULL, {_AMOUNTS},
        PRIMARY KEY (kind, owner, namespace)) WITHOUT ROWID""",
    # One row for each start of the agent. With `last_batch`, a retried write counts once.
    """CREATE TABLE runs (
        id INTEGER PRIMARY KEY, token TEXT NOT NULL UNIQUE, boot_id TEXT NOT NULL, last_batch INTEGER NOT NULL,
        last_monotonic_ns INTEGER NOT NULL, last_wall_s REAL NOT NULL)""",
)

# A larger number is damage, not a later release.
_LAST_VERSION = 100
_OUR_TABLES = {"accounts", "slots", "totals", "runs", "kept", "gaps"}

# All of them are NULL in rows of older releases.
_SECOND = (
    "ALTER TABLE slots ADD COLUMN model TEXT",
    *(f"ALTER TABLE accounts ADD COLUMN {name} INTEGER" for name in JobFigures._fields),
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST, _SECOND)


def migrate(connection: sqlite3.Connection, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> None:
    """Migrate the file to the newest schema. Refuses a file of another program or of a newer version."""
    version = _number(connection, "user_version")
    if _number(connection, "application_id") != APPLICATION_ID and _tables(connection):
        if _tables(connection) >= _OUR_TABLES:
            raise LedgerCorrupt("its header does not have the mark of a ledger")
        raise LedgerError("foreign", "the file is another program's database: set another file with [ledger] file")
    if version > _LAST_VERSION or (version == 0 and _tables(connection)):
        raise LedgerCorrupt(f"there is no schema version {version}")
    if version > len(migrations):
        raise LedgerError(
            "newer",
            f"schema version {version} is newer than {len(migrations)}, which this program supports: upgrade it",
        )
    for number, statements in enumerate(migrations[version:], version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])
