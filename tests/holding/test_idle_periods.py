"""Idle periods: judged in a sliding window, and only from what was seen."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.test_lease_room import NOTEBOOK
from gpucommons.model.idle import IdlePeriod, IdlePeriods
from gpucommons.model.leases import Lease, LeaseRequest, LeasesReading, Trespasser
from gpucommons.model.process_identity import ProcessKey
from gpucommons.owners.holding_stage import AllocationStage, find_kept_waiting
from gpucommons.owners.slot_states import IdleWindow, after, judge_idle, shortest_idle_s
from holding.test_allocations import docker, managed, process, readings

HOUR_S = 3600.0
WINDOW = IdleWindow(length_s=HOUR_S)
Stretch = tuple[float, bool | None]


def played(stretches: Iterable[Stretch], window: IdleWindow = WINDOW, step_s: float = 10.0) -> IdlePeriod | None:
    period: IdlePeriod | None = None
    for seconds, active in stretches:
        for _ in range(round(seconds / step_s)):
            period = after(period, step_s, active, window)
    return period


def idle_s(*stretches: Stretch) -> float | None:
    period = played(stretches)
    return None if period is None else period.length_s


def test_holders_are_idle_for_as_long_as_all_of_them_are() -> None:
    long, short, working = (NOTEBOOK._replace(idle_s=seconds) for seconds in (900.0, 60.0, None))
    assert shortest_idle_s([long, short]) == 60.0
    assert shortest_idle_s([long, working]) is None
    assert shortest_idle_s([working]) is None
    assert shortest_idle_s([]) is None


def test_a_job_that_worked_for_an_hour_and_idles_for_three_is_idle_for_three() -> None:
    assert idle_s((HOUR_S, True), (3 * HOUR_S, False)) == pytest.approx(3 * HOUR_S, abs=10)


def test_a_job_that_idled_for_a_day_and_works_again_is_in_use_within_the_window() -> None:
    """Its share of use since the start is far below any limit."""
    assert idle_s((24 * HOUR_S, False), (40, True)) is None


def test_short_use_does_not_end_a_period_and_counts_against_it() -> None:
    assert idle_s((HOUR_S, False), (10, True), (HOUR_S, False)) == pytest.approx(2 * HOUR_S, abs=20)
    often = ((10, True), (300, False)) * 3
    assert idle_s((HOUR_S, False), *often) == pytest.approx(HOUR_S + 930, abs=20)
    assert idle_s((HOUR_S, False), *often, (10, True)) is None, "40 s in an hour are more than one percent"


def test_use_that_has_left_the_window_is_forgotten() -> None:
    steady: list[Stretch] = [(HOUR_S, False)]
    for _ in range(50):
        steady += [(30, True), (HOUR_S + 90, False)]
    assert idle_s(*steady) == pytest.approx(51 * HOUR_S + 50 * 120, abs=10)


def test_use_is_remembered_in_full_and_once_for_each_minute_of_an_hour() -> None:
    window = IdleWindow(HOUR_S, active_ratio=0.5)
    period = played([(HOUR_S, False), (600, True)], window, step_s=1.0)
    assert period is not None
    assert sum(seconds for _, seconds in period.uses) == 600
    assert len(period.uses) in (10, 11)


def test_a_busy_job_that_stops_was_idle_since_then_only() -> None:
    assert idle_s((HOUR_S, True), (20, False)) == 10


def test_time_in_which_the_use_is_not_known_does_not_count() -> None:
    assert idle_s((HOUR_S, False), (10 * HOUR_S, None), (60, False)) == pytest.approx(HOUR_S + 60, abs=10)
    assert idle_s((HOUR_S, None)) is None


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.sampled_from([True, False, None])), max_size=200),
    st.floats(1, 500),
    st.floats(0, 0.5),
)
def test_no_period_has_more_use_than_allowed_nor_more_time_than_was_seen(
    steps: list[tuple[float, bool | None]], length_s: float, ratio: float
) -> None:
    window = IdleWindow(length_s, ratio)
    period, seen_s = None, 0.0
    history: list[tuple[float, bool]] = []
    for elapsed_s, active in steps:
        period = after(period, elapsed_s, active, window)
        if active is not None:
            seen_s += elapsed_s
            history.append((elapsed_s, active))
        if period is None:
            continue
        assert period.length_s <= seen_s + 1e-6
        # Use within the window, counted from the steps; each may be remembered a sixtieth of the window longer.
        used_s = back_s = 0.0
        for elapsed, was_active in reversed(history):
            if back_s + elapsed > min(length_s, period.length_s):
                break
            back_s += elapsed
            used_s += elapsed * was_active
        assert used_s <= ratio * min(length_s, period.length_s) + 1e-6
        assert len(period.uses) <= 62


@given(st.lists(st.tuples(st.floats(0.1, 100), st.booleans()), min_size=1, max_size=50))
def test_work_that_fills_the_window_ends_every_period(steps: list[tuple[float, bool]]) -> None:
    window = IdleWindow(60.0, 0.01)
    period = None
    for elapsed_s, active in steps:
        period = after(period, elapsed_s, active, window)
    for _ in range(10):
        period = after(period, 6.0, True, window)
    assert period is None


# With the stage


class Staged:
    def __init__(self, before: IdlePeriods | None = None) -> None:
        self.now_s = 1000.0
        self.stage = AllocationStage(
            idle_window=WINDOW, idle_before=lambda: before or {}, monotonic=lambda: self.now_s, wall=lambda: 1.7e9
        )

    def idle(self, elapsed_s: float, *containers: object, **more: object) -> dict[str, float | None]:
        self.now_s += elapsed_s
        found = self.stage(readings(*containers, **more)).allocations  # type: ignore[arg-type]
        assert found is not None
        return {f"{each.workload}@{each.slot.name}": each.idle_s for each in found.allocations if each.share}


def test_each_holder_of_a_shared_slot_has_its_own_time() -> None:
    first, second = managed("first", "alice", "0"), managed("second", "bob", "0")
    staged = Staged()
    working = {"processes": [process(first), process(second, user="bob", sm=0, pid=8)]}
    staged.idle(0, first, second, **working)
    assert staged.idle(60, first, second, **working) == {"first@0": None, "second@0": 60.0}


def test_new_processes_of_a_user_begin_a_new_period() -> None:
    staged = Staged()
    staged.idle(0, processes=[process(sm=0, pid=5)])
    assert list(staged.idle(60, processes=[process(sm=0, pid=5), process(sm=0, pid=6)]).values()) == [60.0]
    assert list(staged.idle(60, processes=[process(sm=0, pid=6)]).values()) == [120.0], "one of them is still there"
    assert list(staged.idle(60, processes=[process(sm=0, pid=7)]).values()) == [0.0]


def test_a_pause_of_the_agent_is_not_counted() -> None:
    staged, held = Staged(), managed("kept", "alice", "0")
    staged.idle(0, held)
    assert staged.idle(100, held) == {"kept@0": 100.0}
    assert staged.idle(3600, held) == {"kept@0": 100.0}


def test_the_periods_of_an_earlier_agent_go_on() -> None:
    held = managed("kept", "alice", "0")
    staged = Staged({(held.id, "GPU-0"): IdlePeriod(500.0)})
    assert staged.idle(0) == {}, "Docker has not answered yet"
    assert staged.idle(10, held) == {"kept@0": 510.0}
    same = Staged({(held.id, "GPU-0"): IdlePeriod(500.0)})
    same.idle(0, held)
    assert same.idle(10, held, processes=[process(held)]) == {"kept@0": None}
    assert same.idle(10, held) == {"kept@0": 0.0}, "it has worked since"


def test_a_period_of_processes_goes_on_only_with_them() -> None:
    staged = Staged()
    staged.idle(0, processes=[process(sm=0, pid=5)])
    reading = staged.stage(readings(processes=[process(sm=0, pid=5)])).allocations
    assert reading is not None
    (each,) = reading.allocations
    key = (each.workload_id, each.slot.uuid)
    for processes, expected in ((each.processes, 500.0), ((ProcessKey(4, 4),), 0.0)):
        before = {key: IdlePeriod(500.0, (), frozenset(processes))}
        found, _ = judge_idle(reading, before, 0.0, WINDOW)
        assert found.allocations[0].idle_s == expected


def test_a_container_that_holds_no_slot_is_not_idle_there() -> None:
    monitor = docker("monitor", count=-1)
    stage = AllocationStage(idle_window=WINDOW)
    for _ in range(2):
        reading = stage(readings(monitor)).allocations
        assert reading is not None
        assert [(each.share, each.idle_s) for each in reading.allocations] == [(0, None)]


def test_a_program_that_waits_for_its_turn_is_not_idle() -> None:
    processes = [process(sm=0, pid=5), process(sm=0, pid=7)]
    reading = AllocationStage()(readings(processes=processes)).allocations
    assert reading is not None
    (each,) = reading.allocations
    before = {(each.workload_id, each.slot.uuid): IdlePeriod(500.0)}
    for waiting, expected in (({5}, 500.0), ({6}, 510.0)):
        found, _ = judge_idle(reading, before, 10.0, WINDOW, waiting)
        assert found.allocations[0].idle_s == expected


def test_a_lease_is_used_while_its_container_is() -> None:
    """`gpucommons run docker run ...`: the container belongs to root, and the lease has no process of its own."""
    request = LeaseRequest(1000, "alice", 0.0, id="12", number=1)
    leases = LeasesReading(leases=(Lease(request, ("GPU-0",), 1.0, 1.7e9),))
    box = docker("box", count=-1)
    staged = Staged()
    for sm, expected in ((500_000, [None]), (0, [0.0, 10.0])):
        given = {"processes": [process(box, user="root", sm=sm)], "leases": leases}
        for seconds in expected:
            assert staged.idle(10, box, **given)["lease-12@0"] == seconds


def test_a_lease_is_idle_while_another_one_on_its_gpu_is_used() -> None:
    requests = [
        LeaseRequest(uid, user, 0.0, id=id, number=1) for uid, user, id in ((1000, "alice", "1"), (1001, "bob", "2"))
    ]
    leases = LeasesReading(leases=tuple(Lease(request, ("GPU-0",), 0.5, 1.7e9) for request in requests))
    staged = Staged()
    for seconds in (0.0, 10.0):
        assert staged.idle(10, processes=[process()], leases=leases) == {"lease-1@0": None, "lease-2@0": seconds}


def test_a_program_that_is_paused_for_a_lease_is_not_idle() -> None:
    strays = (Trespasser("12", "0", 5, None, "bob", "python", paused=True), Trespasser("12", "0", 6, None, "bob", "x"))
    assert find_kept_waiting(None, LeasesReading(trespassers=strays)) == {5}
    assert find_kept_waiting(None, None) == frozenset()
