"""The ledger file: layers that agree, writes that count once, migrations, retention and damage."""

import contextlib
import random
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from gpucommons.ledger.errors import LedgerCorrupt, LedgerError, set_aside
from gpucommons.ledger.integrate import NS, Gap
from gpucommons.ledger.query import read_period, read_totals
from gpucommons.ledger.schema import DAY_S, MIGRATIONS, Retention, migrate
from gpucommons.ledger.store import RESTART, Store
from gpucommons.model.accounts import OwnerKey
from gpucommons.model.allocations import Account, Slot
from ledger.builders import ALICE, BOB, WALL_S, batch, moment

KEY = OwnerKey("user", "alice", "")


def opened(path: Path, run: str = "run", boot_id: str = "boot") -> Store:
    return Store(path, run, boot_id)


def scalar(path: Path, question: str) -> object:
    with sqlite3.connect(path) as connection:
        return connection.execute(question).fetchone()[0]


def test_a_batch_is_in_every_layer_and_in_the_totals(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "ledger.sqlite"
    store = opened(path)
    store.begin(moment(0))
    store.write(1, batch(10), moment(10))
    store.write(2, batch(7), moment(17))
    for table in ("usage_minute", "usage_hour", "usage_day", "totals"):
        assert scalar(path, f"SELECT sum(held_ns) FROM {table}") == 17 * NS
        assert scalar(path, f"SELECT count(*) FROM {table}") == 1
    assert store.totals()[KEY].amounts.energy_uj == 17 * 300_000_000


def test_counters_that_are_copied_never_decrease(tmp_path: Path) -> None:
    """A file that was restored may have counted further, or less far, than the one it replaces."""
    store = opened(tmp_path / "ledger.sqlite")
    store.begin(moment(0))
    store.write(1, batch(10), moment(10))
    known = store.totals()[KEY]
    less = known._replace(amounts=known.amounts._replace(held_ns=3 * NS, energy_uj=10**15), last_wall_s=1.0)
    store.seed_totals({KEY: less})
    after = store.totals()[KEY]
    assert (after.amounts.held_ns, after.amounts.energy_uj) == (10 * NS, 10**15)
    assert after.last_wall_s == known.last_wall_s


def test_pruning_keeps_the_counters_of_users(tmp_path: Path) -> None:
    store = opened(tmp_path / "ledger.sqlite")
    store.begin(moment(0))
    pod = Account("pod", "train", namespace="lab", user="alice")
    store.write(1, batch(10), moment(10))
    store.write(2, batch(10, pod), moment(20))
    before = store.totals()
    store.prune(Retention(), WALL_S + 4000 * DAY_S)
    after = store.totals()
    assert after[KEY] == before[KEY], "users come back, and their counters continue"
    assert {key.kind for key in before} - {key.kind for key in after} == {"pod"}


def test_a_period_has_the_gaps_of_its_first_hour(tmp_path: Path) -> None:
    """Gaps are kept by the hour: one that began in the hour of the start may lie in the period."""
    path = tmp_path / "ledger.sqlite"
    hour_s = int(WALL_S) // 3600 * 3600
    store = opened(path)
    store.begin(moment(0))
    gaps = tuple(Gap(start_s, "GPU-0", "unread", 60 * NS) for start_s in (hour_s - 3600, hour_s, hour_s + 3600))
    store.write(1, batch(10)._replace(gaps=gaps), moment(10))
    store.close()
    found = read_period(path, hour_s + 1800, hour_s + 3600).gaps
    assert [gap.wall_s for gap in found if gap.reason == "unread"] == [hour_s]


def test_a_batch_that_is_tried_twice_counts_once(tmp_path: Path) -> None:
    store = opened(tmp_path / "ledger.sqlite")
    store.begin(moment(0))
    for _ in range(3):
        store.write(1, batch(10), moment(10))
    store.close()
    again = opened(tmp_path / "ledger.sqlite")
    again.begin(moment(0))
    again.write(1, batch(10), moment(10))
    assert again.totals()[KEY].amounts.held_ns == 10 * NS


def test_the_time_between_two_runs_is_a_gap_by_the_monotonic_clock(tmp_path: Path) -> None:
    first = opened(tmp_path / "ledger.sqlite", "one")
    first.begin(moment(0))
    first.write(1, batch(10), moment(10))
    first.close()
    second = opened(tmp_path / "ledger.sqlite", "two")
    # The wall clock was set back by a year meanwhile: it has no say.
    second.begin(moment(70, wall_s=WALL_S - 365 * DAY_S))
    assert second.gap_ns() == {RESTART: 60 * NS}


@pytest.mark.parametrize("boot", ["another boot", "boot"])
def test_the_time_between_two_boots_is_a_gap_by_the_wall_clock(tmp_path: Path, boot: str) -> None:
    """In a time namespace, the monotonic clock may restart within one boot."""
    first = opened(tmp_path / "ledger.sqlite", "one", "boot")
    first.begin(moment(0))
    first.close()
    second = opened(tmp_path / "ledger.sqlite", "two", boot)
    second.begin(moment(-990, wall_s=WALL_S + 300))
    assert second.gap_ns() == {RESTART: 300 * NS}


def test_gaps_of_one_hour_are_one_row(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    store = opened(path)
    store.begin(moment(0))
    for number in range(1, 6):
        gaps = (Gap(int(WALL_S) + number, "GPU-0", "unread", NS),)
        store.write(number, batch(1).merge(type(batch())({}, {}, gaps)), moment(number))
    assert store.gap_ns() == {"unread": 5 * NS}
    assert scalar(path, "SELECT count(*) FROM gaps") == 1


def test_a_slot_of_unknown_size_is_one_slot(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    unknown = Slot("MIG-9", "GPU-9", "9.0", None, 1)
    for run in ("one", "two"):
        store = opened(path, run)
        store.begin(moment(0))
        store.write(1, batch(slot=unknown), moment(10))
        store.close()
    assert scalar(path, "SELECT count(*) FROM slots") == 1


def test_a_second_agent_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path / "ledger.sqlite")
    with pytest.raises(LedgerError) as refused:
        opened(tmp_path / "ledger.sqlite", "other")
    assert refused.value.reason == "in_use"
    store.close()
    opened(tmp_path / "ledger.sqlite", "other").close()


def test_old_rows_are_pruned_and_coarser_layers_stay(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    store = opened(path)
    store.begin(moment(0))
    pod = Account("pod", "train-0", "research", pod="train-0")
    store.write(1, batch(10, pod, WALL_S - 500 * DAY_S), moment(1, WALL_S - 500 * DAY_S))
    store.write(2, batch(10, ALICE, WALL_S - 10 * DAY_S), moment(2))
    store.write(3, batch(10, BOB, WALL_S), moment(3))
    store.prune(Retention(minutes_d=2, hours_d=400, days_d=450), WALL_S)
    assert scalar(path, "SELECT count(*) FROM usage_minute") == 1
    assert scalar(path, "SELECT count(*) FROM usage_hour") == 2
    assert scalar(path, "SELECT count(*) FROM usage_day") == 2
    assert scalar(path, "SELECT count(*) FROM accounts") == 2, "nothing refers to the pod any more"
    assert scalar(path, "SELECT count(*) FROM totals") == 2
    store.write(4, batch(10, pod, WALL_S), moment(4))
    assert (
        scalar(path, "SELECT pod FROM accounts JOIN usage_minute ON number = account ORDER BY number DESC") == "train-0"
    )


def test_a_file_that_is_not_a_database_is_reported_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"not a database, but some words" * 100)
    with pytest.raises(LedgerCorrupt):
        opened(path)
    assert path.read_bytes() == b"not a database, but some words" * 100


def test_damage_in_the_middle_is_found(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    store = opened(path)
    store.begin(moment(0))
    for number in range(1, 200):
        store.write(number, batch(1, Account("user", f"user{number}")), moment(number))
    store.close()
    content = bytearray(path.read_bytes())
    content[4096:-4096] = b"\xa5" * (len(content) - 8192)
    path.write_bytes(content)
    with pytest.raises(LedgerCorrupt):
        opened(path)
    assert path.read_bytes() == content


def test_renaming_a_damaged_file_never_overwrites_another(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    names = set()
    for number in range(3):
        path.write_text(f"damaged {number}")
        path.with_name("ledger.sqlite-wal").write_text(f"log {number}")
        names.add(set_aside(path, 0.0).name)
    assert names == {f"ledger.sqlite.corrupt-19700101T000000Z{suffix}" for suffix in ("", "-2", "-3")}
    kept = {file.read_text() for file in tmp_path.iterdir()}
    assert kept == {f"{what} {number}" for what in ("damaged", "log") for number in range(3)}


def test_a_damaged_file_is_read_by_no_one_else_and_a_link_next_to_it_is_not_followed(tmp_path: Path) -> None:
    path, victim = tmp_path / "ledger.sqlite", tmp_path / "victim"
    for file in (path, victim):
        file.touch()
        file.chmod(0o644)
    path.with_name("ledger.sqlite-wal").symlink_to(victim)
    aside = set_aside(path, 0.0)
    assert (aside.stat().st_mode & 0o777, victim.stat().st_mode & 0o777) == (0o640, 0o644)
    assert aside.with_name(f"{aside.name}-wal").is_symlink()


def test_another_programs_database_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    with pytest.raises(LedgerError) as refused:
        opened(path)
    assert refused.value.reason == "foreign"
    assert scalar(path, "SELECT count(*) FROM sqlite_master") == 1


def test_a_newer_programs_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    opened(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(LedgerError, match="upgrade") as refused:
        opened(path)
    assert refused.value.reason == "newer"


@pytest.mark.parametrize("header", ["application_id = 17", "user_version = 70000", "user_version = 0"])
def test_a_ledger_with_a_damaged_header_is_corrupt_not_another_programs(tmp_path: Path, header: str) -> None:
    """Another program's file is left alone; a damaged ledger is set aside."""
    path = tmp_path / "ledger.sqlite"
    opened(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA {header}")
    with pytest.raises(LedgerCorrupt):
        opened(path)


def test_an_older_ledger_is_migrated_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    store = opened(path)
    store.begin(moment(0))
    store.write(1, batch(10), moment(10))
    store.close()
    later = [*MIGRATIONS, ("ALTER TABLE totals ADD COLUMN note TEXT NOT NULL DEFAULT ''",)]
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, later)
    migrate(connection, later)
    assert connection.execute("PRAGMA user_version").fetchone()[0] == len(later)
    assert connection.execute("SELECT held_ns, note FROM totals").fetchone() == (10 * NS, "")


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    opened(path).close()
    connection = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, [*MIGRATIONS, ("ALTER TABLE totals ADD COLUMN note TEXT", "NONSENSE")])
    assert connection.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
    assert "note" not in [column[1] for column in connection.execute("PRAGMA table_info(totals)")]


def damaged_ledger(content: bytes, seed: int) -> bytes:
    dice = random.Random(seed)
    damaged = bytearray(content)
    for _ in range(dice.choice((1, 1, 4, 16, 64))):
        at, length = dice.randrange(len(damaged)), dice.choice((1, 1, 8, 64))
        damaged[at : at + length] = dice.randbytes(len(damaged[at : at + length]))
    return bytes(damaged)


def test_every_damaged_file_opens_or_is_corrupt(tmp_path: Path) -> None:
    """A LedgerCorrupt is set aside by the writer. Any other error would be retried for ever."""
    whole = tmp_path / "whole.sqlite"
    store = Store(whole, "run", "boot")
    store.begin(moment(0))
    for number in range(1, 40):
        store.write(number, batch(10, Account("user", f"user{number}")), moment(10 * number))
    store.close()
    content = whole.read_bytes()
    outcomes: Counter[str] = Counter()
    for seed in range(300):
        path = tmp_path / f"{seed}.sqlite"
        path.write_bytes(damaged_ledger(content, seed))
        with contextlib.suppress(LedgerError):
            read_totals(path)
        with contextlib.suppress(LedgerError):
            read_period(path, 0, 10**10)
        damaged = None
        try:
            damaged = Store(path, "next", "boot")
            damaged.totals()
            damaged.gap_ns()
            damaged.begin(moment(500))
            damaged.write(1, batch(10), moment(510))
            outcomes["written"] += 1
        except LedgerCorrupt:
            outcomes["corrupt"] += 1
        finally:
            if damaged is not None:
                damaged.close()
            for file in tmp_path.glob(f"{seed}.sqlite*"):
                file.unlink()
    assert outcomes["written"] > 50
    assert outcomes["corrupt"] > 50
