"""Core quotas over a simulated minute: every client gets its share, however slowly it releases."""

import pytest

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.scheduler.policy.quota_bucket import QuotaBucket
from gpucommons.scheduler.policy.state import Mode
from gpucommons.scheduler.protocol.wire import MessageType
from scheduler.simulation import Simulation

MINUTE_S = 60.0

CASES = [
    pytest.param((25,), (0.0,), id="25 alone"),
    pytest.param((25,), (0.3,), id="25 alone, 300 ms to release"),
    pytest.param((25,), (1.0,), id="25 alone, 1 s to release"),
    pytest.param((30, 60), (0.0, 0.0), id="30 + 60"),
    pytest.param((30, 60), (0.3, 0.3), id="30 + 60, 300 ms to release"),
    pytest.param((75, 75), (0.0, 0.0), id="75 + 75"),
    pytest.param((75, 75), (0.1, 0.3), id="75 + 75, slow to release"),
    pytest.param((25, 25, 50), (0.0, 0.0, 0.0), id="25 / 25 / 50"),
    pytest.param((25, 25, 50), (0.3, 0.1, 0.05), id="25 / 25 / 50, slow to release"),
    pytest.param((1,), (0.0,), id="1 alone"),
    pytest.param((99,), (0.0,), id="99 alone"),
]


def due_percent(limits: tuple[int, ...]) -> list[float]:
    scale = min(1.0, 100 / sum(limits))
    return [limit * scale for limit in limits]


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.SERIAL])
@pytest.mark.parametrize(("limits", "tails_s"), CASES)
def test_every_client_gets_its_due(mode: Mode, limits: tuple[int, ...], tails_s: tuple[float, ...]) -> None:
    simulation = Simulation(SchedulerSettings(mode=mode))
    scripts = [simulation.add(core=limit, tail_s=tail_s) for limit, tail_s in zip(limits, tails_s, strict=True)]
    # Not only at the end of a minute that suits us: at any time in its last seconds.
    simulation.run(MINUTE_S - 8.0)
    for step in range(81):
        elapsed_s = MINUTE_S - 8.0 + step / 10
        for script, due in zip(scripts, due_percent(limits), strict=True):
            share = 100 * simulation.billed_s(script) / elapsed_s
            assert share == pytest.approx(due, abs=1.0)
        simulation.run(0.1)


def test_an_idle_client_saves_up_little() -> None:
    simulation = Simulation()
    script = simulation.add(core=25, request=False)
    simulation.run(MINUTE_S)
    simulation.perform(simulation.policy.request(script.client, simulation.now))
    simulation.run(4.0)
    assert simulation.billed_s(script) <= 0.25 * 4.0 + 0.5


def test_a_client_that_waited_for_others_saves_up_half_a_minute_of_its_share_at_most() -> None:
    """More would let it hold the GPU for minutes once the others leave."""
    simulation = Simulation(SchedulerSettings(mode=Mode.SERIAL))
    script, others = simulation.add(core=50), [simulation.add() for _ in range(5)]
    simulation.run(10 * MINUTE_S)
    assert simulation.billed_s(script) / (10 * MINUTE_S) < 0.25
    for other in others:
        simulation.leave(other)
    before_s = simulation.billed_s(script)
    simulation.run(MINUTE_S)
    assert 0.5 * MINUTE_S + 5.0 < simulation.billed_s(script) - before_s < 0.5 * (MINUTE_S + 30.0) + 1.0


def test_what_a_client_saved_while_it_waited_is_lost_once_it_asks_for_nothing_over_a_window() -> None:
    settings = SchedulerSettings()
    window_s = settings.compute_window_ms / 1000
    bucket = QuotaBucket(50, settings, 0.0)
    bucket.settle_waiting(MINUTE_S, 0.0)
    assert bucket.balance_s > 10.0
    bucket.settle_idle(MINUTE_S + window_s / 2)
    assert bucket.balance_s > 10.0, "it requests again soon"
    bucket.settle_idle(MINUTE_S + 2 * window_s)
    assert bucket.balance_s <= window_s


def test_a_share_that_is_borrowed_is_given_back_at_once() -> None:
    simulation = Simulation(SchedulerSettings(mode=Mode.SERIAL, work_conserving=True))
    borrower = simulation.add(core=25)
    simulation.run(MINUTE_S)
    assert simulation.billed_s(borrower) == pytest.approx(MINUTE_S)
    owner = simulation.add(core=75)
    before = simulation.billed_s(borrower)
    simulation.run(MINUTE_S)
    assert 100 * (simulation.billed_s(borrower) - before) / MINUTE_S == pytest.approx(25, abs=1)
    assert 100 * simulation.billed_s(owner) / MINUTE_S == pytest.approx(75, abs=1)


def test_without_borrowing_an_idle_gpu_stays_idle() -> None:
    simulation = Simulation()
    script = simulation.add(core=25)
    simulation.run(MINUTE_S)
    assert simulation.gpu.turns.clock.busy_s == pytest.approx(simulation.billed_s(script))


def test_part_of_the_tail_can_be_left_unbilled() -> None:
    """As the original does it when asked to: then slow clients get more than their quota."""
    simulation = Simulation(SchedulerSettings(drop_tail_billing_percent=0.0))
    script = simulation.add(core=25, tail_s=0.3)
    simulation.run(MINUTE_S)
    assert simulation.billed_s(script) / MINUTE_S > 0.3


def test_without_a_tail_it_makes_no_difference_what_is_billed_of_it() -> None:
    simulation = Simulation(SchedulerSettings(drop_tail_billing_percent=50.0))
    script = simulation.add(core=25)
    simulation.run(MINUTE_S)
    assert 100 * simulation.billed_s(script) / MINUTE_S == pytest.approx(25, abs=1.0)


def test_no_hundredth_of_a_share_is_lost_in_the_long_run() -> None:
    simulation = Simulation()
    script = simulation.add(core=50)
    simulation.run(10 * MINUTE_S)
    assert simulation.billed_s(script) / (10 * MINUTE_S) == pytest.approx(0.5, rel=0.005)


def test_a_changed_limit_holds_from_then_on() -> None:
    simulation = Simulation()
    script = simulation.add(core=25)
    simulation.run(MINUTE_S)
    before = simulation.billed_s(script)
    simulation.perform(simulation.policy.limit_core(script.client, 50, simulation.now))
    simulation.run(MINUTE_S)
    assert 100 * (simulation.billed_s(script) - before) / MINUTE_S == pytest.approx(50, abs=1)
    simulation.perform(simulation.policy.limit_core(script.client, 100, simulation.now))
    before = simulation.billed_s(script)
    simulation.run(MINUTE_S)
    assert simulation.billed_s(script) - before == pytest.approx(MINUTE_S)


@pytest.mark.parametrize("changes_every_s", [0.5, 1.0, 3.0])
def test_a_changed_limit_keeps_the_debt(changes_every_s: float) -> None:
    """A client that could cancel its debt by a change of quota would have more than both quotas."""
    simulation = Simulation()
    script = simulation.add(core=25, tail_s=1.0)
    for step in range(round(2 * MINUTE_S / changes_every_s)):
        simulation.perform(simulation.policy.limit_core(script.client, 25 + step % 2, simulation.now))
        simulation.run(changes_every_s)
    assert simulation.billed_s(script) / (2 * MINUTE_S) == pytest.approx(0.255, abs=0.015)


@pytest.mark.parametrize(
    ("spent", "waited", "at_once"),
    [(True, 0.5, False), (False, 0.5, True), (True, 1.01, True)],
    ids=["spent", "released before", "refilled"],
)
def test_a_client_whose_quota_was_spent_waits_for_a_full_refill_however_late_it_asks(
    spent: bool, waited: float, at_once: bool
) -> None:
    """Else it would get the GPU again for a moment, time after time. One that released before has its rest at once."""
    simulation = Simulation()
    script = simulation.add(core=25)
    script.obeys = False
    bucket = script.client.quota.bucket
    assert bucket is not None
    left_s = bucket.spent_after_s(1)
    assert left_s is not None
    simulation.run(left_s + 0.001 if spent else left_s / 2)
    assert (script.received[-1] is MessageType.DROP_LOCK) is spent
    simulation.perform(simulation.policy.release(script.client, simulation.now))
    simulation.run((bucket.refilled_s() - simulation.now) * waited)
    asked_s, turns = simulation.now, script.received.count(MessageType.LOCK_OK)
    simulation.perform(simulation.policy.request(script.client, asked_s))
    assert script.received.count(MessageType.LOCK_OK) == turns + at_once
    simulation.run(max(0.0, bucket.refilled_s() - asked_s) + 0.001)
    assert script.received.count(MessageType.LOCK_OK) == turns + 1
