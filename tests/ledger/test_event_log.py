"""Our own event log: appended in whole lines, read at the start, rotated; a disk that fails does not block it."""

import stat
from pathlib import Path

from gpucommons.ledger.events import EventLog, older, read_events
from gpucommons.model.events import Event, Numbering
from ledger.test_writer import fill, tmpfs
from waiting import until


def event(number: int, type: str = "gpu.xid") -> Event:
    return Event(float(number), type, "alice", "gpucommons", {"number": str(number), "uuid": "GPU-0"})


def started(path: Path, **options: int) -> EventLog:
    events = EventLog(path, **options)
    events.start()
    until(lambda: events.detector_state is not None, "the log is read")
    return events


def test_recorded_events_are_in_the_file_and_in_the_reading_newest_first(tmp_path: Path) -> None:
    path = tmp_path / "state" / "events.jsonl"
    events = started(path)
    events.record([event(1), event(2)])
    events.record([])
    events.record([event(3)])
    assert events.close(5.0)
    assert list(read_events(path)) == [event(1), event(2), event(3)]
    recent = events.reading().events
    assert [event.wall_s for event in recent] == [3, 2, 1]
    assert recent[0].details == {"number": "3", "uuid": "GPU-0"}


def test_the_agent_and_a_reader_of_the_file_give_an_event_the_same_id(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    times = [1_800_000_000.1237, 1_800_000_000.1237, 1_800_000_001.9999, 1_800_000_001.0]
    events = started(path)
    for wall_s in times:
        events.record([event(1)._replace(wall_s=wall_s)])
    assert events.close(5.0)
    ids = [event.id for event in events.reading().events]
    assert ids == [event.id for event in Numbering()(read_events(path))][::-1]
    assert len(set(ids)) == 4
    assert ids[-2:] == ["2027-01-15T08:00:00.123Z-001", "2027-01-15T08:00:00.123Z-000"]


def test_a_restart_reads_the_existing_log(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    first = started(path)
    first.record([event(1, "gpu.lost")])
    first.close(5.0)
    second = started(path)
    assert second.detector_state is not None
    assert second.detector_state.lost == {"GPU-0"}
    second.record([event(2)])
    second.close(5.0)
    assert [entry.wall_s for entry in second.reading().events] == [2, 1]


def test_the_log_is_readable_by_the_owner_and_the_group(tmp_path: Path) -> None:
    new, strict = tmp_path / "events.jsonl", tmp_path / "strict.jsonl"
    strict.touch(0o600)
    for path in (new, strict):
        events = started(path)
        events.record([event(1)])
        events.close(5.0)
        assert len(list(read_events(path))) == 1
    assert [stat.S_IMODE(path.stat().st_mode) for path in (new, strict)] == [0o640, 0o600]


def test_a_partial_line_after_a_crash_does_not_damage_the_next(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"timestamp": "2026-11-15T10:00:00Z", "event_ty')
    events = started(path)
    events.record([event(1)])
    events.close(5.0)
    assert list(read_events(path)) == [event(1)]
    assert path.read_bytes().count(b"\n") == 2


def test_a_long_log_is_rotated_and_both_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = started(path, max_bytes=2000)
    for number in range(40):
        events.record([event(number)])
    events.close(5.0)
    kept = [int(each.wall_s) for each in read_events(path)]
    assert kept == list(range(kept[0], 40))
    assert 10 <= len(kept) < 40
    assert older(path).stat().st_size <= 2200


def test_events_stay_in_memory_while_the_disk_is_full_or_the_path_is_blocked(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    blocked = started(tmp_path / "taken" / "events.jsonl")
    blocked.record([event(1)])
    until(lambda: not blocked.writing, "the failure is reported")
    assert len(blocked.reading().events) == 1
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
            until(lambda n=number: len(events.reading().events) == n, "seen")  # type: ignore[misc]
        ballast.unlink()
        events.record([event(number + 1)])
        until(lambda: events.writing, "written again")
        events.close(5.0)
        assert [each.wall_s for each in read_events(path)] == [*range(1, number + 2)]
