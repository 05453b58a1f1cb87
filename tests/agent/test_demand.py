"""Mode `auto` end to end: the driver reports activity, the scheduler sees each of two busy jobs alone, and leaves them
together: the device does no more in turns."""

import threading
import time
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


def work(path: str, pod: str, enough: threading.Event) -> None:
    with NvshareClient(path, pod=pod, gpu="0") as client:
        while not enough.is_set():
            with client.turn():
                time.sleep(0.005)


@pytest.mark.parametrize("cost_us", [0, 4000])
def test_two_busy_jobs_are_measured_and_run_together(tmp_path: Path, cost_us: int) -> None:
    """Also where GPM is slow; another call that is as slow moves to the slow lane, which shows that it was timed."""
    needs_program("cc")
    (tmp_path / "library").mkdir()
    driver = FakeNvml(tmp_path / "driver", build(tmp_path / "library"))
    driver.say("gpus 1", "recording busy")
    if cost_us:
        driver.say(f"slow nvmlGpmSampleGet {cost_us}", f"slow nvmlDeviceGetTotalEnergyConsumption {cost_us}")
    path = str(tmp_path / "s.sock")
    environment = {**driver.environment(), "GPUCOMMONS_SCHEDULER_SOCKET": path}
    with running_agent("--scheduler", environment=environment) as agent:
        sign = 'gpucommons_nvml_slow_call{uuid="' if cost_us else "nvshare_nvml_up 1"
        until(lambda: sign in agent.get("/metrics")[1], "the driver answers")
        enough = threading.Event()
        jobs = [threading.Thread(target=work, args=(path, f"job-{number}", enough)) for number in range(2)]
        for job in jobs:
            job.start()
        try:

            def reasons() -> set[str]:
                found = parsed(agent.get("/metrics/gpucommons")[1])
                known = [value for (name, _), value in found.items() if name == DEMAND and value > 0.9]
                return {dict(labels)["reason"] for name, labels in found if name == WAY} if len(known) == 2 else set()

            until(lambda: reasons() == {"turns_no_gain"}, "both are measured, and run together", within_s=120)
        finally:
            enough.set()
            for job in jobs:
                job.join()
