"""kill -9 of the agent, of the pauser and of all at random moments: every program runs again.

60 kills; PAUSER_KILLS=5000 makes it a long run.
"""

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from fakes.cuda.control import FakeCuda, FakeProgram
from gpucommons.pauser import cuda as cuda_calls
from gpucommons.pauser import release
from gpucommons.pauser.backend import Failure, State
from gpucommons.pauser.record import PauseRecord
from gpucommons.pauser.release import state_letter
from pauser.rig import environment, watchdog_of
from running import command_process
from waiting import until

pytestmark = pytest.mark.long

KILLS = int(os.environ.get("PAUSER_KILLS", "60"))
PROMISED_S = 2.0
AGENTS = Path(__file__).with_name("agents.py")


class World:
    """Agents that pause the programs without rest; one of them lives at a time."""

    def __init__(self, starter: "subprocess.Popen[str]", programs: list[FakeProgram]) -> None:
        self.starter = starter
        self.programs = programs
        self.took_s: defaultdict[str, list[float]] = defaultdict(list)
        self.start()

    def start(self) -> None:
        assert self.starter.stdin is not None
        assert self.starter.stdout is not None
        self.starter.stdin.write("\n")
        self.starter.stdin.flush()
        self.agent = int(self.starter.stdout.readline())

    def pauser(self) -> int | None:
        """The pid of the pauser, whatever it is doing; None between two."""
        try:
            return next((child.pid for child in psutil.Process(self.agent).children()), None)
        except psutil.NoSuchProcess:
            return None

    def busy(self) -> None:
        """Until programs are being paused, and then a random moment longer."""
        until(lambda: any(program.state is State.LOCKED for program in self.programs), "programs are paused")
        time.sleep(random.uniform(0, 0.02))

    def all_run(self, after: str) -> None:
        """Until all of them run, and how long that takes after what was done."""
        begun = time.monotonic()
        for program in self.programs:
            program.runs()
        self.took_s[after].append(time.monotonic() - begun)


@contextmanager
def world(cuda: FakeCuda, record: Path, programs: int = 3, max_pause_s: float = 10.0) -> Iterator[World]:
    started = [cuda.start() for _ in range(programs)]
    starter = subprocess.Popen(
        [sys.executable, str(AGENTS), str(record), str(max_pause_s), *(str(program.pid) for program in started)],
        env=environment(cuda),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    made = World(starter, started)
    try:
        yield made
    finally:
        pauser = made.pauser()
        kill(made.agent)
        if pauser is not None:
            kill(pauser)
        starter.kill()
        starter.communicate()


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def is_gone(pid: int) -> bool:
    """Nothing of it runs; its new parent may not have collected it yet."""
    return state_letter(pid) in ("", "Z")


def kill_agent(world: World) -> None:
    pauser = world.pauser()
    kill(world.agent)
    world.all_run("the agent is killed")
    until(lambda: pauser is None or is_gone(pauser), "the pauser has ended, too")
    world.all_run("the pauser has ended")
    assert all(program.state is State.RUNNING for program in world.programs)
    world.start()


def kill_pauser(world: World) -> None:
    if (pauser := world.pauser()) is not None:
        kill(pauser)
    world.all_run("the pauser is killed")


def kill_both(world: World) -> bool:
    """With the watchdog. Whether something was left paused."""
    pauser = world.pauser()
    both = [world.agent, pauser, None if pauser is None else watchdog_of(pauser)]
    random.shuffle(both)
    for pid in both:
        if pid is not None:
            kill(pid)
    until(lambda: all(pid is None or is_gone(pid) for pid in both), "both are gone")
    # A lock that was under way when its caller died is still carried out.
    until(lambda: not any(program.is_asked for program in world.programs), "the programs have settled")
    return any(program.state is State.LOCKED for program in world.programs)


def resumed_by_command(cuda: FakeCuda, record: Path) -> None:
    done = command_process("resume", "--all", "--record", str(record), environment=cuda.environment())
    assert done.returncode == 0, done.stdout + done.stderr


def resumed_here(cuda: FakeCuda, record: Path) -> None:
    """As the command does it, without a new interpreter."""
    calls = cuda_calls.load(str(cuda.library))
    assert not isinstance(calls, Failure)
    opened = PauseRecord.open_existing(record)
    if opened is not None:
        release.resume(opened, {"cuda": calls}, owned=opened.claim(5), within_s=5)
        opened.close()


def kill_and_look(cuda: FakeCuda, record: Path, kills: int) -> tuple[dict[str, list[float]], int]:
    """How long it took until all programs ran, by what was done, and how often killing both left something paused."""
    left_paused = 0
    with world(cuda, record) as made:
        for number in range(kills):
            made.busy()
            if number % 4 < 2:
                kill_pauser(made)
            elif number % 4 == 2:
                kill_agent(made)
            else:
                left_paused += kill_both(made)
                if number % 8 == 3:
                    (resumed_by_command if number % 32 == 3 else resumed_here)(cuda, record)
                    assert all(program.state is State.RUNNING for program in made.programs)
                    made.all_run("a person resumes all")
                    made.start()
                else:
                    made.start()
                    made.all_run("the next agent is started")
    return made.took_s, left_paused


def test_every_program_runs_again(cuda: FakeCuda, record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_DIR", str(cuda.directory))
    with ThreadPoolExecutor() as pool:
        worlds = [pool.submit(kill_and_look, cuda, record.with_name(name), KILLS // 2) for name in ("one", "two")]
        found = [one.result() for one in worlds]
    assert sum(left for _, left in found) > KILLS / 4 / 20, "the kills came while programs were paused"
    for after in found[0][0]:
        took_s = [seconds for times, _ in found for seconds in times[after]]
        # The median: on a busy machine a new interpreter may take its time.
        assert statistics.median(took_s) < PROMISED_S, (after, took_s)


def test_a_stopped_agent_keeps_nothing_paused(cuda: FakeCuda, record: Path) -> None:
    with world(cuda, record, max_pause_s=0.5) as made:
        for _ in range(3):
            made.busy()
            kill(made.agent, signal.SIGSTOP)
            made.all_run("the agent is stopped")
            kill(made.agent, signal.SIGCONT)
