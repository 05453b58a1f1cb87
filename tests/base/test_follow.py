"""Following a log through any rotation: no line is lost, read twice, or read in part."""

import gzip
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucommons.base.files import FileFollower, Position


def polled(follower: FileFollower) -> list[bytes]:
    return [line for piece in follower.poll() for line in piece.lines]


class Log:
    """A log file and the two ways in which logrotate rotates it. Copies get distinct time stamps."""

    def __init__(self, directory: Path, wall: Callable[[], float] = time.time) -> None:
        self.path = directory / "events.jsonl"
        self.path.touch()
        self.written: list[bytes] = []
        self._rotations = 0
        self._wall = wall

    def write(self, *lines: bytes) -> None:
        self.written += lines
        with self.path.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))

    def _shift(self) -> Path:
        directory, name = self.path.parent, self.path.name
        for number in range(8, 0, -1):
            for suffix in ("", ".gz"):
                old = directory / f"{name}.{number}{suffix}"
                if old.exists():
                    old.rename(directory / f"{name}.{number + 1}{suffix}")
        return directory / f"{name}.1"

    def rename(self) -> None:
        self.path.rename(self._shift())
        self.path.touch()

    def copy_and_truncate(self, compress: bool = False) -> None:
        first = self._shift()
        shutil.copyfile(self.path, first)
        os.truncate(self.path, 0)
        self._rotations += 1
        stamp = round(self._wall() * 1e9) + 1000 * self._rotations
        os.utime(first, ns=(stamp, stamp))
        if compress:
            with gzip.open(f"{first}.gz", "wb") as packed:
                packed.write(first.read_bytes())
            os.utime(f"{first}.gz", ns=(stamp, stamp))
            first.unlink()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_appended_lines_are_returned_once(log: Log) -> None:
    follower = FileFollower(log.path)
    log.write(b"one", b"two")
    assert polled(follower) == [b"one", b"two"]
    assert polled(follower) == []
    log.write(b"three")
    assert polled(follower) == [b"three"]
    assert follower.behind_bytes() == 0


def test_an_incomplete_line_is_returned_when_complete(log: Log) -> None:
    follower = FileFollower(log.path)
    with log.path.open("ab", buffering=0) as file:
        for part in (b"first\nsec", b"ond", b"\nth"):
            file.write(part)
            follower.poll()
        assert polled(follower) == [b"first", b"second"]
        assert polled(follower) == []
        file.write(b"ird\n")
    assert polled(follower) == [b"third"]


def test_rename(log: Log) -> None:
    follower = FileFollower(log.path)
    log.write(b"one")
    assert polled(follower) == [b"one"]
    log.write(b"two")
    log.rename()
    log.write(b"three")
    assert polled(follower) + polled(follower) == [b"two", b"three"]


def test_a_writer_that_still_has_the_renamed_file_open(log: Log) -> None:
    follower = FileFollower(log.path)
    with log.path.open("ab", buffering=0) as writer:
        writer.write(b"one\n")
        assert polled(follower) == [b"one"]
        log.rename()
        assert polled(follower) == []
        writer.write(b"two\nlast words")
        log.write(b"three")
        assert polled(follower) == [b"two", b"last words", b"three"]


@pytest.mark.parametrize("compress", [False, True])
def test_copy_and_truncate(log: Log, compress: bool) -> None:
    follower = FileFollower(log.path)
    log.write(b"one")
    assert polled(follower) == [b"one"]
    log.write(b"written after the last look, before the copy")
    log.copy_and_truncate(compress)
    log.write(b"three")
    assert polled(follower) == log.written[1:]
    assert follower.rotations_lost == 0


def test_truncated_and_already_longer_than_it_was(log: Log) -> None:
    follower = FileFollower(log.path)
    log.write(b"one")
    polled(follower)
    log.copy_and_truncate()
    log.write(b"a line that is longer than all that was read before")
    assert polled(follower) == log.written[1:]


def test_several_rotations_between_two_polls(log: Log) -> None:
    follower = FileFollower(log.path)
    log.write(b"one")
    assert polled(follower) == [b"one"]
    for number in range(3):
        log.write(b"%d" % number)
        log.copy_and_truncate(compress=number == 1)
    log.write(b"now")
    assert polled(follower) == [b"0", b"1", b"2", b"now"]
    log.copy_and_truncate()
    log.write(b"later")
    log.copy_and_truncate()
    assert polled(follower) == [b"later"]


def test_a_truncation_without_a_copy_is_counted(log: Log) -> None:
    follower = FileFollower(log.path)
    log.write(b"one")
    polled(follower)
    os.truncate(log.path, 0)
    log.write(b"two")
    assert polled(follower) == [b"two"]
    assert follower.rotations_lost == 1


def test_a_backup_file_is_not_a_rotation(log: Log) -> None:
    follower = FileFollower(log.path)
    log.write(b"one")
    for name in ("events.jsonl.bak", "events.jsonl.swp", "events.jsonl~", "other.jsonl.1"):
        shutil.copyfile(log.path, log.path.with_name(name))
    assert polled(follower) == [b"one"]
    log.copy_and_truncate()
    log.write(b"two")
    assert polled(follower) == [b"two"]


def test_a_line_that_is_too_long_is_skipped(log: Log) -> None:
    follower = FileFollower(log.path)
    with log.path.open("ab") as file:
        file.write(b"before\n" + b"x" * (5 << 19) + b"\nafter\n")
    pieces = list(follower.poll())
    assert [line for piece in pieces for line in piece.lines] == [b"before", b"after"]
    assert sum(piece.too_long for piece in pieces) == 1


def test_polling_may_stop_after_any_piece(log: Log) -> None:
    lines = [b"%07d" % number for number in range(400_000)]
    log.write(*lines)
    follower = FileFollower(log.path)
    seen: list[bytes] = []
    while len(seen) < len(lines):
        for piece in follower.poll():
            seen += piece.lines
            break
        assert follower.behind_bytes() or len(seen) == len(lines)
    assert seen == lines


def test_a_missing_file_and_a_file_that_is_missing_for_a_while(log: Log) -> None:
    with pytest.raises(FileNotFoundError):
        polled(FileFollower(log.path.with_name("none.jsonl")))
    follower = FileFollower(log.path)
    log.write(b"one")
    assert polled(follower) == [b"one"]
    log.path.unlink()
    assert polled(follower) == []
    log.path.touch()
    log.write(b"two")
    assert polled(follower) + polled(follower) == [b"two"]


def test_damaged_copies_are_skipped(log: Log) -> None:
    follower = FileFollower(log.path)
    log.write(b"one")
    polled(follower)
    log.path.with_name("events.jsonl.1.gz").write_bytes(b"\x1f\x8b\x08not really gzip")
    os.truncate(log.path, 0)
    log.write(b"two")
    assert polled(follower) == [b"two"]


def test_random_writes_rotations_and_restarts_lose_and_repeat_nothing(log: Log) -> None:
    luck = random.Random(11)
    follower, seen, number = FileFollower(log.path), list[bytes](), 0
    for _ in range(1500):
        action = luck.random()
        if action < 0.5:
            lines = [b"line %d" % (number + i) for i in range(luck.randrange(1, 6))]
            number += len(lines)
            log.write(*lines)
        elif action < 0.8:
            for piece in follower.poll():
                seen += piece.lines
        elif action < 0.9:
            follower.close()
            follower = FileFollower(log.path, Position(*follower.position))
        elif log.path.stat().st_size:
            # logrotate leaves an empty file alone
            log.copy_and_truncate(compress=luck.random() < 0.3)
    for piece in follower.poll():
        seen += piece.lines
    assert seen == log.written
    assert follower.rotations_lost == 0
    follower.close()
