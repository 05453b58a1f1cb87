"""Plain programs under a whole agent: they take turns, run together or mix both, as it is best for them.

One agent serves all GPUs. Each scenario has a GPU of its own, so that all of them pass at the same time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest

from fakes.gpu.account import Activity, Phase
from fakes.shared_gpu import MATMUL, Rates, SharedJob, SharedProgram
from shared_node import SharedNode, kill, shared_node
from waiting import until

pytestmark = pytest.mark.long

HEAVY, LIGHT = MATMUL[4096], MATMUL[512]
# An H200 reaches 0.97 in total and 0.47 each; a loaded machine switches late. By the driver alone it is 0.72 and 0.36.
TOTAL, EACH = 0.8, 0.38
MEASURED_S = 5.0
# A machine that stands still for a second spoils a window: one of these must show the due.
WINDOWS = 4
# nvshare's clients name no GPU: they are on the first.
CLIENTS, TURNS, TOGETHER, MIXED, LONE, SLOW, THIRD, RESTING, DYING, JOB = range(10)


@dataclass
class Seen:
    """What became of the scenarios: each job's progress over windows of MEASURED_S, and how each GPU was shared."""

    node: SharedNode
    jobs: dict[int, list[SharedJob]]
    unpaused_after_s: float
    joined_after_s: float
    dead_is_forgotten: bool
    windows: list[Rates] = field(default_factory=list)
    ways: dict[int, str] = field(default_factory=dict)

    def measure(self) -> None:
        before = self.node.shared.works()
        self.node.shared.let_pass(MEASURED_S)
        self.windows.append(self.node.shared.rates_since(before))
        self.ways = {gpu: self.node.way(gpu) for gpu in self.jobs}

    def window(self, gpu: int, is_due: Callable[[list[float]], bool]) -> list[float]:
        """The progress of this GPU's jobs in the first window in which each got its due, else in the last one."""
        for number in range(WINDOWS):
            if number == len(self.windows):
                self.measure()
            rates = [self.windows[number].of(job) for job in self.jobs[gpu]]
            if is_due(rates):
                break
        return rates

    def assert_due(self, gpu: int, *, total: float, each: float) -> None:
        def is_due(rates: list[float]) -> bool:
            return sum(rates) >= total and min(rates) >= each

        rates = self.window(gpu, is_due)
        assert is_due(rates), f"{rates}: expected {total} in total and {each} each"


@pytest.fixture(scope="module")
def node() -> Iterator[SharedNode]:
    with shared_node(10) as made:
        yield made.start_agent()


@pytest.fixture(scope="module")
def seen(node: SharedNode) -> Seen:
    def programs(gpu: int, *activities: Activity) -> list[SharedJob]:
        return [node.program(activity, gpu=gpu) for activity in activities]

    jobs: dict[int, list[SharedJob]] = {
        TURNS: programs(TURNS, HEAVY, HEAVY),
        TOGETHER: programs(TOGETHER, LIGHT, LIGHT),
        MIXED: programs(MIXED, HEAVY, LIGHT),
        LONE: programs(LONE, HEAVY),
        SLOW: [node.program(phases=[Phase(None, 3.0), Phase(HEAVY)], gpu=SLOW) for _ in range(2)],
        THIRD: programs(THIRD, HEAVY, HEAVY),
        RESTING: programs(RESTING, HEAVY),
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

    # Late, since nothing else is waited for while it rests.
    rests = node.program(phases=[Phase(HEAVY, 2.0), Phase(None, 6.0), Phase(HEAVY)], gpu=RESTING)
    jobs[RESTING].append(rests)
    node.wait_for(lambda: node.standing(rests) == "resting", "a program that loads data rests")
    begun_s = node.shared.works().now_s
    until(lambda: not rests.locked, "it is not paused")
    unpaused_after_s = node.shared.works().now_s - begun_s
    locks, done_s = rests.program.locks, rests.progress()
    until(lambda: rests.progress() > done_s, "it computes again")
    begun_s = node.shared.works().now_s
    until(lambda: rests.program.locks > locks, "it takes turns again")
    joined_after_s = node.shared.works().now_s - begun_s

    for gpu in (TURNS, SLOW, THIRD, RESTING, CLIENTS, JOB):
        node.wait_for(takes_turns[gpu], f"turns on GPU {gpu}")
    forgotten = node.client(doomed) is None and not (node.record / str(doomed.pid)).exists()
    found = Seen(node, jobs, unpaused_after_s, joined_after_s, forgotten)
    found.measure()
    return found


@pytest.mark.parametrize("gpu", [TURNS, SLOW, RESTING])
def test_two_that_fill_the_gpu_take_turns(seen: Seen, gpu: int) -> None:
    """From the start, after loading their data, and again after a rest."""
    assert seen.ways[gpu] == "turns"
    seen.assert_due(gpu, total=TOTAL, each=EACH)


def test_two_light_ones_run_together(seen: Seen) -> None:
    assert seen.ways[TOGETHER] == "together"
    seen.assert_due(TOGETHER, total=1.4, each=0.7)


def test_an_unequal_pair_mixes_both(seen: Seen) -> None:
    """Together the heavy one gets 0.40, in turns the sum is 1."""
    assert seen.ways[MIXED] == "mixed"
    seen.assert_due(MIXED, total=1.15, each=EACH)


def test_a_lone_program_is_never_paused(seen: Seen) -> None:
    (lone,) = seen.jobs[LONE]
    assert isinstance(lone, SharedProgram)
    assert lone.program.locks == 0
    assert seen.window(LONE, lambda rates: True) == pytest.approx([1.0])
    assert seen.ways[LONE] == "alone"


def test_a_newcomer_gets_its_share(seen: Seen) -> None:
    seen.assert_due(THIRD, total=TOTAL, each=0.2)


def test_an_idle_program_rests_unpaused_and_joins_again(seen: Seen) -> None:
    """It is resumed when it begins to rest: at once, but a loaded machine may need a moment. 2 s after it used the GPU
    again it is a client; on a loaded machine its turn may end later."""
    assert seen.unpaused_after_s < 2.0
    assert seen.joined_after_s < 6.0


def test_a_program_and_clients_of_nvshare_take_turns(seen: Seen) -> None:
    seen.assert_due(CLIENTS, total=0.8, each=0.2)


def test_stalls_spikes_and_deaths_leave_the_others_running(seen: Seen) -> None:
    """One of three was killed while it was paused; one stops and begins again all the time."""
    seen.assert_due(DYING, total=0.7, each=0.15)
    assert seen.dead_is_forgotten


def test_the_processes_of_a_job_pause_together(seen: Seen) -> None:
    """Also one that began while the job was paused: the job has the turn of one program."""
    other, first, second = seen.window(JOB, lambda rates: rates[0] >= EACH)
    assert other >= EACH, (other, first, second, seen.node.turns()["clients"])
    assert first == pytest.approx(second, abs=0.06)


def test_at_the_end_everything_runs(node: SharedNode, seen: Seen) -> None:
    """SIGTERM resumes every program before the agent exits."""
    programs = [job for jobs in seen.jobs.values() for job in jobs if isinstance(job, SharedProgram)]
    assert any(program.locked for program in programs)
    assert node.agent.stop() == 0
    assert not any(program.locked for program in programs)
    assert list(node.record.iterdir()) == []
