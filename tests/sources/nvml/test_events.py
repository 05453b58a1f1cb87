"""XIDs and other critical events: every event is counted, and reading does not wait."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.nvml.rig import START_WALL_S, Rig
from gpucommons.sources.nvml.events import EventCounts
from gpucommons.sources.source import SourceError


def test_a_watched_gpu_without_xids_has_none(rig: Rig) -> None:
    xid = rig.gpu().xid
    assert xid.watched
    assert (xid.counts, xid.last_code) == ({}, None)


def test_an_xid_is_counted_with_its_code_and_time(rig: Rig) -> None:
    rig.fake.say("gpus 2")
    rig.read()
    rig.fake.xid(1, 79)
    first, second = rig.read().gpus
    assert first.xid.counts == {}
    assert second.xid.counts == {79: 1}
    assert (second.xid.last_code, second.xid.last_wall_s) == (79, START_WALL_S + 2)


def test_the_same_xid_twice_counts_twice(rig: Rig) -> None:
    rig.read()
    rig.fake.xid(0, 31)
    rig.fake.xid(0, 31)
    assert rig.gpu().xid.counts == {31: 2}
    rig.fake.xid(0, 31)
    rig.fake.xid(0, 43)
    xid = rig.gpu().xid
    assert (xid.counts, xid.last_code) == ({31: 3, 43: 1}, 43)
    assert rig.gpu().xid.counts == {31: 3, 43: 1}


def test_a_burst_is_counted_completely_over_several_passes(rig: Rig) -> None:
    rig.read()
    rig.fake.lines += [f"event {n} 0 8 {n % 3 + 1}" for n in range(1, 1024)]
    rig.fake.say()
    first = sum(rig.gpu().xid.counts.values())
    assert first == 1000
    assert rig.gpu().xid.counts == {1: 341, 2: 341, 3: 341}


def test_recent_xids_are_counted_by_the_second_for_an_hour(rig: Rig) -> None:
    rig.read()
    rig.fake.xid(0, 31)
    rig.fake.xid(0, 31)
    rig.fake.xid(0, 43)
    first = rig.gpu().xid.recent
    second = int(START_WALL_S) + 2
    assert first == {(second, 31): 2, (second, 43): 1}
    rig.fake.xid(0, 31)
    assert rig.gpu(after_s=10).xid.recent == {**first, (second + 10, 31): 1}
    rig.fake.xid(0, 79)
    later = rig.gpu(after_s=3596).xid
    assert later.recent == {(second + 10, 31): 1, (second + 3606, 79): 1}, "an hour is enough for every window"
    assert later.counts == {31: 3, 43: 1, 79: 1}


def test_other_critical_events_are_counted_by_name(rig: Rig) -> None:
    rig.read()
    rig.fake.event(0, 0x2, 0)
    rig.fake.event(0, 0x8000, 1)
    rig.fake.event(0, 0x2, 0)
    xid = rig.gpu().xid
    assert xid.events == {"double_bit_ecc_error": 2, "gpu_recovery_action": 1}
    assert xid.counts == {}


def test_clock_changes_are_not_registered(rig: Rig) -> None:
    rig.read()
    rig.fake.event(0, 0x10, 0)
    rig.fake.event(0, 0x4, 0)
    xid = rig.gpu().xid
    assert (xid.counts, xid.events) == ({}, {})


def test_polling_does_not_wait_in_the_driver(rig: Rig) -> None:
    rig.read_for(5)
    assert rig.fake.calls("nvmlEventSetWait_v2") == 5
    assert rig.fake.counter("misuses") == 0


def test_a_gpu_without_event_support_is_not_watched(rig: Rig) -> None:
    rig.fake.say("gpus 2", "fail nvmlDeviceRegisterEvents 3 1")
    first, second = rig.read().gpus
    assert (first.xid.watched, second.xid.watched) == (True, False)


def test_counts_outlive_the_session_with_the_driver(rig: Rig) -> None:
    rig.read()
    rig.fake.xid(0, 79)
    rig.read()
    rig.fake.say("fail nvmlEventSetWait_v2 1")
    with pytest.raises(SourceError):
        rig.read()
    rig.fake.unsay("fail")
    assert rig.gpu(after_s=2).xid.counts == {79: 1}
    rig.fake.xid(0, 79)
    assert rig.gpu().xid.counts == {79: 2}
    rig.source.close()
    assert rig.fake.counter("event_sets") == 0


def test_a_lost_gpu_keeps_its_xids(rig: Rig) -> None:
    rig.fake.say("gpus 2")
    rig.read()
    rig.fake.xid(1, 79)
    rig.fake.say("lose 1")
    lost = rig.read().gpus[1]
    assert not lost.up
    assert lost.xid.counts == {79: 1}


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([8, 2, 4]), st.integers(1, 4))))
def test_counts_equal_the_events(events: list[tuple[str, int, int]]) -> None:
    book = EventCounts()
    for at, (uuid, kind, data) in enumerate(events):
        before = book.record(uuid)
        book.add(uuid, kind, data, float(at))
        after = book.record(uuid)
        assert all(after.counts[code] >= count for code, count in before.counts.items())
    for uuid in ("a", "b"):
        xids = [data for owner, kind, data in events if owner == uuid and kind == 8]
        assert book.record(uuid).counts == Counter(xids)
        assert book.record(uuid).last_code == (xids[-1] if xids else None)
