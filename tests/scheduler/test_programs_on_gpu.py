"""Unmodified torch programs on a real GPU under the agent: turns where they gain, together where that gains.

As root: the pauser pauses them through the driver. `python -m bench.programs` prints the table of all sets.
"""

import importlib.util
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from running import RunningAgent, command_process, running_agent
from scheduler.torch_programs import TorchProgram, rates, torch_programs
from waiting import until

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]
SETTLE_S, MEASURE_S, SOLO_S = 5.0, 10.0, 5.0


class Shared:
    """A running agent that shares programs, and what each size of product reaches alone."""

    def __init__(self, agent: RunningAgent, environment: dict[str, str], directory: Path) -> None:
        self.agent = agent
        self.directory = directory
        self._environment = environment
        self._solo: dict[int, float] = {}

    def scheduler(self, *arguments: str) -> str:
        answer = command_process("scheduler", *arguments, environment=self._environment)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def solo(self, size: int) -> float:
        if size not in self._solo:
            with torch_programs([size], self.directory) as programs:
                time.sleep(1.0)
                self._solo[size] = rates(programs, SOLO_S)[0]
        return self._solo[size]

    def over_solo(self, programs: list[TorchProgram], seconds: float = MEASURE_S) -> list[float]:
        found = rates(programs, seconds)
        return [rate / self.solo(program.size) for rate, program in zip(found, programs, strict=True)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    directory = tmp_path_factory.mktemp("programs")
    environment = {"GPUCOMMONS_SCHEDULER_SOCKET": str(directory / "scheduler.sock")}
    with running_agent("--scheduler", "--share", environment=environment) as agent:
        if "nvshare_nvml_up 1" not in agent.get("/metrics")[1]:
            pytest.skip("needs a real NVIDIA GPU")
        made = Shared(agent, environment, directory)
        for size in (4096, 512):
            made.solo(size)
        yield made


def test_dense_programs_take_turns_without_loss(shared: Shared) -> None:
    with torch_programs([4096, 4096], shared.directory) as programs:
        time.sleep(SETTLE_S)
        found = shared.over_solo(programs)
        assert sum(found) >= 0.97, found
        assert min(found) >= 0.47, found
        assert "in turns" in shared.scheduler("status")
        assert "gain over the driver's time-slicing" in shared.scheduler("status")


def test_light_programs_run_together(shared: Shared) -> None:
    with torch_programs([512, 512], shared.directory) as programs:
        shared.scheduler("off")
        time.sleep(1.0)
        driver = sum(shared.over_solo(programs))
        shared.scheduler("on")
        time.sleep(SETTLE_S)
        found = shared.over_solo(programs, 2 * MEASURE_S)
        assert sum(found) >= 0.95 * driver, (found, driver)


def test_no_program_of_an_unequal_pair_falls_below_its_share(shared: Shared) -> None:
    with torch_programs([4096, 512], shared.directory) as programs:
        time.sleep(SETTLE_S)
        found = shared.over_solo(programs, 2 * MEASURE_S)
        assert min(found) >= 0.45, found


def test_programs_that_begin_slowly_take_turns(shared: Shared) -> None:
    with torch_programs([4096, 4096], shared.directory, idle_s=8.0) as programs:
        time.sleep(10.0)
        found = shared.over_solo(programs, 2 * MEASURE_S)
        assert sum(found) >= 0.93, found


def test_a_lone_program_is_not_slowed_down_and_keeps_to_its_quota(shared: Shared) -> None:
    with torch_programs([4096], shared.directory) as programs:
        (lone,) = programs
        before = rates(programs, SOLO_S)[0]
        assert before >= 0.98 * shared.solo(4096)
        shared.scheduler("set-limit", f"pid:{lone.process.pid}", "--core", "25")
        time.sleep(2.0)
        assert rates(programs, 12.0)[0] / before == pytest.approx(0.25, abs=0.02)


def test_no_program_stays_paused_when_the_agent_is_killed(shared: Shared) -> None:
    with torch_programs([4096, 4096], shared.directory) as programs:
        time.sleep(SETTLE_S)
        shared.agent.process.kill()
        before = [program.products for program in programs]
        for program, products in zip(programs, before, strict=True):
            until(lambda program=program, products=products: program.products > products, "it runs", within_s=2)  # type: ignore[misc]
