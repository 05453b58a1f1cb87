"""The event log: the window equals a plain count across rotations and restarts; damaged lines are counted."""

import json
import random
import stat
from collections import Counter
from math import floor
from pathlib import Path

import pytest

from base.test_follow import Log
from gpucommons.model.events import Event, format_line
from gpucommons.sources.ds01.events import WINDOW_S, Ds01EventsReader
from gpucommons.sources.source import SourceAbsent, SourceError

START = 1_800_000_000.0
TYPES = ["gpu.allocate", "gpu.released", "container.start", "maintenance.idle_kill"]


class Clock:
    now_s = START

    def __call__(self) -> float:
        return self.now_s


def source(tmp_path: Path, clock: Clock) -> Ds01EventsReader:
    return Ds01EventsReader(tmp_path / "events.jsonl", tmp_path / "state" / "events.json", wall=clock)


def line(clock: Clock, type: str, old: bool = False) -> bytes:
    if old:
        stamp = json.loads(format_line(Event(clock.now_s, type)))["timestamp"]
        return json.dumps({"ts": stamp, "event": type, "user": "alice"}).encode()
    return format_line(Event(clock.now_s, type, "alice")).rstrip()


def test_the_window_is_a_plain_count_at_a_thousand_instants_over_rotations_and_restarts(tmp_path: Path) -> None:
    luck, clock = random.Random(5), Clock()
    log = Log(tmp_path, clock)
    events: list[tuple[str, int]] = []
    follower = source(tmp_path, clock)
    for _ in range(1000):
        clock.now_s += luck.expovariate(1 / 600)
        for _ in range(luck.randrange(4)):
            type = luck.choice(TYPES)
            events.append((type, floor(round(clock.now_s, 3))))
            log.write(line(clock, type, old=luck.random() < 0.3))
            clock.now_s += luck.random()
        chance = luck.random()
        if chance < 0.05 and log.path.stat().st_size:
            log.copy_and_truncate(compress=chance < 0.02)
        elif chance < 0.1:
            follower.save_position()
        elif chance < 0.15:
            # A kill: what was read since the position was saved is read again.
            follower = source(tmp_path, clock)
        last = floor(clock.now_s)
        expected = Counter(type for type, second in events if last - WINDOW_S < second <= last)
        found = follower.read()
        assert {t: n for t, n in found.counts_24h.items() if n} == expected
        assert not found.bad_lines
    assert found.rotations_lost == 0
    assert len(events) > 1000


def test_renamed_logs_are_counted_too(tmp_path: Path) -> None:
    clock, log = Clock(), Log(tmp_path)
    follower = source(tmp_path, clock)
    for number in range(20):
        log.write(line(clock, "gpu.allocate"))
        if number % 7 == 6:
            log.rename()
        follower.read()
    follower.read()
    assert follower.read().counts_24h == {"gpu.allocate": 20}


def test_the_first_start_counts_what_was_rotated_within_the_day(tmp_path: Path) -> None:
    log = Log(tmp_path)
    clock = Clock()
    clock.now_s = log.path.stat().st_mtime
    log.write(line(clock, "gpu.allocate"))
    log.copy_and_truncate()
    log.write(line(clock, "gpu.allocate"))
    assert source(tmp_path, clock).read().counts_24h == {"gpu.allocate": 2}


def test_a_bad_line_does_not_affect_others(tmp_path: Path) -> None:
    clock, log = Clock(), Log(tmp_path)
    bad = [b"{", b"\xff\x00", b"[]", b'{"event": "x"}', b'{"ts": "2026-11-15T10:00:00Z"}', b'{"ts": "?", "event": "x"}']
    for each in bad:
        log.write(line(clock, "gpu.allocate"), each, b"")
    found = source(tmp_path, clock).read()
    assert found.counts_24h == {"gpu.allocate": len(bad)}
    assert found.bad_lines == {"not_json": 2, "not_an_event": 1, "no_time": 2, "no_type": 1}
    assert found.lines == 3 * len(bad)


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"[]", b"{}", b'{"version": 99}', b'{"version": 1, "position": [1], "window": {}}']
)
def test_a_damaged_state_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    clock, log = Clock(), Log(tmp_path)
    log.write(line(clock, "gpu.allocate"))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "events.json").write_bytes(content)
    follower = source(tmp_path, clock)
    assert follower.read().counts_24h == {"gpu.allocate": 1}
    follower.save_position()
    assert source(tmp_path, clock).read().counts_24h == {"gpu.allocate": 1}
    assert stat.S_IMODE((tmp_path / "state" / "events.json").stat().st_mode) == 0o640


def test_a_position_that_cannot_be_saved_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock, log = Clock(), Log(tmp_path)
    log.write(line(clock, "gpu.allocate"))
    (tmp_path / "state").write_text("a file where a directory should be")
    follower = source(tmp_path, clock)
    follower.read()
    caplog.clear()
    follower.save_position()
    follower.save_position()
    assert [record.message for record in caplog.records] == [
        f"events: cannot save the position in the log: {tmp_path / 'state'}: File exists"
    ]
    assert follower.read().counts_24h == {"gpu.allocate": 1}


def test_no_log_is_absent_and_a_directory_unreadable(tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent, match="does not exist"):
        source(tmp_path, Clock()).read()
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(SourceError):
        source(tmp_path, Clock()).read()
