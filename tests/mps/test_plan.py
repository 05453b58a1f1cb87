"""When MPS daemons are started, stopped and restarted."""

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.leases.mps.plan import (
    IDLE_STOP_S,
    LAST_RETRY_S,
    MAX_FAILURES,
    SETTLED_S,
    DaemonStage,
    MpsDaemon,
    MpsKey,
    MpsStep,
    make_mps_plan,
    mark_failed,
    mark_started,
)

ALICE, ALL = MpsKey(1001, "GPU-a"), MpsKey(None, "GPU-a")
RUNNING = MpsDaemon(DaemonStage.RUNNING, 100.0)


def test_a_lease_starts_one_daemon_once() -> None:
    plan = make_mps_plan({ALICE}, {}, 0.0)
    assert plan.steps == ((MpsStep.START, ALICE),)
    assert make_mps_plan({ALICE}, plan.daemons, 1.0).steps == ()


def test_an_idle_daemon_is_stopped_after_a_while_and_one_that_is_needed_again_is_not() -> None:
    first = make_mps_plan(set(), {ALICE: RUNNING}, 200.0)
    assert first.steps == ()
    assert make_mps_plan(set(), first.daemons, 200.0 + IDLE_STOP_S).steps == ((MpsStep.STOP, ALICE),)
    used = make_mps_plan({ALICE}, first.daemons, 205.0).daemons
    assert make_mps_plan(set(), used, 200.0 + IDLE_STOP_S).steps == ()


def test_a_daemon_that_is_stopping_is_started_again_once_it_has_stopped() -> None:
    stopping = MpsDaemon(DaemonStage.STOPPING, 0.0)
    assert make_mps_plan({ALICE}, {ALICE: stopping}, 1.0).steps == ()
    assert make_mps_plan({ALICE}, {}, 2.0).steps == ((MpsStep.START, ALICE),)


def test_a_daemon_that_died_is_restarted_with_growing_pauses() -> None:
    daemon, now_s, pauses = RUNNING, 101.0, []
    for _ in range(9):
        daemon = mark_failed(daemon, "gone", now_s)
        assert make_mps_plan({ALICE}, {ALICE: daemon}, daemon.retry_s - 0.01).steps == ()
        pauses.append(daemon.retry_s - now_s)
        now_s = daemon.retry_s
        plan = make_mps_plan({ALICE}, {ALICE: daemon}, now_s)
        assert plan.steps == ((MpsStep.START, ALICE),)
        daemon = mark_started(plan.daemons[ALICE], now_s)
    assert pauses == [1, 2, 4, 8, 16, 32, LAST_RETRY_S, LAST_RETRY_S, LAST_RETRY_S]
    assert mark_failed(daemon, "gone", now_s + SETTLED_S).failures == 1, "it ran for long"


def test_a_daemon_that_does_not_start_is_given_up_and_forgotten_without_a_lease() -> None:
    daemon = MpsDaemon(DaemonStage.STARTING, 0.0)
    for attempt in range(MAX_FAILURES):
        assert not daemon.is_given_up, attempt
        daemon = mark_failed(daemon, "no such program", 10.0)
    assert daemon.is_given_up
    assert daemon.reason == "no such program"
    assert make_mps_plan(set(), {ALICE: daemon}, 11.0).daemons == {}


KEYS = st.builds(MpsKey, st.sampled_from([None, 1001, 1002]), st.sampled_from(["GPU-a", "GPU-b"]))
EVENTS = st.lists(st.tuples(st.sampled_from(["need", "drop", "ok", "fail", "die", "time"]), KEYS), max_size=60)


@given(EVENTS)
def test_what_is_needed_comes_to_run_and_what_runs_is_known(events: list[tuple[str, MpsKey]]) -> None:
    """A world of processes: a start is carried out only where none runs, and a stop only where one does."""
    needed: set[MpsKey] = set()
    daemons: dict[MpsKey, MpsDaemon] = {}
    alive: set[MpsKey] = set()
    now_s = 0.0

    def step() -> None:
        nonlocal daemons
        plan = make_mps_plan(needed, daemons, now_s)
        daemons = dict(plan.daemons)
        for what, key in plan.steps:
            if what is MpsStep.START:
                assert key in needed
                assert key not in alive
            else:
                assert key not in needed
                assert key in alive
                alive.discard(key)
                del daemons[key]
        assert needed <= daemons.keys()
        assert alive <= daemons.keys()

    for what, key in events:
        stage = daemons[key].stage if key in daemons else None
        if what == "need":
            needed.add(key)
        elif what == "drop":
            needed.discard(key)
        elif what == "ok" and stage is DaemonStage.STARTING:
            alive.add(key)
            daemons[key] = mark_started(daemons[key], now_s)
        elif what == "fail" and stage is DaemonStage.STARTING:
            daemons[key] = mark_failed(daemons[key], "x", now_s)
        elif what == "die" and stage is DaemonStage.RUNNING:
            alive.discard(key)
            daemons[key] = mark_failed(daemons[key], "x", now_s)
        elif what == "time":
            now_s += 7.0
        step()
    now_s += LAST_RETRY_S
    step()
    for key in needed:
        assert daemons[key].stage in (DaemonStage.STARTING, DaemonStage.RUNNING)
