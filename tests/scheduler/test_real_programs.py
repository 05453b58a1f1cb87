"""The policy with real programs, as recorded on an H200 (real_shapes.json), in simulated time.

The driver alone is the measure: with the scheduler, the sum of progress over any set is at least 0.99 of it, from the
first second on. Owners are fair, loops that gain by turns take turns, and pauses for looks stay within their budget.
"""

import random
from itertools import pairwise

import pytest

from gpucommons.model.gpu import DeviceActivity
from gpucommons.scheduler.corun.coruns import Way
from gpucommons.scheduler.corun.facts import MAX_SAMPLES
from scheduler.gpu_models import Kind, RealModel
from scheduler.phased import Job, PhasedSimulation, ReadSimulation, Stage
from tiers import in_long_tier

LONG = pytest.mark.long
FOREVER = 1e9
MINUTE_S = 60.0
SETS = [
    "train+train", "train+conv", "train+small", "train+loader", "train+serve", "train+burst", "serve+serve",
    "small+loader", "loop+loop", "queue+queue", "train+loop", "loop+serve", "train+train+serve", "loop+small",
    "train+conv+serve+burst", "small+small+small", "conv+conv+loader",
]  # fmt: skip
LIGHT = {"small", "loader", "serve", "burst"}


def start_all(
    simulation: PhasedSimulation, kinds: list[Kind], owners: list[str] | None = None, apart_s: float = 0.0
) -> list[Job]:
    jobs = []
    for kind, owner in zip(kinds, owners or ["ann"] * len(kinds), strict=True):
        jobs.append(simulation.start([(FOREVER, kind)], owner=owner))
        simulation.run(apart_s)
    return jobs


def over_driver(simulation: PhasedSimulation, jobs: list[Job], kinds: list[Kind], seconds: float) -> float:
    rates = simulation.play(seconds)
    return sum(rates[job.client.id] for job in jobs) / sum(simulation.model.progress(kinds))


@pytest.mark.parametrize("apart_s", [0.0, pytest.param(7.0, marks=LONG)], ids=["at once", "one after another"])
@pytest.mark.parametrize("owners", [pytest.param("one owner", marks=LONG), "an owner each"])
@pytest.mark.parametrize("text", SETS)
def test_no_set_of_real_programs_is_slower_than_under_the_driver(text: str, owners: str, apart_s: float) -> None:
    kinds: list[Kind] = list(text.split("+"))
    simulation = PhasedSimulation(RealModel())
    names = None if owners == "one owner" else [f"uid:{number}" for number in range(len(kinds))]
    jobs = start_all(simulation, kinds, names, apart_s)
    assert over_driver(simulation, jobs, kinds, MINUTE_S) >= 0.99
    assert over_driver(simulation, jobs, kinds, 2 * MINUTE_S) >= 0.993


@pytest.mark.parametrize("begin_s", [0.0, *(pytest.param(begin_s, marks=LONG) for begin_s in (0.7, 1.6, 2.3, 3.1))])
@pytest.mark.parametrize("text", ["train+serve", "train+burst", "train+small", "train+train+serve", "loop+small"])
def test_a_light_program_is_paused_for_no_more_than_one_look(text: str, begin_s: float) -> None:
    """Whether the first look finds it busy or not: the recorded traces begin at another row each time."""
    kinds: list[Kind] = list(text.split("+"))
    simulation = PhasedSimulation(RealModel())
    simulation.run(begin_s)
    jobs = start_all(simulation, kinds, [f"uid:{number}" for number in range(len(kinds))])
    simulation.run(5 * MINUTE_S)
    for job, kind in zip(jobs, kinds, strict=True):
        if kind in LIGHT:
            assert job.paused_s <= 0.5
            assert job.stops <= 1


@pytest.mark.parametrize("apart_s", [0.0, 5.0])
def test_three_trainers_of_one_user_and_one_of_another(apart_s: float) -> None:
    simulation = PhasedSimulation(RealModel())
    jobs = start_all(simulation, ["train"] * 4, ["ann", "ann", "ann", "bob"], apart_s)
    rates = simulation.play(MINUTE_S)
    found = [rates[job.client.id] for job in jobs]
    assert found[3] == pytest.approx(0.5, abs=0.03)
    assert sum(found) >= 0.97
    assert simulation.gpu.phases.current is not None
    assert simulation.gpu.phases.current.cause == "fairness"


def test_a_program_that_the_driver_starves_next_to_another_owners_has_its_share() -> None:
    """A loop with synchronisations has 0.11 next to a trainer."""
    simulation = PhasedSimulation(RealModel())
    _, loop = start_all(simulation, ["train", "loop"], ["ann", "bob"])
    simulation.run(10.0)
    assert simulation.play(40.0)[loop.client.id] >= 0.45


@pytest.mark.parametrize("owners", [["ann", "ann"], ["ann", "bob"]])
def test_loops_that_gain_by_turns_take_turns(owners: list[str]) -> None:
    """From the first minute on: the verdict comes within five seconds of their start."""
    simulation = PhasedSimulation(RealModel())
    jobs = start_all(simulation, ["loop", "loop"], owners)
    simulation.run(5.2)
    assert simulation.gpu.phases.current is not None
    assert simulation.gpu.phases.current.way is Way.TURNS
    assert sum(job.progress_s for job in jobs) >= 0.7 * 5.2
    rates = simulation.play(2 * MINUTE_S)
    assert sum(rates.values()) >= 0.97
    assert min(rates[job.client.id] for job in jobs) >= 0.47


def test_programs_that_work_when_the_scheduler_is_switched_on_take_turns_within_three_seconds() -> None:
    """What they use is known by then."""
    simulation = PhasedSimulation(RealModel())
    simulation.perform(simulation.policy.switch(False, simulation.now))
    jobs = start_all(simulation, ["loop", "loop"])
    simulation.run(10.0)
    simulation.perform(simulation.policy.switch(True, simulation.now))
    for job in jobs:
        simulation.perform(simulation.policy.rejoin(job.client, simulation.now))
    rates = simulation.play(45.0)
    assert sum(rates.values()) >= 0.97


def test_a_program_that_is_idle_when_the_scheduler_is_switched_off_is_not_light() -> None:
    """Its work had just ended, and it had not rested yet: its next work counts."""
    simulation = PhasedSimulation(RealModel())
    (trainer,) = start_all(simulation, ["train"])
    simulation.run(5.0)
    coruns = simulation.gpu.phases.coruns
    assert coruns.is_light(trainer.client.id) is False
    for _ in range(MAX_SAMPLES // 2):
        coruns.record_activity((trainer.client.id,), DeviceActivity(0.0, busy=0.0), simulation.now)
    assert coruns.is_light(trainer.client.id)
    simulation.perform(simulation.policy.switch(False, simulation.now))
    assert coruns.is_light(trainer.client.id) is False


def test_a_loop_that_worked_while_a_light_program_rested_is_not_light() -> None:
    """The agent lets an idle program rest after 8 s. Until then it competes, and uses nothing."""
    simulation = PhasedSimulation(RealModel(), rests_s=8.0)
    simulation.start([(6.0, "loader"), (FOREVER, None)])
    simulation.run(6.0)
    loop = simulation.start([(2.0, "loop"), (58.0, None), (FOREVER, "loop")])
    simulation.run(2.0)
    assert simulation.gpu.phases.coruns.is_light(loop.client.id) is False
    simulation.run(58.0)
    start_all(simulation, ["loop"])
    assert sum(simulation.play(MINUTE_S).values()) >= 0.97


def test_a_program_that_was_taken_to_be_light_is_seen_again_where_it_has_an_equal_part() -> None:
    simulation = PhasedSimulation(RealModel())
    first, _ = start_all(simulation, ["loop", "loop"])
    simulation.run(1.2)
    for _ in range(MAX_SAMPLES):
        simulation.gpu.phases.coruns.record_activity((first.client.id,), DeviceActivity(0.3, busy=0.4), simulation.now)
    assert simulation.gpu.phases.coruns.is_light(first.client.id)
    simulation.run(10.0)
    assert sum(simulation.play(MINUTE_S).values()) >= 0.97


@pytest.mark.parametrize("answer_s", [0.006, 0.04])
def test_measurements_count_that_come_some_milliseconds_after_the_phase(answer_s: float) -> None:
    """The driver may serve another call first. A look that does not count pauses programs for nothing."""
    simulation = PhasedSimulation(RealModel(), answer_s=answer_s)
    jobs = start_all(simulation, ["loop", "loop"])
    assert over_driver(simulation, jobs, ["loop", "loop"], MINUTE_S) >= 1.3
    for job in jobs:
        check_budget(job)


def test_a_phase_does_not_wait_for_a_measurement_that_never_comes() -> None:
    simulation = PhasedSimulation(RealModel(), answer_s=FOREVER)
    jobs = start_all(simulation, ["train"] * 4, ["ann", "ann", "ann", "bob"])
    simulation.run(10.0)
    rates = simulation.play(MINUTE_S)
    assert rates[jobs[3].client.id] == pytest.approx(0.5, abs=0.03)
    for job in jobs:
        check_budget(job)


@pytest.mark.long
def test_noise_does_not_revoke_a_verdict() -> None:
    """Two trainers for half an hour: each is paused a handful of times, not once a minute."""
    simulation = PhasedSimulation(RealModel())
    jobs = start_all(simulation, ["train", "conv"])
    simulation.run(30 * MINUTE_S)
    assert max(job.stops for job in jobs) <= 6


@pytest.mark.long
def test_a_light_program_that_becomes_a_trainer_shares_fairly() -> None:
    simulation = PhasedSimulation(RealModel())
    start_all(simulation, ["loop"], ["ann"])
    changing = simulation.start([(60.0, "burst"), (FOREVER, "loop")], owner="bob")
    simulation.run(60.0)
    assert changing.paused_s <= 0.5
    # It has to be seen alone twice, and the other program may be paused for one look a minute.
    simulation.run(180.0)
    assert simulation.play(MINUTE_S)[changing.client.id] >= 0.45


def test_many_light_programs_of_one_owner_do_not_take_another_owners_share() -> None:
    simulation = PhasedSimulation(RealModel())
    trainer, *_ = start_all(simulation, ["train", *["loader"] * 6], ["ann", *["bob"] * 6])
    simulation.run(30.0)
    alone = simulation.model.progress(["train", *["loader"] * 6])[0]
    assert alone < 0.1
    assert simulation.play(MINUTE_S)[trainer.client.id] >= 0.42


# The budget of looks


def random_program(dice: random.Random) -> list[Stage]:
    """Steady, in bursts, in phases, a ramp, or a duty cycle of 1 to 100 %, for ten minutes."""
    heavy, any_kind = dice.choice(("train", "conv", "loop", "queue")), dice.choice((*sorted(LIGHT), "train", "loop"))
    shape = dice.choice(("steady", "bursts", "phases", "ramp", "duty"))
    if shape == "steady":
        return [(FOREVER, any_kind)]
    if shape == "bursts":
        return [
            stage for _ in range(120) for stage in ((dice.uniform(0.05, 2.0), heavy), (dice.uniform(0.5, 8.0), None))
        ]
    if shape == "phases":
        return [(dice.uniform(2.0, 60.0), dice.choice((heavy, any_kind, None))) for _ in range(40)]
    if shape == "ramp":
        return [(dice.uniform(1.0, 20.0), None), (dice.uniform(2.0, 20.0), "loader"), (FOREVER, heavy)]
    period_s, duty = dice.uniform(0.5, 20.0), dice.uniform(0.01, 1.0)
    return [stage for _ in range(150) for stage in ((period_s * duty, heavy), (period_s * (1 - duty) + 1e-3, None))]


@pytest.mark.parametrize("seed", [*range(2), *in_long_tier(*range(2, 24))])
def test_pauses_for_looks_stay_within_their_budget_whatever_programs_do(seed: int) -> None:
    dice = random.Random(seed)
    simulation = PhasedSimulation(RealModel(), seed)
    jobs = []
    for _ in range(dice.randint(2, 5)):
        jobs.append(simulation.start(random_program(dice), owner=dice.choice(("ann", "bob", "carol"))))
        simulation.run(dice.uniform(0.0, 10.0))
    simulation.run(4 * MINUTE_S)
    for job in jobs:
        check_budget(job)


def check_budget(job: Job) -> None:
    """At most 1 % of any minute after the first, and 3 % of the first, which begins when it first takes part."""
    if not job.looks:
        return
    first_end_s = job.joined_s + MINUTE_S
    assert within(job, job.joined_s) <= 0.03 * MINUTE_S + 1e-6
    for begin_s in [first_end_s, *(begin for begin, _ in job.looks), *(end - MINUTE_S for _, end in job.looks)]:
        if begin_s >= first_end_s:
            assert within(job, begin_s) <= 0.01 * MINUTE_S + 1e-6, (job.looks, begin_s)


def within(job: Job, begin_s: float) -> float:
    return sum(max(0.0, min(end, begin_s + MINUTE_S) - max(begin, begin_s)) for begin, end in job.looks)


# Owners whose programs come and go


def steady_share(
    every_s: float, life_s: float, kind: str = "train", soon_s: float = 0.2, within_job: bool = False
) -> float:
    """What a steady trainer has next to an owner that starts a program every so often; `within_job`: a further process
    of the one program that it has, as in a container or a login."""
    simulation = ReadSimulation(RealModel(), 1, soon_s)
    (steady,) = start_all(simulation, ["train"], ["ann"], 5.0)
    container = simulation.start([(FOREVER, kind)], owner="mallory") if within_job else None

    def spawn() -> tuple[()]:
        if container is not None:
            simulation.add_process(container)
        else:
            job = simulation.start([(FOREVER, kind)], owner="mallory")
            simulation.at(simulation.now + life_s, lambda: end(job))
        simulation.at(simulation.now + every_s, spawn)
        return ()

    def end(job: Job) -> tuple[()]:
        simulation.end(job)
        return ()

    simulation.at(simulation.now, spawn)
    simulation.run(10.0)
    before_s = steady.progress_s
    simulation.run(120.0)
    return (steady.progress_s - before_s) / 120.0


@pytest.mark.parametrize("kind", ["train", *in_long_tier("loop")])
@pytest.mark.parametrize("life_s", [1.0, 4.0, *(pytest.param(life_s, marks=LONG) for life_s in (2.0, 6.0, 10.0))])
@pytest.mark.parametrize("every_s", [0.5, 3.0, *in_long_tier(1.0, 2.0, 5.0)])
def test_an_owner_that_keeps_starting_programs_does_not_starve_another(
    every_s: float, life_s: float, kind: str
) -> None:
    """Sessions and leases of one user are programs of one owner."""
    assert steady_share(every_s, life_s, kind) >= 0.45


@pytest.mark.parametrize("kind", ["train", *in_long_tier("loop")])
@pytest.mark.parametrize("every_s", [0.5, 3.0, *in_long_tier(1.0, 2.0, 5.0)])
def test_an_owner_that_keeps_starting_processes_in_one_container_does_not_starve_another(
    every_s: float, kind: str
) -> None:
    """The program is known, its new process is not: it runs until a reading shows it, and its owner pays for that."""
    assert steady_share(every_s, float("inf"), kind, within_job=True) >= 0.45


@pytest.mark.long
@pytest.mark.parametrize("life_s", [1.0, 2.0, 4.0, 10.0])
@pytest.mark.parametrize("within_job", [False, True])
def test_readings_of_a_slow_driver_are_enough(life_s: float, within_job: bool) -> None:
    """It is read every 0.4 s while programs come and go."""
    assert steady_share(0.5, life_s, soon_s=0.4, within_job=within_job) >= 0.45


def test_a_look_is_never_longer_than_its_slack_allows() -> None:
    """Also where the paused programs stop slowly."""
    simulation = PhasedSimulation(RealModel())
    jobs = [simulation.start([(FOREVER, "train")], owner="ann", slow=0.5) for _ in range(3)]
    simulation.run(5 * MINUTE_S)
    looks = [look for job in jobs for look in job.looks]
    assert looks
    assert max(end - begin for begin, end in looks) <= 0.4 + 1e-6
    assert all(before[1] <= after[0] for job in jobs for before, after in pairwise(job.looks))


def test_a_lone_program_is_never_stopped() -> None:
    simulation = PhasedSimulation(RealModel())
    (lone,) = start_all(simulation, ["train"])
    rates = simulation.play(10 * MINUTE_S)
    assert lone.stops == 0
    assert rates[lone.client.id] == pytest.approx(1.0)
    assert simulation.gpu.phases.current is not None
    assert simulation.gpu.phases.current.way is Way.ALONE


def test_programs_that_took_turns_go_on_so_when_one_of_them_leaves() -> None:
    """One of three loops is stopped by its user: the others are not slower than before."""
    simulation = PhasedSimulation(RealModel())
    first, *others = start_all(simulation, ["loop"] * 3)
    simulation.run(MINUTE_S)
    simulation.end(first)
    rates = simulation.play(5.0)
    assert sum(rates[job.client.id] for job in others) >= 0.92
