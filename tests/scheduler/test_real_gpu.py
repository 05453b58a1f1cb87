"""On a real GPU with real torch jobs: turns where they gain, together where that gains, and no job starves."""

from collections.abc import Iterator

import pytest

from running import running_agent
from scheduler.gpu_jobs import run_jobs

pytestmark = pytest.mark.gpu
pytest.importorskip("torch")

SOLO_S, PAIR_S, UNCOORDINATED_S = 12, 60, 15


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket of a running agent, whose GPU source measures the utilisation for the scheduler."""
    path = str(tmp_path_factory.mktemp("nvshare") / "scheduler.sock")
    with running_agent("--scheduler", environment={"GPUCOMMONS_SCHEDULER_SOCKET": path}) as agent:
        if agent.get("/metrics")[1].find("nvshare_nvml_up 1") < 0:
            pytest.skip("needs a real NVIDIA GPU")
        yield path


def shares(scheduler: str, sizes: list[int], seconds: float) -> list[float]:
    """Each job's throughput with the others divided by its throughput alone, both under the scheduler."""
    alone = {size: run_jobs(scheduler, [size], SOLO_S)[0] for size in dict.fromkeys(sizes)}
    together = run_jobs(scheduler, sizes, seconds)
    return [rate / alone[size] for rate, size in zip(together, sizes, strict=True)]


def test_two_compute_bound_jobs_lose_next_to_nothing(scheduler: str) -> None:
    found = shares(scheduler, [4096, 4096], PAIR_S)
    assert sum(found) >= 0.97, found
    assert min(found) >= 0.45, found


def test_two_launch_bound_jobs_run_together(scheduler: str) -> None:
    # They wait for the CPU, whose speed moves with what else the machine does: measured before and after.
    before = sum(run_jobs("none", [512, 512], UNCOORDINATED_S))
    coordinated = run_jobs(scheduler, [512, 512], PAIR_S)
    uncoordinated = (before + sum(run_jobs("none", [512, 512], UNCOORDINATED_S))) / 2
    assert sum(coordinated) >= 0.95 * uncoordinated, (coordinated, uncoordinated)
    alone = run_jobs(scheduler, [512], SOLO_S)[0]
    assert min(coordinated) >= 0.45 * alone, (coordinated, alone)


def test_an_unequal_pair_leaves_no_job_behind(scheduler: str) -> None:
    found = shares(scheduler, [4096, 512], PAIR_S)
    assert min(found) >= 0.45, found
