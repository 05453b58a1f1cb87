"""Plain programs under a whole agent: they take turns, run together or mix both, as it is best for them.

One agent serves all GPUs. Each scenario has a GPU of its own, so that all of them pass at the same time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from fakes.gpu.account import Activity, Phase
from fakes.shared_gpu import MATMUL, Rates, SharedJob, SharedProgram
from shared_node import SharedNode, kill, shared_node
from waiting import until

HEAVY, LIGHT = MATMUL[4096], MATMUL[512]
# An H200 reaches 0.97 in total and 0.47 each; a loaded machine switches late. By the driver alone it is 0.72 and 0.36.
TOTAL, EACH = 0.8, 0.38
MEASURED_S = 5.0
# nvshare's clients name no GPU: they are on the first.
CLIENTS, TURNS, TOGETHER, MIXED, LONE, SLOW, THIRD, RESTING, DYING, JOB = range(10)


@dataclass
class Seen:
    """What became of the scenarios: the progress of each job over MEASURED_S, and how each GPU was shared."""

    jobs: dict[int, list[SharedJob]]
    rates: Rates
    ways: dict[int, str]
    rested_unpaused: bool
    joined_after_s: float
    dead_is_forgotten: bool

    def of(self, gpu: int) -> list[float]:
        return [self.rates.of(job) for job in self.jobs[gpu]]


@pytest.fixture(scope="module")
def node() -> Iterator[SharedNode]:
    with shared_node(10) as made:
        yield made.start_agent()


@pytest.fixture(scope="module")
def seen(node: SharedNode) -> Seen:
    def programs(gpu: int, *activities: Activity) -> list[SharedJob]:
        return [node.program(activity, gpu=gpu) for activity in activities]

    rests = node.program(phases=[Phase(HEAVY, 2.0), Phase(None, 4.0), Phase(HEAVY)], gpu=RESTING)
    jobs: dict[int, list[SharedJob]] = {
        TURNS: programs(TURNS, HEAVY, HEAVY),
        TOGETHER: programs(TOGETHER, LIGHT, LIGHT),
        MIXED: programs(MIXED, HEAVY, LIGHT),
        LONE: programs(LONE, HEAVY),
        SLOW: [node.program(phases=[Phase(None, 3.0), Phase(HEAVY)], gpu=SLOW) for _ in range(2)],
        THIRD: programs(THIRD, HEAVY, HEAVY),
        RESTING: [*programs(RESTING, HEAVY), rests],
        CLIENTS: [
            *programs(CLIENTS, HEAVY),
            *(node.shared.nvshare_client(node.socket, HEAVY, version=version) for version in (1, 2)),
        ],
    }
    doomed, first = node.program(HEAVY, gpu=DYING), node.program(HEAVY, gpu=JOB, session=False)
    jobs[DYING] = [*programs(DYING, HEAVY), node.program(phases=[Phase(HEAVY, 0.3), Phase(None, 0.4)], gpu=DYING)]
    jobs[JOB] = [*programs(JOB, HEAVY), first]
    takes_turns = {gpu: partial(lambda gpu: node.way(gpu) == "turns", gpu) for gpu in jobs}

    node.wait_for(takes_turns[THIRD], "two take turns")
    jobs[THIRD] += programs(THIRD, HEAVY)
    until(lambda: doomed.locked, "a program is paused")
    kill(doomed.pid)
    until(lambda: first.locked, "a job is paused")
    first.program.fork()
    jobs[JOB].append(node.program(HEAVY, gpu=JOB, session=False))

    node.wait_for(lambda: node.standing(rests) == "resting", "a program that loads data rests")
    rested_unpaused = not rests.locked
    locks, done_s = rests.program.locks, rests.progress()
    until(lambda: rests.progress() > done_s, "it computes again")
    begun_s = node.shared.works().now_s
    until(lambda: rests.program.locks > locks, "it takes turns again")
    joined_after_s = node.shared.works().now_s - begun_s

    for gpu in (TURNS, SLOW, THIRD, RESTING, CLIENTS, JOB):
        node.wait_for(takes_turns[gpu], f"turns on GPU {gpu}")
    before = node.shared.works()
    node.shared.let_pass(MEASURED_S)
    rates = node.shared.rates_since(before)
    forgotten = node.client(doomed) is None and not (node.record / str(doomed.pid)).exists()
    return Seen(jobs, rates, {gpu: node.way(gpu) for gpu in jobs}, rested_unpaused, joined_after_s, forgotten)


@pytest.mark.parametrize("gpu", [TURNS, SLOW, RESTING])
def test_two_that_fill_the_gpu_take_turns(seen: Seen, gpu: int) -> None:
    """From the start, after loading their data, and again after a rest."""
    assert seen.ways[gpu] == "turns"
    assert sum(seen.of(gpu)) >= TOTAL, seen.of(gpu)
    assert min(seen.of(gpu)) >= EACH, seen.of(gpu)


def test_two_light_ones_run_together(seen: Seen) -> None:
    assert seen.ways[TOGETHER] == "together"
    assert min(seen.of(TOGETHER)) >= 0.7, seen.of(TOGETHER)


def test_an_unequal_pair_mixes_both(seen: Seen) -> None:
    """Together the heavy one gets 0.40, in turns the sum is 1."""
    assert seen.ways[MIXED] == "mixed"
    assert min(seen.of(MIXED)) >= EACH, seen.of(MIXED)
    assert sum(seen.of(MIXED)) >= 1.15, seen.of(MIXED)


def test_a_lone_program_is_never_paused(seen: Seen) -> None:
    (lone,) = seen.jobs[LONE]
    assert isinstance(lone, SharedProgram)
    assert lone.program.locks == 0
    assert seen.of(LONE) == pytest.approx([1.0])
    assert seen.ways[LONE] == "alone"


def test_a_newcomer_gets_its_share(seen: Seen) -> None:
    assert sum(seen.of(THIRD)) >= TOTAL, seen.of(THIRD)
    assert min(seen.of(THIRD)) >= 0.2, seen.of(THIRD)


def test_an_idle_program_rests_unpaused_and_joins_again(seen: Seen) -> None:
    """2 s after it used the GPU again it is a client; on a loaded machine its turn may end later."""
    assert seen.rested_unpaused
    assert seen.joined_after_s < 6.0


def test_a_program_and_clients_of_nvshare_take_turns(seen: Seen) -> None:
    assert sum(seen.of(CLIENTS)) >= 0.8, seen.of(CLIENTS)
    assert min(seen.of(CLIENTS)) >= 0.2, seen.of(CLIENTS)


def test_stalls_spikes_and_deaths_leave_the_others_running(seen: Seen) -> None:
    """One of three was killed while it was paused; one stops and begins again all the time."""
    steady, spiky = seen.of(DYING)
    assert steady + spiky >= 0.7
    assert spiky >= 0.15
    assert seen.dead_is_forgotten


def test_the_processes_of_a_job_pause_together(seen: Seen) -> None:
    """Also one that began while the job was paused: the job has the turn of one program."""
    other, first, second = seen.of(JOB)
    assert other >= EACH
    assert first == pytest.approx(second, abs=0.06)


def test_at_the_end_everything_runs(node: SharedNode, seen: Seen) -> None:
    """SIGTERM resumes every program before the agent exits."""
    programs = [job for jobs in seen.jobs.values() for job in jobs if isinstance(job, SharedProgram)]
    assert any(program.locked for program in programs)
    assert node.agent.stop() == 0
    assert not any(program.locked for program in programs)
    assert list(node.record.iterdir()) == []
