"""Our own event log: appended in whole lines, read back at the start, turned over, and never in the way."""

from pathlib import Path

from gpucommons.ledger.event_log import EventLog, older, read_events
from gpucommons.model.events import Event
from ledger.test_writer import fill, tmpfs
from waiting import until


def event(number: int, type: str = "gpu.xid") -> Event:
    return Event(float(number), type, "alice", "gpucommons", {"number": str(number), "uuid": "GPU-0"})


def started(path: Path, **options: int) -> EventLog:
    events = EventLog(path, **options)
    events.start()
    until(lambda: events.standing is not None, "the log is read")
    return events


def test_what_is_recorded_is_in_the_log_and_in_the_journal_newest_first(tmp_path: Path) -> None:
    path = tmp_path / "state" / "events.jsonl"
    events = started(path)
    events.record([event(1), event(2)])
    events.record([])
    events.record([event(3)])
    assert events.close(5.0)
    assert list(read_events(path)) == [event(1), event(2), event(3)]
    entries = events.journal().entries
    assert [entry.wall_s for entry in entries] == [3, 2, 1]
    assert len({entry.id for entry in entries}) == 3
    assert entries[0].details == {"number": "3", "uuid": "GPU-0"}


def test_a_restart_finds_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    first = started(path)
    first.record([event(1, "gpu.lost")])
    first.close(5.0)
    second = started(path)
    assert second.standing is not None
    assert second.standing.lost == {"GPU-0"}
    second.record([event(2)])
    second.close(5.0)
    assert [entry.wall_s for entry in second.journal().entries] == [2, 1]


def test_half_a_line_that_a_crash_left_harms_no_other(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"timestamp": "2026-11-15T10:00:00Z", "event_ty')
    events = started(path)
    events.record([event(1)])
    events.close(5.0)
    assert list(read_events(path)) == [event(1)]
    assert path.read_bytes().count(b"\n") == 2


def test_a_long_log_is_turned_over_and_both_are_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = started(path, most_bytes=2000)
    for number in range(40):
        events.record([event(number)])
    events.close(5.0)
    kept = [int(each.wall_s) for each in read_events(path)]
    assert kept == list(range(kept[0], 40))
    assert 10 <= len(kept) < 40
    assert older(path).stat().st_size <= 2200


def test_a_disk_that_is_full_or_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    blocked = started(tmp_path / "taken" / "events.jsonl")
    blocked.record([event(1)])
    until(lambda: not blocked.writing, "it is said")
    assert len(blocked.journal().entries) == 1
    blocked.close(5.0)
    with tmpfs(tmp_path / "disk", "size=64k") as disk:
        path, ballast = disk / "events.jsonl", disk / "ballast"
        events = started(path)
        events.record([event(1)])
        until(path.exists, "written")
        fill(ballast)
        number = 1
        while events.writing:
            number += 1
            events.record([event(number)])
            until(lambda n=number: len(events.journal().entries) == n, "seen")  # type: ignore[misc]
        ballast.unlink()
        events.record([event(number + 1)])
        until(lambda: events.writing, "written again")
        events.close(5.0)
        assert [each.wall_s for each in read_events(path)] == [*range(1, number + 2)]
