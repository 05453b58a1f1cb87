"""What is counted of the pauser, and its metrics."""

from demo_node import DemoNode
from gpucommons.faces.dialects.gpucommons import sharing as metrics
from gpucommons.faces.exposition.text import FamilyRenderer, prometheus_head
from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.pauser.backend import Code
from gpucommons.pauser.counters import Counters
from parsing import Series, parsed

ONE, OTHER = ProcessKey(1, 1), ProcessKey(2, 1)


def test_the_longest_pause_is_of_turns_that_have_ended() -> None:
    counters = Counters()
    counters.record_pause(ONE, 10.0)
    counters.record_pause(OTHER, 11.0)
    assert counters.longest_pause_s == 0.0
    counters.record_resume(ONE, 10.5)
    counters.record_resume(ONE, 99.0)
    assert counters.longest_pause_s == 0.5, "it was not paused the second time"
    counters.not_for_a_turn(OTHER)
    counters.record_resume(OTHER, 99.0)
    assert counters.longest_pause_s == 0.5
    counters.record_pause(OTHER, 100.0)
    counters.record_all_resumed(102.0)
    counters.record_all_resumed(110.0)
    assert counters.longest_pause_s == 2.0


def test_a_pause_that_goes_on_counts_also_while_the_pauser_is_lost() -> None:
    counters = Counters()
    counters.record_pause(ONE, 10.0)
    counters.record_pause(OTHER, 12.0)
    assert counters.reading(available=False, now_s=17.0).longest_pause_s == 7.0
    counters.record_resume(ONE, 18.0)
    assert counters.reading(available=True, now_s=19.0).longest_pause_s == 8.0
    assert counters.paused_now == 1


def test_a_lock_that_is_not_answered_may_have_paused_the_program() -> None:
    counters = Counters()
    counters.record_request(ONE, 10.0)
    assert counters.paused_now == 1
    assert counters.reading(available=True, now_s=12.0).longest_pause_s == 0.0, "the driver may still wait"
    counters.record_no_lock(ONE, may_be_paused=True)
    assert counters.paused_now == 1
    assert counters.reading(available=False, now_s=13.0).longest_pause_s == 3.0
    counters.record_all_resumed(14.0)
    assert counters.paused_now == 0
    assert counters.longest_pause_s == 4.0
    counters.record_request(ONE, 20.0)
    counters.record_no_lock(ONE, may_be_paused=False)
    assert counters.paused_now == 0
    assert counters.reading(available=True, now_s=99.0).longest_pause_s == 4.0
    counters.record_no_lock(OTHER, may_be_paused=True)
    assert counters.paused_now == 0, "its lock was not asked for: there was no pauser"


def shown(counters: Counters | None) -> Series:
    pauser = None if counters is None else counters.reading(available=True, now_s=0.0)
    readings = Readings(sharing=DemoNode().sharing(3.0)._replace(pauser=pauser))
    snapshot = Snapshot(1, 0.0, 0.0, "node", None, readings)
    return parsed(
        "".join(
            prometheus_head(family.metric) + bytes(FamilyRenderer(family.metric).render(family).lines).decode()
            for family in metrics.collect_pauser(snapshot)
        )
    )


def test_the_metrics() -> None:
    counters = Counters(locks=7, unlocks=6, timeouts=2, forced=1, restarts=3)
    counters.failures["lock", Code.TIMEOUT] += 2
    counters.failures["unlock", Code.GONE] += 1
    counters.failures["lock", 719] += 1
    counters.lock_seconds.observe(0.0006)
    counters.record_pause(ONE, 0.0)
    counters.record_resume(ONE, 0.25)
    plain = {name: value for (name, labels), value in shown(counters).items() if not labels}
    found = {name.removeprefix("gpucommons_pauser_"): value for name, value in plain.items()}
    assert found["available"] == 1
    assert (found["locks_total"], found["unlocks_total"], found["timeouts_total"]) == (7, 6, 2)
    assert (found["forced_resumes_total"], found["restarts_total"]) == (1, 3)
    assert found["longest_pause_seconds"] == 0.25
    assert (found["lock_seconds_count"], found["unlock_seconds_count"]) == (1, 0)
    failures = {
        (dict(labels)["operation"], dict(labels)["reason"]): value
        for (name, labels), value in shown(counters).items()
        if name == "gpucommons_pauser_failures_total"
    }
    assert failures == {("lock", "timeout"): 2, ("unlock", "gone"): 1, ("lock", "cuda_719"): 1}


def test_without_programs_in_turns_there_are_none() -> None:
    assert shown(None) == {}
