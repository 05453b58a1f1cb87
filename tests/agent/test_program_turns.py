"""Plain programs under a whole agent: they run together, and owners with different numbers of programs take turns.

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

DENSE, HEAVY, LIGHT = MATMUL[8192], MATMUL[4096], MATMUL[512]
# Owners take turns that have different numbers of programs: one of root, two of a user.
USER = 20010
# Together, dense programs reach 0.96 in total; a loaded machine switches late.
TOTAL, EACH = 0.8, 0.17
MEASURED_S = 5.0
# A machine that stands still for a second spoils a window: one of these must show the due.
WINDOWS = 4
# nvshare's clients name no GPU: they are on the first.
CLIENTS, TURNS, TOGETHER, UNEQUAL, LONE, SLOW, THIRD, RESTING, DYING, JOB = range(10)


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
    def programs(gpu: int, *activities: Activity, uid: int | None = None) -> list[SharedJob]:
        return [node.program(activity, gpu=gpu, uid=uid) for activity in activities]

    def of_two_owners(gpu: int) -> list[SharedJob]:
        return [*programs(gpu, DENSE), *programs(gpu, DENSE, DENSE, uid=USER)]

    slow = [Phase(None, 3.0), Phase(DENSE)]
    jobs: dict[int, list[SharedJob]] = {
        TURNS: of_two_owners(TURNS),
        TOGETHER: programs(TOGETHER, LIGHT, LIGHT),
        UNEQUAL: [*programs(UNEQUAL, HEAVY), *programs(UNEQUAL, LIGHT, uid=USER)],
        LONE: programs(LONE, DENSE),
        SLOW: [node.program(phases=slow, gpu=SLOW, uid=uid) for uid in (None, USER, USER)],
        THIRD: of_two_owners(THIRD),
        RESTING: [*programs(RESTING, DENSE), *programs(RESTING, DENSE, uid=USER)],
        CLIENTS: [
            *programs(CLIENTS, DENSE),
            *(node.shared.nvshare_client(node.socket, DENSE, version=version) for version in (1, 2)),
        ],
        DYING: of_two_owners(DYING),
        JOB: programs(JOB, DENSE, DENSE),
    }
    doomed = node.program(DENSE, gpu=DYING, uid=USER)
    jobs[DYING].append(node.program(phases=[Phase(DENSE, 0.3), Phase(None, 0.4)], gpu=DYING))
    first = node.program(DENSE, gpu=JOB, uid=USER, session=False)
    jobs[JOB].append(first)
    takes_turns = {gpu: partial(lambda gpu: node.way(gpu) == "turns", gpu) for gpu in jobs}

    node.wait_for(takes_turns[THIRD], "the owners take turns")
    jobs[THIRD] += programs(THIRD, DENSE, uid=USER)
    until(lambda: doomed.locked, "a program is paused")
    kill(doomed.pid)
    until(lambda: first.locked, "a job is paused")
    jobs[JOB].append(node.program(DENSE, gpu=JOB, uid=USER, session=False))

    # Late, since nothing else is waited for while it rests.
    rests = node.program(phases=[Phase(DENSE, 8.0), Phase(None, 60.0), Phase(DENSE)], gpu=RESTING, uid=USER)
    jobs[RESTING].append(rests)
    until(lambda: node.standing(rests) == "resting", "a program that loads data rests", within_s=65)
    begun_s = node.shared.works().now_s
    until(lambda: not rests.locked, "it is not paused")
    unpaused_after_s = node.shared.works().now_s - begun_s
    locks, done_s = rests.program.locks, rests.progress()
    until(lambda: rests.progress() > done_s, "it computes again", within_s=100)
    begun_s = node.shared.works().now_s
    until(lambda: rests.program.locks > locks, "it takes turns again")
    joined_after_s = node.shared.works().now_s - begun_s

    for gpu in (TURNS, SLOW, THIRD, RESTING, JOB):
        node.wait_for(takes_turns[gpu], f"turns on GPU {gpu}")
    forgotten = node.client(doomed) is None and not (node.record / str(doomed.pid)).exists()
    found = Seen(node, jobs, unpaused_after_s, joined_after_s, forgotten)
    found.measure()
    return found


@pytest.mark.parametrize("gpu", [TURNS, SLOW, RESTING])
def test_owners_with_different_numbers_of_programs_take_turns(seen: Seen, gpu: int) -> None:
    """From the start, after loading their data, and again after a rest."""
    # They run together for some seconds after minutes, to see whether that is fair.
    assert seen.ways[gpu] in ("turns", "together")
    seen.assert_due(gpu, total=TOTAL, each=EACH)
    alone, *_ = seen.window(gpu, lambda rates: rates[0] >= 0.4)
    assert alone >= 0.4


def test_two_light_ones_run_together(seen: Seen) -> None:
    assert seen.ways[TOGETHER] == "together"
    seen.assert_due(TOGETHER, total=1.4, each=0.7)


def test_a_light_program_runs_at_all_times(seen: Seen) -> None:
    assert seen.ways[UNEQUAL] == "together"
    seen.assert_due(UNEQUAL, total=1.2, each=0.35)


def test_a_lone_program_is_never_paused(seen: Seen) -> None:
    (lone,) = seen.jobs[LONE]
    assert isinstance(lone, SharedProgram)
    assert lone.program.locks == 0
    assert seen.window(LONE, lambda rates: True) == pytest.approx([1.0])
    assert seen.ways[LONE] == "alone"


def test_a_newcomer_gets_its_share(seen: Seen) -> None:
    seen.assert_due(THIRD, total=TOTAL, each=0.1)


def test_an_idle_program_rests_unpaused_and_joins_again(seen: Seen) -> None:
    """It is resumed when it begins to rest: at once, but a loaded machine may need a moment. 2 s after it used the GPU
    again it is a client; on a loaded machine its turn may end later."""
    assert seen.unpaused_after_s < 2.0
    assert seen.joined_after_s < 12.0


def test_a_program_and_clients_of_nvshare_share(seen: Seen) -> None:
    seen.assert_due(CLIENTS, total=0.65, each=0.18)


def test_stalls_spikes_and_deaths_leave_the_others_running(seen: Seen) -> None:
    """One was killed while it was paused; one stops and begins again all the time."""
    seen.assert_due(DYING, total=0.7, each=0.1)
    assert seen.dead_is_forgotten


def test_the_processes_of_a_job_pause_together(seen: Seen) -> None:
    """Also one that began while the job was paused: the job has the turn of its owner."""
    *others, first, second = seen.window(JOB, lambda rates: min(rates) >= EACH)
    assert min(others) >= EACH, (others, first, second, seen.node.turns()["clients"])
    assert first == pytest.approx(second, abs=0.06)


def test_at_the_end_everything_runs(node: SharedNode, seen: Seen) -> None:
    """SIGTERM resumes every program before the agent exits."""
    programs = [job for jobs in seen.jobs.values() for job in jobs if isinstance(job, SharedProgram)]
    assert any(program.locked for program in programs)
    assert node.agent.stop() == 0
    assert not any(program.locked for program in programs)
    assert list(node.record.iterdir()) == []
