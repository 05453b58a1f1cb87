"""Jobs that a batch system suspends: parked and stopped again, brought back when resumed, and never left stopped.

The batch system here does to real processes what Slurm does: it changes the state of the job, then sends SIGTSTP and,
later, SIGSTOP; SIGCONT to resume. tests/slurm/test_cluster.py has the real one.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fakes.cuda.control import FakeCuda, FakeProgram
from gpucommons.model.host import HostMemory
from gpucommons.pauser.backend import State
from gpucommons.pauser.stopped import FreezerMounts, why_stopped
from gpucommons.scheduler.parking.host import ParkHost, ThisHost
from gpucommons.scheduler.parking.suspended import BatchSystem, SuspendedState
from needs import needs_root
from parking.rig import ParkingRig
from parking.test_parking import SETTINGS, SIZE, SLOW
from pauser.conftest import cuda, cuda_files, record
from waiting import until

__all__ = ["cuda", "cuda_files", "record"]

JOB = "4711"


class Batch:
    """One job. `at_question` is called after each question with its number, before the answer reaches the agent."""

    def __init__(self, programs: Iterable[FakeProgram]) -> None:
        self.pids = [program.pid for program in programs]
        self.suspended: bool | None = False
        self.published: Mapping[str, SuspendedState] = {}
        self.questions = 0
        self.at_question: Callable[[int], None] = lambda _: None

    def system(self) -> BatchSystem:
        return BatchSystem(self._is_suspended, self._publish)

    def _is_suspended(self, job: str) -> bool | None:
        assert job == JOB
        answer = self.suspended
        self.questions += 1
        self.at_question(self.questions)
        return answer

    def _publish(self, states: Mapping[str, SuspendedState]) -> None:
        self.published = dict(states)

    @property
    def stage(self) -> str:
        return self.published[JOB].stage if JOB in self.published else ""

    def suspend(self, number: signal.Signals = signal.SIGTSTP) -> None:
        self.suspended = True
        self.send(number)

    def resume(self) -> None:
        self.suspended = False
        self.send(signal.SIGCONT)

    def send(self, number: signal.Signals) -> None:
        for pid in self.pids:
            os.kill(pid, number)


class Job:
    """A job of one or more processes on the fake GPU."""

    def __init__(self, cuda: FakeCuda, record: Path, processes: int = 1, host: ParkHost | None = None) -> None:
        self.programs = [cuda.start(SIZE) for _ in range(processes)]
        self.batch = Batch(self.programs)
        self.rig = ParkingRig(cuda, record, 8 * SIZE, SETTINGS, batch=self.batch.system(), host=host or ThisHost())
        self.rig.jobs = {program.pid: f"job:{JOB}@0" for program in self.programs}

    async def has_run(self) -> None:
        self.rig.read()
        for program in self.programs:
            await asyncio.to_thread(program.runs)

    def are_parked(self) -> bool:
        return all(program.state is State.CHECKPOINTED for program in self.programs)

    def are_stopped(self) -> bool:
        return all(why_stopped(program.pid) for program in self.programs)

    async def goes_on(self) -> None:
        await self.rig.until(lambda: all(p.state is State.RUNNING for p in self.programs), "its memory is back")
        for program in self.programs:
            await asyncio.to_thread(program.runs)
        assert not any(why_stopped(program.pid) for program in self.programs)
        await self.rig.until(lambda: not self.batch.published, "the next job reads nothing about it")


def test_a_suspended_job_is_parked_stopped_again_and_brought_back(cuda: FakeCuda, record: Path) -> None:
    job = Job(cuda, record, processes=2)

    async def body() -> None:
        await job.has_run()
        job.batch.suspend()
        await job.rig.until(lambda: job.batch.stage == "parked", "it is parked")
        assert job.are_parked()
        await job.rig.until(job.are_stopped, "it is stopped again")
        job.batch.send(signal.SIGSTOP)
        assert [program.gpu_bytes for program in job.programs] == [0, 0]
        (reading,) = job.rig.parking.reading().programs
        assert reading.cause == "suspended by Slurm"
        job.batch.resume()
        await job.goes_on()

    job.rig.run(body)
    assert list(record.iterdir()) == []


def test_the_second_signal_may_come_during_the_move(cuda: FakeCuda, record: Path) -> None:
    job = Job(cuda, record)
    job.programs[0].move_at(SLOW)

    async def body() -> None:
        await job.has_run()
        job.batch.suspend()
        await job.rig.until(lambda: job.rig.stage(job.programs[0]) == "parking", "the move has begun")
        for _ in range(5):
            job.batch.send(signal.SIGSTOP)
            await asyncio.sleep(0.05)
        await job.rig.until(lambda: job.batch.stage == "parked" and job.are_stopped(), "it is parked and stopped")
        job.batch.resume()
        await job.goes_on()

    job.rig.run(body)


def test_a_job_that_is_resumed_during_the_move_goes_on(cuda: FakeCuda, record: Path) -> None:
    job = Job(cuda, record)
    job.programs[0].move_at(SLOW)

    async def body() -> None:
        await job.has_run()
        job.batch.suspend(signal.SIGSTOP)
        await job.rig.until(lambda: job.rig.stage(job.programs[0]) == "parking", "the move has begun")
        job.batch.resume()
        await job.goes_on()

    job.rig.run(body)


def test_a_job_that_is_resumed_between_the_question_and_the_stop_goes_on(cuda: FakeCuda, record: Path) -> None:
    job = Job(cuda, record)

    def resume(question: int) -> None:
        # The first is asked when it is found stopped, the second after the move.
        if question == 2:
            job.batch.resume()

    job.batch.at_question = resume

    async def body() -> None:
        await job.has_run()
        job.batch.suspend(signal.SIGSTOP)
        await job.rig.until(lambda: job.batch.questions >= 3, "it is asked for again after the stop")
        await job.goes_on()

    job.rig.run(body)


def test_while_the_batch_system_does_not_answer_nothing_stays_stopped_by_us(cuda: FakeCuda, record: Path) -> None:
    job = Job(cuda, record)

    def fall_silent(question: int) -> None:
        if question == 1:
            job.batch.suspended = None

    job.batch.at_question = fall_silent

    async def body() -> None:
        await job.has_run()
        job.batch.suspended = True
        job.batch.send(signal.SIGSTOP)
        await job.rig.until(lambda: job.batch.questions >= 2, "it was moved")
        await job.goes_on()

    job.rig.run(body)


def test_a_process_that_its_user_stops_is_left_alone(cuda: FakeCuda, record: Path) -> None:
    job = Job(cuda, record)

    async def body() -> None:
        await job.has_run()
        job.batch.send(signal.SIGSTOP)
        await job.rig.until(lambda: job.batch.questions >= 1, "the batch system is asked")
        await asyncio.sleep(0.6)
        job.rig.read()
        assert job.are_stopped()
        assert job.programs[0].state is State.RUNNING
        assert job.batch.questions == 1, "it is not asked at every look"
        job.batch.send(signal.SIGCONT)
        await job.goes_on()

    job.rig.run(body)


class SmallHost(ThisHost):
    """A host without memory for anything."""

    def host_memory(self) -> HostMemory | None:
        return HostMemory(64 << 30, 1 << 30)


def test_without_host_memory_the_job_keeps_its_gpu_memory_and_the_next_job_reads_so(
    cuda: FakeCuda, record: Path
) -> None:
    job = Job(cuda, record, host=SmallHost())

    async def body() -> None:
        await job.has_run()
        job.batch.suspend(signal.SIGSTOP)
        await job.rig.until(lambda: job.batch.stage == "kept", "it is kept")
        sentence = job.batch.published[JOB].sentence
        assert sentence.startswith("suspended job 4711 keeps 0.0 GiB of GPU memory: it needs")
        assert "of host memory" in sentence
        assert job.are_stopped(), "it was never continued"
        assert job.programs[0].gpu_bytes == SIZE
        (kept,) = job.rig.parking.reading().kept
        assert (kept.job, kept.sentence) == (JOB, sentence)
        assert len(kept.gpu_uuids) == 1
        job.batch.resume()
        await job.goes_on()
        assert job.rig.parking.reading().kept == ()

    job.rig.run(body)


@pytest.mark.long
def test_a_job_that_cannot_be_moved_is_stopped_again(cuda: FakeCuda, record: Path) -> None:
    job = Job(cuda, record)
    cuda.say("fail checkpoint 801")

    async def body() -> None:
        await job.has_run()
        job.batch.suspend(signal.SIGSTOP)
        await job.rig.until(lambda: job.batch.stage == "kept", "it is kept")
        assert "managed memory" in job.batch.published[JOB].sentence
        await job.rig.until(job.are_stopped, "it is stopped again")
        job.batch.resume()
        await job.goes_on()

    job.rig.run(body)


@pytest.mark.long
def test_a_job_that_is_ended_while_it_is_parked_leaves_nothing(cuda: FakeCuda, record: Path) -> None:
    job = Job(cuda, record)

    async def body() -> None:
        await job.has_run()
        job.batch.suspend(signal.SIGSTOP)
        await job.rig.until(lambda: job.batch.stage == "parked", "it is parked")
        job.batch.send(signal.SIGKILL)
        await job.rig.until(lambda: not job.rig.parking.reading().programs, "it is forgotten")
        await job.rig.until(lambda: not job.batch.published, "the next job reads nothing about it")

    job.rig.run(body)
    until(lambda: list(record.iterdir()) == [], "the record is empty")


def test_when_the_agent_ends_after_the_stop_the_job_is_not_left_stopped(cuda: FakeCuda, record: Path) -> None:
    """The agent stops the job again, and ends before it has asked whether that was right."""
    job = Job(cuda, record)

    async def body() -> None:
        await job.has_run()
        process = job.programs[0].key
        job.batch.send(signal.SIGSTOP)
        assert (await job.rig.pauser.let_run(process)).failure is None
        assert not job.are_stopped()
        assert (await job.rig.pauser.stop_again(process)).failure is None
        until(job.are_stopped, "it is stopped")

    job.rig.run(body)
    until(lambda: not job.are_stopped(), "it was continued")


@contextmanager
def step_cgroup(programs: Iterable[FakeProgram]) -> Iterator[Path]:
    """The cgroup of a job's step, as Slurm with proctrack/cgroup makes it, with these programs in it."""
    needs_root()
    mounts = FreezerMounts()
    root = mounts.v1 or mounts.v2
    if root is None or not os.access(root, os.W_OK):
        pytest.skip("needs a freezer that can be written")
    job = root / f"slurm_test{os.getpid()}" / "uid_0" / f"job_{JOB}"
    step = job / "step_0"
    step.mkdir(parents=True)
    try:
        for program in programs:
            (step / "cgroup.procs").write_text(str(program.pid))
        yield step
    finally:
        freeze(step, False)
        for program in programs:
            with suppress(OSError):
                (root / "cgroup.procs").write_text(str(program.pid))
        for directory in (step, job, job.parent, job.parent.parent):
            with suppress(OSError):
                directory.rmdir()


def freeze(group: Path, frozen: bool) -> None:
    if (group / "freezer.state").exists():
        (group / "freezer.state").write_text("FROZEN" if frozen else "THAWED")
    else:
        (group / "cgroup.freeze").write_text("1" if frozen else "0")


@pytest.mark.long
@pytest.mark.parametrize("resumed_during_the_move", [False, True])
def test_a_job_whose_cgroup_slurm_freezes(cuda: FakeCuda, record: Path, resumed_during_the_move: bool) -> None:
    """With proctrack/cgroup: SIGTSTP first, 2 s later the freezer of each step; thawed and SIGCONT to resume."""
    job = Job(cuda, record, processes=2)
    for program in job.programs:
        program.move_at(SLOW // 2)

    async def body() -> None:
        await job.has_run()
        with step_cgroup(job.programs) as step:
            job.batch.suspend()
            await job.rig.until(lambda: job.rig.stage(job.programs[0]) == "parking", "the move has begun")
            await asyncio.sleep(0.2)
            freeze(step, True)
            if not resumed_during_the_move:
                await job.rig.until(lambda: job.batch.stage == "parked" and job.are_stopped(), "parked and stopped")
                assert why_stopped(job.programs[0].pid) == "its cgroup is frozen"
            job.batch.suspended = False
            freeze(step, False)
            job.batch.send(signal.SIGCONT)
            await job.goes_on()

    job.rig.run(body)
    assert list(record.iterdir()) == []
