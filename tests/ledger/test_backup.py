"""The daily backup of a ledger, and that it takes the place of a damaged one."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpucommons.ledger.backup import back_up, backup_of, backup_time, counters_of_both, replace_damaged
from gpucommons.ledger.errors import LedgerCorrupt, LedgerError
from gpucommons.ledger.integrate import NS
from gpucommons.ledger.query import Totals, accounts_of, read_period, read_totals
from gpucommons.ledger.store import Store
from gpucommons.model.accounts import Amounts, OwnerKey
from gpucommons.model.allocations import Account, Slot
from gpucommons.model.words import By
from ledger.builders import WALL_S, batch, moment
from ledger.damage import damaged_at_random
from waiting import until

USERS, SLOTS, BATCHES, EVERY_S = 37, 8, 1200, 420
LAST_S = int(WALL_S) + BATCHES * EVERY_S
USER_1 = OwnerKey("user", "user1", "")
MADE_S = WALL_S + 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six days of 37 users on 8 GPUs, one batch every 7 minutes."""
    path = tmp_path_factory.mktemp("whole") / "ledger.sqlite"
    write_days(path)
    return path


def write_days(path: Path) -> None:
    store = Store(path, "run", "boot")
    store.begin(moment(0))
    store._connection.execute("PRAGMA synchronous = OFF")
    for number in range(1, BATCHES):
        user, gpu, after_s = number % USERS, number % SLOTS, number * EVERY_S
        slot = Slot(f"GPU-{gpu}", f"GPU-{gpu}", str(gpu))
        store.write(number, batch(10, Account("user", f"user{user}"), WALL_S + after_s, slot), moment(after_s))
    store.close()


def held_ns(path: Path, since_s: int = 0, until_s: int = LAST_S + 86_400) -> int:
    return accounts_of(read_period(path, since_s, until_s), By.USER).total.held_ns


def is_corrupt(path: Path) -> bool:
    """Whether the writer would set it aside. Restores the file, which opening may change."""
    content = path.read_bytes()
    store = None
    try:
        store = Store(path, "next", "boot")
        store.totals()
        store.gap_ns()
    except LedgerError as error:
        # A damaged version number may be that of a later release, whose file is left alone.
        return isinstance(error, LedgerCorrupt)
    finally:
        if store is not None:
            store.close()
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        path.write_bytes(content)
    return False


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    """A ledger of six days with its backup."""
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(whole.read_bytes())
    back_up(path, MADE_S)
    return path


def test_whatever_happens_to_a_ledger_its_backup_has_all(whole: Path, path: Path) -> None:
    content, expected, damaged = whole.read_bytes(), held_ns(whole), 0
    for seed in range(40):
        path.write_bytes(damaged_at_random(content, seed))
        if not is_corrupt(path):
            continue
        damaged += 1
        before = path.read_bytes()
        aside, made_s = replace_damaged(path, 0.0)
        assert (aside.read_bytes(), made_s) == (before, MADE_S), "the damaged file is kept as it was"
        assert held_ns(path) == expected
        assert read_totals(path) == read_totals(whole)
        Store(path, "next", "boot").close()
    assert damaged > 20


def test_a_backup_is_of_the_moment_also_while_a_store_writes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    store = Store(path, "run", "boot")
    store.begin(moment(0))
    store.write(1, batch(10), moment(10))
    back_up(path, MADE_S)
    store.write(2, batch(10), moment(20))
    assert held_ns(backup_of(path)) == 10 * NS, "the write-ahead log is part of it"
    store.close()
    assert held_ns(path) == 20 * NS
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "ledger.sqlite",
        "ledger.sqlite.backup",
        "ledger.sqlite.lock",
    ]


def test_a_damaged_ledger_does_not_replace_its_backup(path: Path) -> None:
    before = backup_of(path).read_bytes()
    content = bytearray(path.read_bytes())
    content[20 * 4096 : 30 * 4096] = b"\xa5" * 10 * 4096
    path.write_bytes(content)
    with pytest.raises(LedgerCorrupt):
        back_up(path, MADE_S + 86_400)
    assert backup_of(path).read_bytes() == before
    assert backup_time(path) == MADE_S


@pytest.mark.parametrize("is_damaged", [False, True])
def test_without_a_usable_backup_the_file_is_set_aside(path: Path, is_damaged: bool) -> None:
    if is_damaged:
        backup_of(path).write_bytes(b"some other words" * 1000)
    else:
        backup_of(path).unlink()
    path.write_bytes(b"some other words" * 1000)
    aside, made_s = replace_damaged(path, 0.0)
    assert made_s is None
    assert aside.read_bytes() == b"some other words" * 1000
    assert not path.exists()
    assert not list(path.parent.glob("*.restored*"))


def test_all_files_are_private(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(b"\xa5" * 8192)
    aside, _ = replace_damaged(path, 0.0)
    modes = [stat.S_IMODE(file.stat().st_mode) for file in (path, aside, backup_of(path))]
    assert modes == [0o640, 0o640, 0o640]


def test_a_kill_during_a_backup_leaves_the_one_before(path: Path) -> None:
    before = backup_of(path).read_bytes()
    lines = (
        "import sys",
        "from pathlib import Path",
        "from gpucommons.ledger.backup import back_up",
        "while True: back_up(Path(sys.argv[1]), 5.0)",
    )
    draft = Path(f"{path}.backup.new")
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", "\n".join(lines), str(path)])
        until(draft.exists, "a backup is being made")
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        assert backup_of(path).read_bytes() == before
    back_up(path, MADE_S)
    assert not draft.exists()
    assert not os.path.exists(f"{draft}-wal")


def test_counters_of_the_damaged_file_count_where_they_are_possible() -> None:
    day = Totals(Amounts(held_ns=10 * NS), 0.0)
    later, absurd, less = (Totals(Amounts(held_ns=ns), 9.0) for ns in (15 * NS, 1 << 60, 5 * NS))
    assert counters_of_both({USER_1: day}, {USER_1: later}, 3600) == {USER_1: later}
    assert counters_of_both({}, {USER_1: later}, 3600) == {USER_1: later}
    assert counters_of_both({USER_1: day}, {USER_1: absurd}, 3600) == {USER_1: day}
    assert counters_of_both({USER_1: day}, {USER_1: less}, 3600) == {USER_1: day}
    assert counters_of_both({USER_1: day}, {}, 3600) == {USER_1: day}
