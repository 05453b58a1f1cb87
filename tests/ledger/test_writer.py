"""The ledger on a failing disk: full, read-only, damaged, unclear. The agent continues and reports it."""

import contextlib
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from descriptors import open_descriptors
from gpucommons.ledger.backup import backup_of, backup_time
from gpucommons.ledger.errors import LedgerError
from gpucommons.ledger.integrate import NOT_WRITTEN, NS, Backlog, Batch, Moment
from gpucommons.ledger.query import read_totals
from gpucommons.ledger.store import Store
from gpucommons.ledger.writer import LedgerWriter
from gpucommons.model.accounts import OwnerKey
from gpucommons.model.allocations import Account
from ledger.builders import BOB, WALL_S, batch, moment
from waiting import until

KEY = OwnerKey("user", "alice", "")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@contextmanager
def running(path: Path, begun_s: float = 0, **options: object) -> Iterator[LedgerWriter]:
    writer = LedgerWriter(path, **options)  # type: ignore[arg-type]
    writer.start(moment(begun_s))
    try:
        yield writer
    finally:
        assert writer.close(5.0)


def held_s(writer: LedgerWriter) -> float:
    return (writer.totals or {})[KEY].amounts.held_ns / NS if KEY in (writer.totals or {}) else 0.0


def on_disk_s(path: Path) -> float:
    with sqlite3.connect(path) as connection:
        return float(connection.execute("SELECT ifnull(sum(held_ns), 0) FROM usage_day").fetchone()[0]) / NS


def totals_on_disk_s(path: Path) -> float:
    return read_totals(path)[KEY].amounts.held_ns / NS


def test_a_write_that_failed_after_it_reached_the_disk_counts_once(path: Path) -> None:
    """The disk reports an error although it has written the batch."""

    class InDoubt(Store):
        lies = 3

        def write(self, number: int, batch: Batch, until: Moment) -> None:
            super().write(number, batch, until)
            if InDoubt.lies:
                InDoubt.lies -= 1
                raise LedgerError("io_error", "disk I/O error")

    with running(path, open_store=InDoubt) as writer:
        for number in range(1, 8):
            writer.submit(batch(10), moment(10 * number))
            until(lambda n=number: writer.state.failures.get("io_error", 0) >= min(n, 3), "tried")  # type: ignore[misc]
        until(lambda: writer.state.writing and writer.state.backlog_s == 0, "caught up")
        assert held_s(writer) == 70
    assert on_disk_s(path) == 70


def test_the_space_that_is_left_on_the_disk_is_known(path: Path) -> None:
    with running(path) as writer:
        writer.submit(batch(10), moment(10))
        left = until(lambda: writer.state.disk_free_bytes, "the space of the disk")
        disk = shutil.disk_usage(path)
        assert abs(left - disk.free) < disk.total / 20


def test_a_disk_that_hangs_does_not_block_the_agent(path: Path) -> None:
    hung, release = threading.Event(), threading.Event()

    class Hung(Store):
        def write(self, number: int, batch: Batch, until: Moment) -> None:
            hung.set()
            release.wait(10)
            super().write(number, batch, until)

    with running(path, open_store=Hung) as writer:
        writer.submit(batch(10), moment(10))
        assert hung.wait(5)
        for number in range(2, 30):
            writer.submit(batch(10), moment(10 * number))
        release.set()
        until(lambda: held_s(writer) == 290, "all is written in the end")


def test_a_disk_that_never_answers_does_not_block_the_stop(path: Path) -> None:
    class Dead(Store):
        def write(self, number: int, batch: Batch, until: Moment) -> None:
            threading.Event().wait(60)

    writer = LedgerWriter(path, open_store=Dead)
    writer.start(moment(0))
    writer.submit(batch(10), moment(10))
    assert not writer.close(0.05), "and it says that the last flush was not written"


def test_a_damaged_file_is_renamed_and_a_new_ledger_created(path: Path) -> None:
    path.write_bytes(b"\x00garbage" * 1000)
    with running(path) as writer:
        writer.submit(batch(10), moment(10))
        until(lambda: held_s(writer) == 10, "written to a new file")
        assert writer.state.failures == {"corrupt": 1}
    (aside,) = path.parent.glob("ledger.sqlite.corrupt-*")
    assert aside.read_bytes() == b"\x00garbage" * 1000
    assert on_disk_s(path) == 10


def test_a_schema_that_is_not_text_is_set_aside(path: Path) -> None:
    """The sqlite3 module raises UnicodeDecodeError for it, which is not an sqlite3.Error."""
    with running(path) as writer:
        writer.submit(batch(10), moment(10))
        until(lambda: held_s(writer) == 10, "written")
    content = path.read_bytes()
    assert b"CREATE TABLE gaps" in content
    path.write_bytes(content.replace(b"CREATE TABLE gaps", b"CREA\xbcE TABLE gaps"))
    with running(path) as writer:
        writer.submit(batch(10), moment(10))
        until(lambda: writer.state.failures == {"corrupt": 1} and writer.state.backlog_s == 0, "written to a new file")
    assert list(path.parent.glob("ledger.sqlite.corrupt-*"))


def test_damage_while_it_runs_keeps_the_counters(path: Path) -> None:
    with running(path) as writer:
        for number in range(1, 40):
            writer.submit(batch(10, Account("user", f"user{number}")), moment(10 * number))
        writer.submit(batch(10), moment(500))
        until(lambda: held_s(writer) == 10 and writer.state.backlog_s == 0, "written")
        writer.submit(batch(10), moment(520))
        until(lambda: held_s(writer) == 20, "written")
        with sqlite3.connect(path) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        content = path.read_bytes()
        with path.open("r+b") as file:
            file.write(content[:100] + b"\xa5" * (len(content) - 100))
        writer.submit(batch(10), moment(540))
        until(lambda: held_s(writer) == 30 and writer.state.backlog_s == 0, "written to a new file")
    assert list(path.parent.glob("ledger.sqlite.corrupt-*"))
    with running(path) as again:
        until(lambda: held_s(again) == 30, "the new file knows the old counters")


def test_the_backup_takes_the_place_of_a_damaged_file_and_this_is_logged_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(path) as writer:
        writer.submit(batch(10), moment(500))
        until(lambda: held_s(writer) == 10 and writer.state.backlog_s == 0, "written, and backed up")
        writer.submit(batch(10), moment(520))
        until(lambda: held_s(writer) == 20 and writer.state.backlog_s == 0, "written after the backup")
    destroy(path)
    with running(path, begun_s=600) as writer:
        for number in range(62, 65):
            writer.submit(batch(10), moment(10 * number))
        until(lambda: held_s(writer) >= 30 and writer.state.backlog_s == 0, "continued")
        assert writer.state.gap_ns == {"restored": 100 * NS}, "from the backup to the start"
    assert on_disk_s(path) == 40, "10 s before the backup, 30 s now"
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert re.search(r"damaged .* renamed to .*corrupt-\S+; restored from the backup of \d{4}-\d\d-\d\d", line), line


def test_counters_do_not_decrease_where_the_damaged_file_still_has_them(path: Path) -> None:
    with running(path) as writer:
        writer.submit(batch(10), moment(500))
        until(lambda: held_s(writer) == 10 and writer.state.backlog_s == 0, "written, and backed up")
        writer.submit(batch(10), moment(520))
        until(lambda: held_s(writer) == 20 and writer.state.backlog_s == 0, "written after the backup")
    with sqlite3.connect(path) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'gaps'").fetchone()
    content = bytearray(path.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    with running(path, begun_s=600) as writer:
        until(lambda: bool(writer.state.failures), "found")
        until(lambda: held_s(writer) == 20, "the counter goes on")
        assert writer.state.failures == {"corrupt": 1}


def test_damage_while_it_runs_has_the_time_since_the_backup_as_a_gap(path: Path) -> None:
    with running(path) as writer:
        for number in range(1, 4):
            writer.submit(batch(10), moment(100 * number))
            writer.wait_written(5.0)
        assert held_s(writer) == 30
        with sqlite3.connect(path) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with path.open("r+b") as file:
            file.write(b"\xa5" * path.stat().st_size)
        writer.submit(batch(10), moment(400))
        until(lambda: held_s(writer) == 40 and writer.state.backlog_s == 0, "goes on with the backup")
        assert writer.state.gap_ns == {"restored": 200 * NS}
    assert on_disk_s(path) == 20, "that of before the backup, and the newest"
    assert totals_on_disk_s(path) == 40


def test_a_backup_is_made_once_a_day_also_over_restarts(path: Path) -> None:
    def run(*seconds: int) -> None:
        with running(path) as writer:
            for after_s in seconds:
                writer.submit(batch(10), moment(after_s))
                writer.wait_written(5.0)

    run(10, 20)
    assert backup_time(path) == moment(10).wall_s
    run(3600, 86_400)
    assert backup_time(path) == moment(10).wall_s
    run(86_409, 86_411, 100_000)
    assert backup_time(path) == moment(86_411).wall_s
    run(3600)
    assert backup_time(path) == moment(3600).wall_s, "the clock was set back"
    assert on_disk_s(backup_of(path)) == 80


def test_a_backup_that_cannot_be_made_does_not_stop_the_accounts(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backup_of(path).mkdir()
    os.utime(backup_of(path), (0, 0))
    with running(path) as writer:
        for number in range(1, 5):
            writer.submit(batch(10), moment(10 * number))
        until(lambda: held_s(writer) == 40, "written")
        assert writer.state.writing
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "no backup was made" in line


def destroy(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\xa5" * path.stat().st_size)


@pytest.mark.parametrize("suffixes", [("", "-wal", "-shm"), ("",), ("-wal",)])
def test_a_ledger_that_is_deleted_while_in_use_is_begun_again_at_the_next_flush(
    path: Path, suffixes: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with running(path) as writer:
        writer.submit(batch(10), moment(10))
        until(lambda: held_s(writer) == 10, "written")
        for suffix in suffixes:
            path.with_name(f"{path.name}{suffix}").unlink()
        writer.submit(batch(10), moment(20))
        until(lambda: held_s(writer) == 20 and writer.state.backlog_s == 0, "written")
        assert totals_on_disk_s(path) == 20
        assert writer.state.failures == {"replaced": 1}
        writer.submit(batch(10), moment(30))
        until(lambda: held_s(writer) == 30, "continued")
    assert writer.state.failures == {"replaced": 1}
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    with running(path) as again:
        until(lambda: held_s(again) == 30, "the new file has the counters")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.long
def test_a_ledger_that_is_replaced_while_in_use_is_used_and_no_counter_decreases(path: Path) -> None:
    with running(path) as writer:
        writer.submit(batch(10), moment(10))
        until(lambda: held_s(writer) == 10, "written")
    backup = path.with_name("backup")
    shutil.copyfile(path, backup)
    with running(path) as writer:
        writer.submit(batch(10), moment(20))
        until(lambda: held_s(writer) == 20, "written")
        backup.replace(path)
        writer.submit(batch(10), moment(30))
        until(lambda: held_s(writer) == 30 and writer.state.backlog_s == 0, "written")
    assert totals_on_disk_s(path) == 30
    assert on_disk_s(path) == 20, "the use of one flush was in the file that was replaced"


def test_a_directory_that_is_deleted_while_in_use(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ledger.sqlite"
    with running(path) as writer:
        writer.submit(batch(10), moment(10))
        until(lambda: held_s(writer) == 10, "written")
        shutil.rmtree(path.parent)
        writer.submit(batch(10), moment(20))
        until(lambda: held_s(writer) == 20 and writer.state.backlog_s == 0, "written")
        assert totals_on_disk_s(path) == 20


def test_files_are_readable_by_the_owner_and_the_group(path: Path) -> None:
    with running(path) as writer:
        writer.submit(batch(10), moment(10))
        until(lambda: held_s(writer) == 10, "written")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(
        [path.name, *(f"{path.name}{more}" for more in ("-wal", "-shm", ".lock", ".backup"))], 0o640
    )
    path.chmod(0o600)
    with running(path) as writer:
        writer.submit(batch(10), moment(20))
        until(lambda: held_s(writer) == 20, "written")
        assert stat.S_IMODE(path.with_name(f"{path.name}-wal").stat().st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "a stricter mode stays"


def test_only_the_last_hour_is_kept_and_the_rest_is_a_gap() -> None:
    backlog = Backlog(3600)
    for number in range(1, 721):
        backlog.add(batch(10, wall_s=WALL_S + 10 * number), moment(10 * number))
    assert 3590 <= backlog.seconds <= 3660
    assert backlog.lost_s + backlog.seconds == 7200
    gaps = [gap for entry in iter_entries(backlog) for gap in entry.gaps]
    assert {gap.reason for gap in gaps} == {NOT_WRITTEN}
    assert sum(gap.ns for gap in gaps) == backlog.lost_s * NS


def iter_entries(backlog: Backlog) -> Iterator[Batch]:
    while entry := backlog.first():
        yield entry.batch
        backlog.remove_written(entry)


def test_the_backlog_is_merged_by_the_minute_without_loss() -> None:
    backlog = Backlog(3600)
    for number in range(1, 13):
        backlog.add(batch(10), moment(10 * number))
        if number == 3:
            tried = backlog.first()
    batches = list(iter_entries(backlog))
    assert tried is not None
    assert tried.batch.seconds == 30
    assert len(batches) <= 4
    assert sum(amounts.held_ns for b in batches for amounts in b.usage.values()) == 120 * NS


def test_a_batch_that_was_dropped_during_its_write_takes_no_other_with_it() -> None:
    backlog = Backlog(3600)
    backlog.add(batch(10), moment(10))
    written = backlog.first()
    assert written is not None
    backlog.add(batch(10), moment(4000))
    assert backlog.lost_s == 10.0
    backlog.remove_written(written)
    assert backlog.seconds == 10.0
    last = backlog.first()
    assert last is not None
    backlog.remove_written(last)
    backlog.remove_written(last)
    assert backlog.first() is None


@contextmanager
def tmpfs(directory: Path, options: str) -> Iterator[Path]:
    directory.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 512)


def test_a_full_disk(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=512k") as disk:
        path, ballast = disk / "ledger.sqlite", disk / "ballast"
        with running(path) as writer:
            writer.submit(batch(10), moment(10))
            until(lambda: held_s(writer) == 10, "written")
            fill(ballast)
            number = 1
            while writer.state.writing:
                number += 1
                many = batch(10, Account("user", f"user{number}" * 50), WALL_S + 60 * number)
                writer.submit(batch(10).merge(many), moment(10 * number))
                until(lambda n=number: held_s(writer) == 10 * n or not writer.state.writing, "tried")  # type: ignore[misc]
            served_s = held_s(writer)
            assert writer.state.failures.get("full"), writer.state
            assert "full" in writer.state.detail
            writer.submit(batch(10), moment(10 * (number + 1)))
            until(lambda: writer.state.failures["full"] >= 2, "tried again")
            assert held_s(writer) == served_s, "what is not on the disk is not served"
            assert writer.state.backlog_s >= 10
            ballast.unlink()
            writer.submit(batch(10), moment(10 * (number + 2)))
            until(lambda: writer.state.writing, "writes again")
            assert held_s(writer) == 10 * (number + 2)
            assert writer.state.backlog_s == 0


def test_a_damaged_ledger_waits_for_room_to_be_restored(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=512k") as disk:
        path, ballast = disk / "ledger.sqlite", disk / "ballast"
        with running(path) as writer:
            writer.submit(batch(10), moment(10))
            until(lambda: held_s(writer) == 10, "written")
        with path.open("r+b") as file:
            file.write(b"\xa5" * 4096)
        fill(ballast)
        with running(path) as writer:
            until(lambda: writer.state.failures.get("full"), "there is no room")
            assert not list(disk.glob("*.corrupt-*"))
            ballast.unlink()
            writer.submit(batch(10), moment(20))
            until(lambda: held_s(writer) == 20, "restored and continued")
        assert list(disk.glob("*.corrupt-*"))
        assert on_disk_s(path) == 20


def test_a_read_only_directory(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=1m") as disk:
        path = disk / "ledger.sqlite"
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with running(path) as writer:
            until(lambda: bool(writer.state.failures), "tried")
            assert list(writer.state.failures) == ["read_only"]
            writer.submit(batch(10), moment(10))
            until(lambda: held_s(writer) == 10, "counted in memory")
            assert not writer.state.durable
            subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
            writer.submit(batch(10), moment(20))
            until(lambda: writer.state.durable, "on the disk now")
            assert held_s(writer) == 20
        assert on_disk_s(path) == 20


def test_a_read_only_ledger_keeps_its_counters(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=2m") as disk:
        path = disk / "ledger.sqlite"
        with running(path) as first:
            first.submit(batch(100), moment(10))
            until(lambda: held_s(first) == 100, "written")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with running(path) as writer:
            until(lambda: held_s(writer) == 100, "read")
            writer.submit(batch(10), moment(20))
            until(lambda: writer.state.backlog_s == 10, "waits")
            assert held_s(writer) == 100, "nothing that a restart would take back is served"
            assert (writer.state.writing, writer.state.durable) == (False, True)
            subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
            writer.submit(batch(10), moment(30))
            until(lambda: held_s(writer) == 120, "all of it is written")


def test_counters_that_ran_without_a_ledger_never_decrease_when_one_is_found(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    with running(taken / "ledger.sqlite", keep_in_memory_s=60.0) as writer:
        for number in range(1, 101):
            writer.submit(batch(10), moment(10 * number))
        until(lambda: held_s(writer) == 1000, "counted in memory")
        taken.unlink()
        writer.submit(batch(10), moment(1010))
        until(lambda: writer.state.durable, "there is a ledger now")
        assert held_s(writer) == 1000, "the file has but the last minute"
        assert writer.state.lost_s >= 900
    assert on_disk_s(taken / "ledger.sqlite") < 150


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with running(tmp_path / "taken" / "ledger.sqlite") as writer:
        until(lambda: writer.state.failures.get("cannot_open", 0) > 0, "tried")
        writer.submit(batch(10), moment(10))
        until(lambda: held_s(writer) == 10, "counted in memory")


def test_a_clock_that_jumps_ahead_deletes_nothing(path: Path) -> None:
    with running(path) as writer:
        writer.submit(batch(10), moment(10))
        until(lambda: held_s(writer) == 10, "written")
        ten_years_on = WALL_S + 3650 * 86400
        for after_s in (3700, 7400):
            writer.submit(batch(10, BOB, ten_years_on), moment(after_s, ten_years_on + after_s))
            until(lambda at=after_s: writer.state.last_flush_wall_s == ten_years_on + at, "written")  # type: ignore[misc]
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(DISTINCT account) FROM usage_minute").fetchone()[0] == 2


def test_no_thread_or_descriptor_is_left_behind(path: Path) -> None:
    def open_files() -> list[str]:
        return [target for _, target in open_descriptors() if target.startswith(str(path))]

    def threads() -> set[threading.Thread]:
        return set(threading.enumerate())

    before = threads()
    for _ in range(5):
        with running(path) as writer:
            writer.submit(batch(10), moment(10))
            until(open_files, "the ledger is open")
            assert len(threads() - before) == 1
    assert (open_files(), threads() - before) == ([], set())
