"""Mode `auto` end to end: the driver reports activity, the scheduler sees each of two busy jobs alone, and leaves them
together: the device does no more in turns."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml
from gpucommons.scheduler.protocol.client import NvshareClient
from needs import needs_program
from parsing import parsed
from running import running_agent
from waiting import until

pytestmark = pytest.mark.long

DEMAND, WAY = "gpucommons_sharing_client_demand_ratio", "gpucommons_sharing_way_info"


# A second sample that comes 20 ms late is not used, and the looks at one client become rarer. On a busy machine that
# happens often, so each round has new clients, with a first look of their own.
ROUNDS, ROUND_S = 10, 15


def work(path: str, pod: str, enough: threading.Event) -> None:
    with NvshareClient(path, pod=pod, gpu="0") as client:
        while not enough.is_set():
            with client.turn():
                time.sleep(0.005)


@contextmanager
def working(path: str, name: str) -> Iterator[None]:
    """Two busy jobs."""
    enough = threading.Event()
    jobs = [threading.Thread(target=work, args=(path, f"{name}-{number}", enough)) for number in range(2)]
    for job in jobs:
        job.start()
    try:
        yield
    finally:
        enough.set()
        for job in jobs:
            job.join()


def test_two_busy_jobs_are_measured_and_run_together(tmp_path: Path) -> None:
    needs_program("cc")
    (tmp_path / "library").mkdir()
    driver = FakeNvml(tmp_path / "driver", build(tmp_path / "library"))
    driver.say("gpus 1", "recording busy")
    path = str(tmp_path / "s.sock")
    environment = {**driver.environment(), "GPUCOMMONS_SCHEDULER_SOCKET": path}
    with running_agent("--scheduler", environment=environment) as agent:
        until(lambda: "nvshare_nvml_up 1" in agent.get("/metrics")[1], "the driver answers")

        def reasons() -> set[str]:
            found = parsed(agent.get("/metrics/gpucommons")[1])
            known = [value for (name, _), value in found.items() if name == DEMAND and value > 0.9]
            return {dict(labels)["reason"] for name, labels in found if name == WAY} if len(known) == 2 else set()

        for number in range(ROUNDS):
            with working(path, f"job-{number}"), suppress(AssertionError):
                until(lambda: reasons() == {"turns_no_gain"}, "both are measured, and run together", ROUND_S)
                return
        pytest.fail(f"in {ROUNDS} rounds: not measured, or not together")
