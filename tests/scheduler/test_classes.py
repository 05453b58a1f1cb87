"""Classes in the policy, in simulated time: latency is never paused and stays within its owner's share, background runs
while no other program uses the GPU and has its part of the time, and other owners keep their shares.
"""

import random

import pytest

from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.sharing import WaitReason
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.corun.coruns import PhaseCause
from gpucommons.scheduler.policy.evaluation import wait_reason
from gpucommons.scheduler.policy.state import ClientStanding
from gpucommons.scheduler.service.classes import Grouped, roles
from scheduler.gpu_models import Kind, RealModel
from scheduler.phased import Job, PhasedSimulation
from scheduler.test_real_programs import random_program

FOREVER = 1e9
MINUTE_S = 60.0
BATCH, LATENCY, BACKGROUND = SharingClass.BATCH, SharingClass.LATENCY, SharingClass.BACKGROUND


def start(simulation: PhasedSimulation, kind: Kind, sharing_class: SharingClass = BATCH, owner: str = "ann") -> Job:
    job = simulation.start([(FOREVER, kind)], owner=owner)
    simulation.perform(simulation.policy.set_class(job.client, sharing_class, simulation.now))
    return job


# Background


@pytest.mark.parametrize("owner", ["ann", "bob"])
def test_a_background_trainer_leaves_a_batch_trainer_its_speed_and_has_its_part(owner: str) -> None:
    simulation = PhasedSimulation(RealModel())
    batch, background = start(simulation, "train"), start(simulation, "train", BACKGROUND, owner)
    simulation.run(5.0)
    paused_s, begin_s = background.paused_s, simulation.now
    rates = simulation.play(2 * MINUTE_S)
    assert rates[batch.client.id] >= 0.97
    # It runs along for 2 % of the time, and is not paused for longer than the period of that.
    ran_s = simulation.now - begin_s - (background.paused_s - paused_s)
    assert ran_s / (simulation.now - begin_s) >= 0.019
    assert background.longest_pause_s <= 0.5 * simulation.policy.settings.max_pause_s
    assert rates[background.client.id] >= 0.008


def test_a_background_program_has_the_gpu_while_no_other_uses_it() -> None:
    simulation = PhasedSimulation(RealModel())
    background = start(simulation, "train", BACKGROUND)
    assert simulation.play(10.0)[background.client.id] == pytest.approx(1.0, abs=0.02)
    batch = simulation.start([(20.0, "train"), (20.0, None), (FOREVER, "train")], owner="bob")
    simulation.run(3.0)
    assert simulation.play(15.0)[batch.client.id] >= 0.97
    assert simulation.gpu.phases.current is not None
    assert simulation.gpu.phases.current.cause is PhaseCause.CLASS
    # It rests: within two seconds the other one runs.
    simulation.run(4.0)
    assert simulation.play(15.0)[background.client.id] >= 0.97


def test_a_background_program_is_paused_at_once_when_another_joins() -> None:
    simulation = PhasedSimulation(RealModel())
    background = start(simulation, "train", BACKGROUND)
    simulation.run(10.0)
    batch = start(simulation, "train", owner="bob")
    while batch.client.standing is ClientStanding.IDLE:
        simulation.run(0.01)
    # Its part of the period may come first.
    simulation.run(0.2)
    assert not background.runs
    reason = wait_reason(simulation.policy.terms, background.client, simulation.now)
    assert reason is WaitReason.BACKGROUND


def test_background_programs_share_what_is_left_among_each_other() -> None:
    simulation = PhasedSimulation(RealModel())
    first, second = start(simulation, "train", BACKGROUND), start(simulation, "train", BACKGROUND, "bob")
    rates = simulation.play(MINUTE_S)
    assert rates[first.client.id] == pytest.approx(rates[second.client.id], abs=0.05)
    assert sum(rates.values()) >= 0.95


# Latency


def test_a_latency_program_is_never_paused_and_the_trainers_of_two_owners_take_turns() -> None:
    simulation = PhasedSimulation(RealModel())
    server = start(simulation, "serve", LATENCY, "ann")
    trainers = [start(simulation, "train", owner=owner) for owner in ("bob", "bob", "carol")]
    simulation.run(10.0)
    rates = simulation.play(2 * MINUTE_S)
    assert server.stops == 0
    assert rates[trainers[2].client.id] >= 0.8 * (rates[trainers[0].client.id] + rates[trainers[1].client.id])


def test_an_owner_has_no_more_than_its_share_by_the_class() -> None:
    """A trainer of class latency counts as batch once its owner has had its share of a minute."""
    simulation = PhasedSimulation(RealModel())
    greedy = start(simulation, "train", LATENCY, "mallory")
    others = [start(simulation, "train", owner=owner) for owner in ("ann", "bob")]
    simulation.run(MINUTE_S)
    rates = simulation.play(5 * MINUTE_S)
    assert rates[greedy.client.id] <= 1 / 3 + 0.05
    assert min(rates[job.client.id] for job in others) >= 1 / 3 - 0.05


def test_time_for_which_others_are_held_back_is_charged() -> None:
    """A server that uses little of the GPU, and holds others back all the time."""
    simulation = PhasedSimulation(RealModel())
    server = start(simulation, "burst", LATENCY, "mallory")
    start(simulation, "train", owner="ann")

    def hold() -> tuple[()]:
        simulation.policy.record_holdback(server.client, 0.9, simulation.now)
        simulation.at(simulation.now + 1.0, hold)
        return ()

    simulation.at(simulation.now + 2.0, hold)
    simulation.run(20.0)
    assert simulation.gpu.phases.coruns.holds_back(server.client.id)
    simulation.run(30.0)
    assert not simulation.gpu.phases.coruns.holds_back(server.client.id)


def test_an_owner_alone_may_use_all_of_it() -> None:
    simulation = PhasedSimulation(RealModel())
    server, trainer = start(simulation, "train", LATENCY), start(simulation, "train")
    simulation.run(3 * MINUTE_S)
    assert server.stops == 0
    assert simulation.gpu.phases.coruns.holds_back(server.client.id)
    assert trainer.progress_s > 0.0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_the_invariants_hold_whatever_programs_do(seed: int) -> None:
    dice = random.Random(seed)
    simulation = PhasedSimulation(RealModel(), seed)
    jobs: list[Job] = []
    for _ in range(dice.randint(2, 5)):
        job = simulation.start(random_program(dice), owner=dice.choice(("ann", "bob", "carol")))
        simulation.perform(simulation.policy.set_class(job.client, dice.choice(list(SharingClass)), simulation.now))
        jobs.append(job)
        simulation.run(dice.uniform(0.0, 5.0))
    stops = {job.client.id: 0 for job in jobs}
    for _ in range(1200):
        guarded = [job for job in jobs if simulation.gpu.phases.coruns.holds_back(job.client.id)]
        for job in guarded:
            stops[job.client.id] = job.stops
        simulation.run(0.1)
        for job in guarded:
            # It was within its owner's share before and after: it was not paused in between.
            if simulation.gpu.phases.coruns.holds_back(job.client.id):
                assert job.stops == stops[job.client.id], "a program of class latency was paused"
        if dice.random() < 0.01:
            job, chosen = dice.choice(jobs), dice.choice(list(SharingClass))
            simulation.perform(simulation.policy.set_class(job.client, chosen, simulation.now))
    for job in jobs:
        assert job.longest_pause_s <= simulation.policy.settings.max_pause_s


# Which programs the pauser holds back


def held_back_for(server: Job, others: list[Job], now_s: float) -> set[int]:
    """The places of the others that yield while the server works."""
    programs = [Grouped(job.client, {ProcessKey(pid, 1)}) for pid, job in enumerate([server, *others], 100)]
    named = roles(programs, now_s)
    guards = {process.pid for process, of_process in named.items() if any(one.share_percent for one in of_process)}
    assert guards <= {100}
    return {process.pid - 101 for process in named if process.pid != 100}


def test_of_several_programs_one_stays_while_a_latency_program_works() -> None:
    simulation = PhasedSimulation(RealModel())
    server = start(simulation, "serve", LATENCY)
    others = [start(simulation, "train") for _ in range(3)]
    simulation.run(3.0)
    assert {job.client.standing for job in others} == {ClientStanding.RUNNING}
    begin_s = float(round(simulation.now))
    stay = [{0, 1, 2} - held_back_for(server, others, begin_s + at) for at in range(6)]
    assert sorted(map(tuple, stay[:3])) == [(0,), (1,), (2,)], "each for a second in turn"
    assert stay[3:] == stay[:3]


def test_owners_stay_in_turn_however_many_programs_they_have() -> None:
    simulation = PhasedSimulation(RealModel())
    server = start(simulation, "serve", LATENCY)
    others = [start(simulation, "small", owner=owner) for owner in ("bob", "bob", "bob", "carol")]
    simulation.run(1.0)
    assert {job.client.standing for job in others} == {ClientStanding.RUNNING}
    stays = [({0, 1, 2, 3} - held_back_for(server, others, float(at))).pop() for at in range(12)]
    assert stays.count(3) == 6
    assert all(stays.count(place) == 2 for place in range(3))


def test_a_single_program_is_held_back() -> None:
    simulation = PhasedSimulation(RealModel())
    server, trainer = start(simulation, "serve", LATENCY), start(simulation, "train")
    simulation.run(3.0)
    assert held_back_for(server, [trainer], simulation.now) == {0}
    batch, background = trainer, start(simulation, "train", BACKGROUND)
    simulation.run(3.0)
    assert held_back_for(server, [batch, background], simulation.now) == {0, 1}, "one of class background does not stay"
