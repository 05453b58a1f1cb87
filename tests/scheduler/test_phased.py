"""Programs and clients of nvshare that share a GPU by matrix products, over simulated time: no harm, fairness, quotas.

The driver alone is the measure: what a set of jobs does together. test_real_programs.py has recorded real programs.
"""

import random

import pytest

from gpucommons.scheduler.protocol.wire import MessageType
from gpucommons.simulation.lab_jobs import MATRIX_LOADS
from scheduler.gpu_models import Kind
from scheduler.phased import SEEN_S, PhasedSimulation, Stage
from tiers import in_long_tier

ALL_KINDS: list[Kind] = sorted(MATRIX_LOADS)
FOREVER = 1e9


def over_driver(simulation: PhasedSimulation, kinds: list[Kind], seconds: float) -> float:
    return sum(simulation.play(seconds).values()) / sum(simulation.model.progress(kinds))


@pytest.mark.parametrize("seed", [0, *in_long_tier(*range(1, 20))])
def test_no_set_of_jobs_is_slower_than_under_the_driver(seed: int) -> None:
    """From the first second on, for programs and clients, of one owner and of several."""
    dice = random.Random(seed)
    kinds = [dice.choice(ALL_KINDS) for _ in range(dice.randint(2, 6))]
    simulation = PhasedSimulation(dice.uniform(0.6, 1.0), seed)
    for kind in kinds:
        simulation.start([(FOREVER, kind)], program=dice.random() < 0.7, owner=dice.choice(("ann", "bob")))
    assert over_driver(simulation, kinds, 60.0) >= 0.98
    assert over_driver(simulation, kinds, 240.0) >= 0.985
    assert max(job.longest_pause_s for job in simulation.jobs) <= 10.0


@pytest.mark.parametrize(
    "kinds",
    [(4096, 4096), *in_long_tier((2048, 4096), (8192, 8192), (4096, 4096, 4096))],
    ids=str,
)
@pytest.mark.parametrize("program", [True, False], ids=["programs", "clients"])
def test_dense_jobs_that_gain_by_turns_take_turns(kinds: tuple[Kind, ...], program: bool) -> None:
    simulation = PhasedSimulation(0.7)
    jobs = [simulation.start([(FOREVER, kind)], program=program) for kind in kinds]
    simulation.run(180.0)
    rates = simulation.play(60.0)
    assert sum(rates.values()) >= 0.96
    assert min(rates[job.client.id] for job in jobs) >= 1.0 / len(kinds) - 0.03


@pytest.mark.parametrize(("slow", "least"), [(0.1, 0.9), (1.0, 0.84)])
def test_slow_pauses_are_not_to_the_cost_of_others(slow: float, least: float) -> None:
    """Pauses that wait 450 ms for a deep queue: of every job at times, or of one job at all times. A job that is always
    slow cannot be stopped for a look at another: they run together."""
    simulation = PhasedSimulation(0.7)
    jobs = [simulation.start([(FOREVER, 4096)], slow=slow if slow < 1.0 or number == 0 else 0.0) for number in range(3)]
    simulation.run(120.0)
    rates = simulation.play(60.0)
    assert sum(rates.values()) >= least
    assert min(rates[job.client.id] for job in jobs) >= least / 3 - 0.03


@pytest.mark.long
def test_failing_pauses_cost_little() -> None:
    """One in ten pauses fails: the program runs together with the next one for 250 ms."""
    for seed in range(4):
        simulation = PhasedSimulation(0.7, seed)
        jobs = [simulation.start([(FOREVER, 4096)], failing=0.1) for _ in range(2)]
        simulation.run(60.0)
        rates = simulation.play(60.0)
        assert min(rates[job.client.id] for job in jobs) >= 0.45
        assert sum(rates.values()) >= 0.94


def test_a_lone_program_is_never_stopped() -> None:
    simulation = PhasedSimulation(0.7)
    alone = simulation.start([(100.0, 4096), (20.0, None), (FOREVER, 8192)])
    simulation.start([(FOREVER, None)])
    simulation.run(300.0)
    assert alone.stops == 0
    assert MessageType.DROP_LOCK not in alone.received
    assert alone.progress_s == pytest.approx(280.0)


def test_a_program_left_alone_is_not_stopped_any_more() -> None:
    simulation = PhasedSimulation(0.7)
    stays = simulation.start([(FOREVER, 4096)])
    simulation.start([(60.0, 4096)])
    simulation.run(60.0 + SEEN_S + 0.5)
    stops = stays.stops
    assert stops > 20
    rates = simulation.play(60.0)
    assert stays.stops == stops
    assert rates[stays.client.id] == pytest.approx(1.0)


def test_slow_starters_take_turns() -> None:
    """Jobs that load their data first. Each may be paused for one look a minute until it is known what they do."""
    simulation = PhasedSimulation(0.6)
    stages: list[Stage] = [(8.0, 512), (FOREVER, 4096)]
    jobs = [simulation.start(stages), simulation.start(stages)]
    simulation.run(120.0)
    rates = simulation.play(30.0)
    assert sum(rates.values()) >= 0.97
    assert min(rates[job.client.id] for job in jobs) >= 0.47


# Quotas


@pytest.mark.long
@pytest.mark.parametrize("program", [True, False], ids=["program", "client"])
@pytest.mark.parametrize(
    ("limits", "expected"),
    [((25,), (25,)), ((25, 75), (25, 75)), ((10, 100), (10, 90)), ((25, 25, 100), (25, 25, 50))],
    ids=str,
)
def test_quotas_are_exact(limits: tuple[int, ...], expected: tuple[int, ...], program: bool) -> None:
    """In GPU time, of jobs that take turns: 25 % of a lone program, 25 + 75, 10 and an unlimited one."""
    simulation = PhasedSimulation(0.6)
    jobs = [simulation.start([(FOREVER, 4096)], core=limit, program=program) for limit in limits]
    simulation.run(180.0)
    rates = simulation.play(120.0)
    found = [100 * rates[job.client.id] for job in jobs]
    # A client whose slices are too short to be measured together runs together: it is billed exactly, and gains less.
    assert found == pytest.approx(expected, abs=1.0 if program else 3.0)


@pytest.mark.parametrize("limits", [(10, 100), (25, 100), (25, 25, 100)], ids=str)
def test_jobs_with_a_quota_are_measured_and_run_together_with_others(limits: tuple[int, ...]) -> None:
    """A slice of their quota is too short to be measured: what a measurement takes beyond it is repaid."""
    simulation = PhasedSimulation(0.7)
    jobs = [simulation.start([(FOREVER, 512)], core=limit) for limit in limits]
    simulation.run(20.0)
    billed_s = [job.client.turn.billed_s for job in jobs]
    rates = simulation.play(120.0)
    found = [100 * rates[job.client.id] for job in jobs]
    assert found[-1] >= 90.0, "the others do not stop for it"
    assert min(found[:-1]) >= 1.5 * limits[0], "time together is divided by the number of jobs that run"
    for job, before_s, limit in zip(jobs[:-1], billed_s, limits, strict=False):
        assert 100 * (job.client.turn.billed_s - before_s) / 120 == pytest.approx(limit, abs=1.0)
        assert job.longest_pause_s <= 10.0


# Owners


@pytest.mark.long
def test_twenty_programs_of_one_user_count_as_one() -> None:
    simulation = PhasedSimulation(0.6)
    many = [simulation.start([(FOREVER, 4096)], owner="ann") for _ in range(20)]
    single = simulation.start([(FOREVER, 4096)], owner="bob")
    simulation.run(60.0)
    rates = simulation.play(120.0)
    assert rates[single.client.id] >= 0.5 - 0.05
    # They run together in the turn of their owner, as the driver lets them.
    assert min(rates[job.client.id] for job in many) >= 0.5 / 20 * 0.6
    assert max(job.longest_pause_s for job in (*many, single)) <= 10.0


# Without SM activity


def test_without_a_meter_and_without_utilisation_all_run_together() -> None:
    simulation = PhasedSimulation(0.7, metered=False)
    jobs = [simulation.start([(FOREVER, 4096)]) for _ in range(3)]
    simulation.run(60.0)
    assert [job.stops for job in jobs] == [0, 0, 0]
