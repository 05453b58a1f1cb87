"""A driver that answers late, and a machine that is overloaded: the GPUs stay in the metrics, with their age."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml
from needs import needs_program
from parsing import parsed
from running import RunningAgent, running_agent
from waiting import until

pytestmark = pytest.mark.long

SOURCE = (("source", "nvml"),)
LAST_SUCCESS = ("gpucommons_source_last_success_timestamp_seconds", SOURCE)
DURATION = ("gpucommons_source_duration_seconds", SOURCE)
SNAPSHOTS = ("gpucommons_snapshots_total", ())


@contextmanager
def agent_with_gpus(directory: Path) -> Iterator[tuple[RunningAgent, FakeNvml]]:
    needs_program("cc")
    (directory / "library").mkdir()
    driver = FakeNvml(directory / "driver", build(directory / "library"))
    driver.say("gpus 2")
    with running_agent(environment=driver.environment()) as agent:
        until(lambda: gpus(agent) == 2, "two GPUs are served")
        try:
            yield agent, driver
        finally:
            driver.unsay("slow")


def gpus(agent: RunningAgent) -> int:
    """How many have their memory in the metrics."""
    return sum(1 for name, _ in parsed(agent.get("/metrics")[1]) if name == "DCGM_FI_DEV_FB_USED")


@pytest.mark.parametrize("read_s", [2.6, 5.0, 9.0])
def test_reads_that_take_seconds_are_served_with_their_age(tmp_path: Path, read_s: float) -> None:
    """The deadline is 2.5 s."""
    with agent_with_gpus(tmp_path) as (agent, driver):
        driver.say(f"slow nvmlDeviceGetTemperature {round(read_s * 1e6)} 0")
        until(lambda: parsed(agent.get("/metrics")[1])[DURATION] >= read_s, "the first slow read has ended")
        ages_s, reads = [], set[float]()
        while len(reads) < 3:
            found = parsed(agent.get("/metrics")[1])
            assert gpus(agent) == 2
            assert found[("gpucommons_source_up", SOURCE)] == 1
            reads.add(found[LAST_SUCCESS])
            ages_s.append(time.time() - found[LAST_SUCCESS])
            # One look at each snapshot.
            until(lambda: parsed(agent.get("/metrics")[1])[SNAPSHOTS] > found[SNAPSHOTS], "the next snapshot")  # noqa: B023
        assert max(ages_s) >= read_s - 1.5, "the metrics show how old the reading is"
        driver.unsay("slow")
        until(lambda: parsed(agent.get("/metrics")[1])[DURATION] < read_s / 2, "reads are quick again")


def test_a_load_of_twenty_does_not_take_the_gpus_from_the_metrics(tmp_path: Path) -> None:
    with agent_with_gpus(tmp_path) as (agent, _), ExitStack() as programs:
        # All compete with the agent for one processor.
        one = {min(os.sched_getaffinity(0))}
        os.sched_setaffinity(agent.process.pid, one)
        for thread in Path(f"/proc/{agent.process.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), one)
        for _ in range(20):
            busy = programs.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            programs.callback(busy.kill)
            os.sched_setaffinity(busy.pid, one)
        until_s, served, first = time.monotonic() + 15, 0, parsed(agent.get("/metrics")[1])
        while time.monotonic() < until_s:
            assert gpus(agent) == 2
            served += 1
        last = parsed(agent.get("/metrics")[1])
    assert served >= 3
    assert last[LAST_SUCCESS] > first[LAST_SUCCESS], "and they are read"
