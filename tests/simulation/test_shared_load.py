"""The jobs of the lab under a scheduler: a paused job does nothing, moving memory is not lost, runs are repeatable."""

import random

import pytest

from gpucommons.model.process_identity import ProcessKey
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.lab_jobs import JOBS, JobUse, LabJob
from gpucommons.simulation.shared_load import BACK_BYTES_S, FORGOTTEN_NOTEBOOK, OUT_BYTES_S, JobTotals, SharedLoad

FINETUNE, NOTEBOOK = JOBS[4], JOBS[5]


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def started() -> tuple[SharedLoad, Clock]:
    clock = Clock()
    return SharedLoad(clock), clock


def test_a_paused_job_makes_no_progress_and_shows_no_activity() -> None:
    load, clock = started()
    clock.now_s = 10.0
    load.pause(FINETUNE.key, True)
    before = load.totals(FINETUNE.key)
    assert before.progress > 0
    clock.now_s = 12.5
    assert load.totals(FINETUNE.key)[:5] == before[:5]
    assert load.use(FINETUNE, 12.5) == JobUse()
    assert load.use(NOTEBOOK, 12.5).busy > 0.5, "the other one has the GPU for itself"
    load.pause(FINETUNE.key, False)
    clock.now_s = 15.0
    assert load.totals(FINETUNE.key).progress > before.progress
    assert load.use(FINETUNE, 15.0).busy > 0.3


def rates(load: SharedLoad, clock: Clock, seconds: float) -> list[float]:
    """The progress per second of the two jobs on GPU 4."""
    before = [load.totals(job.key).progress for job in (FINETUNE, NOTEBOOK)]
    clock.now_s += seconds
    return [
        (load.totals(job.key).progress - was) / seconds for job, was in zip((FINETUNE, NOTEBOOK), before, strict=True)
    ]


def test_dense_jobs_are_slower_together_than_in_turns() -> None:
    load, clock = started()
    together = rates(load, clock, 20.0)
    assert sum(together) < 0.97
    load.pause(NOTEBOOK.key, True)
    assert rates(load, clock, 20.0) == [pytest.approx(1.0), 0.0]


def test_the_gpu_shows_what_its_jobs_do() -> None:
    load, clock = started()
    gpus = LabGpus(1.7e9, load=load)
    clock.now_s = 30.0
    free = gpus.at(30.0).gpus[4]
    for job in (FINETUNE, NOTEBOOK):
        load.pause(job.key, True)
    clock.now_s = 32.0
    paused = gpus.at(32.0).gpus[4]
    assert (free.readings.utilization_percent or 0) > 70
    assert paused.readings.utilization_percent == 0
    assert paused.gpm is not None
    assert (paused.gpm.graphics_ratio, paused.gpm.sm_ratio) == (0.0, 0.0)
    assert {process.sm_percent for process in paused.processes or ()} == {0}
    assert (paused.readings.power_watts or 0) < (free.readings.power_watts or 0) - 200


def test_memory_that_moves_is_on_the_gpu_or_on_the_host() -> None:
    load, clock = started()
    gpus = LabGpus(1.7e9, load=load)
    uuid = gpus.identities[4].uuid
    clock.now_s = 5.0
    whole, resident = load.memory_bytes(FINETUNE, 5.0), load.resident_bytes(FINETUNE, 5.0)
    free = gpus.free_bytes(uuid, 5.0)
    assert free is not None
    load.pause(FINETUNE.key, True)
    lasts_s = load.begin_move(FINETUNE.key, out=True)
    assert lasts_s == pytest.approx(whole / OUT_BYTES_S)
    clock.now_s = 5.0 + lasts_s / 2
    assert load.memory_bytes(FINETUNE, 5.0) == pytest.approx(whole / 2, abs=2)
    assert load.memory_bytes(FINETUNE, 5.0) + load.resident_bytes(FINETUNE, 5.0) == whole + resident
    clock.now_s = 5.0 + lasts_s
    load.end_move(FINETUNE.key)
    assert load.memory_bytes(FINETUNE, 5.0) == 0
    parked_free = gpus.free_bytes(uuid, 5.0)
    assert parked_free is not None
    assert parked_free > free + whole, "its context is gone as well"
    assert load.begin_move(FINETUNE.key, out=False) == pytest.approx(whole / BACK_BYTES_S, rel=0.02)
    load.end_move(FINETUNE.key)
    assert load.memory_bytes(FINETUNE, 5.0) == whole


def test_a_cell_of_a_parked_notebook_uses_the_cpu() -> None:
    load, clock = started()
    notebook = load.job(FORGOTTEN_NOTEBOOK)
    assert notebook is not None
    load.pause(FORGOTTEN_NOTEBOOK, True)
    clock.now_s = 99.0
    idle_s = load.cpu_seconds(notebook, 99.0)
    assert idle_s - load.cpu_seconds(notebook, 0.0) < 0.2
    clock.now_s = 101.0
    assert load.cpu_seconds(notebook, 101.0) - idle_s > 0.04
    assert load.use(notebook, 101.0) == JobUse()
    load.pause(FORGOTTEN_NOTEBOOK, False)
    clock.now_s = 103.0
    assert load.use(notebook, 103.0).busy > 0.5


def test_a_job_that_is_started_and_ends() -> None:
    load, clock = started()
    clock.now_s = 7.3
    job = LabJob(ProcessKey(5000, 1), "python sweep.py", 7, "compute", 9.0, 0.8, 0.8, 1.0, 2.0, 10)
    load.start(job)
    clock.now_s = 9.3
    assert load.use(job, 9.3).busy == pytest.approx(0.8, abs=0.07)
    load.end(job.key)
    assert load.job(job.key) is None
    assert load.use(job, 9.3) == JobUse()


def played(seed: int, reads: int) -> dict[ProcessKey, JobTotals]:
    """The same pauses at the same times, with reads at other times in between."""
    load, clock = started()
    dice, moments = random.Random(seed), random.Random(seed + 1000 * reads)
    when_s = 0.0
    for _ in range(200):
        before_s, when_s = when_s, when_s + dice.uniform(0.05, 0.6)
        for read_s in sorted(moments.uniform(before_s, when_s) for _ in range(reads)):
            clock.now_s = read_s
            load.use(FINETUNE, read_s)
        clock.now_s = when_s
        load.pause(dice.choice(JOBS).key, dice.random() < 0.5)
    return {job.key: load.totals(job.key) for job in JOBS}


@pytest.mark.parametrize("seed", range(3))
def test_the_same_pauses_give_the_same_run_whatever_is_read(seed: int) -> None:
    first, again, read = played(seed, 0), played(seed, 0), played(seed, 3)
    assert first == again
    for key, totals in first.items():
        assert read[key] == pytest.approx(totals)
