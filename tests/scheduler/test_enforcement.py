"""Enforcement with a real pauser and a fake driver: how long a pause lasts, and what ends it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from fakes.cuda.build import build_driver, build_program
from fakes.cuda.control import FakeCuda, FakeProgram
from gpucommons.model.leases import TrespassReport
from gpucommons.model.ownership import Workload
from gpucommons.pauser.backend import State
from gpucommons.pauser.client import Pauser
from gpucommons.scheduler.programs.jobs import DeviceUse, GpuUser, ProgramActivity
from gpucommons.scheduler.service.enforcement import Enforcement, EnforcementTerms
from needs import needs_program
from pauser.rig import settings
from running import command_process
from waiting import until

MAX_PAUSE_S, STALE_S = 2.0, 2.0
ASK_EVERY_S = 0.1


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    needs_program("cc")
    directory = tmp_path_factory.mktemp("cuda")
    return build_driver(directory / "driver"), build_program(directory / "program")


@pytest.fixture
def fake(tmp_path: Path, built: tuple[Path, Path]) -> Iterator[FakeCuda]:
    made = FakeCuda(tmp_path / "cuda", *built)
    yield made
    made.close()


def user(program: FakeProgram) -> GpuUser:
    use = DeviceUse("GPU-a", "compute", 2**30, ProgramActivity.ACTIVE)
    return GpuUser(program.pid, program.key, f"process:{program.pid}", (use,), Workload(uid=0, process_name="program"))


class Rig:
    """Reports the program as a trespasser for as long as `reports` is set."""

    def __init__(self, enforcement: Enforcement, pauser: Pauser, program: FakeProgram) -> None:
        self.enforcement, self.pauser, self.program = enforcement, pauser, program
        self.lease: str | None = "7"
        self.reports = True

    async def run(self) -> None:
        while True:
            if self.reports:
                leases = {} if self.lease is None else {self.program.key: frozenset({self.lease})}
                self.enforcement.update(TrespassReport(leases, monotonic()))
            await asyncio.sleep(ASK_EVERY_S)

    async def until(self, state: State) -> None:
        await asyncio.to_thread(until, lambda: self.program.state is state, f"it is {state.name}")

    async def stays(self, state: State, for_s: float) -> None:
        end_s = monotonic() + for_s
        while monotonic() < end_s:
            assert self.program.state is state
            await asyncio.sleep(0.02)

    def why(self) -> str:
        return self.enforcement.standing.spared.get(self.program.key, "")


def enforced(fake: FakeCuda, tmp_path: Path, body: Callable[[Rig], Awaitable[None]]) -> FakeProgram:
    program = fake.start(2**30)

    async def whole() -> None:
        pauser = Pauser(
            settings(fake, tmp_path / "paused", MAX_PAUSE_S),
            on_notice=lambda notice: enforcement.hear(notice),
            on_change=lambda: enforcement.pauser_changed(),
        )
        enforcement = Enforcement(pauser, EnforcementTerms(stale_after_s=STALE_S))
        await pauser.start()
        assert await pauser.wait_available(30)
        rig = Rig(enforcement, pauser, program)
        enforcement.see([user(program)])
        reporting = asyncio.create_task(rig.run())
        try:
            await body(rig)
        finally:
            reporting.cancel()
            await enforcement.stop()
            await pauser.stop()

    asyncio.run(whole())
    return program


def test_a_pause_outlasts_the_bound_of_a_turn_and_ends_with_the_lease(fake: FakeCuda, tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        await rig.until(State.LOCKED)
        await rig.stays(State.LOCKED, 2 * MAX_PAUSE_S)
        assert rig.enforcement.standing.paused == {rig.program.key}
        rig.lease = None
        await rig.until(State.RUNNING)
        rig.lease = "8"
        await rig.until(State.LOCKED)

    program = enforced(fake, tmp_path, body)
    assert program.state is State.RUNNING, "the end of the agent resumes it"


def test_without_reports_of_the_leases_it_is_resumed(fake: FakeCuda, tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        await rig.until(State.LOCKED)
        rig.reports = False
        await rig.until(State.RUNNING)
        await rig.stays(State.RUNNING, 1.0)
        rig.reports = True
        await rig.until(State.LOCKED)

    enforced(fake, tmp_path, body)


def test_what_cannot_be_paused_runs_and_the_reason_is_shown(fake: FakeCuda, tmp_path: Path) -> None:
    fake.say("fail lock 801")

    async def body(rig: Rig) -> None:
        await asyncio.to_thread(until, lambda: "cannot be paused: not supported" in rig.why(), "three failures")
        assert rig.program.state is State.RUNNING
        assert rig.enforcement.standing.paused == frozenset()
        locks = rig.program.locks
        await rig.stays(State.RUNNING, 1.0)
        assert rig.program.locks == locks, "it is left alone for a minute"

    enforced(fake, tmp_path, body)


@pytest.mark.long
def test_one_that_is_resumed_by_hand_runs_until_the_next_lease(fake: FakeCuda, tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        await rig.until(State.LOCKED)
        arguments = ("resume", "--pid", str(rig.program.pid), "--record", str(tmp_path / "paused"))
        done = await asyncio.to_thread(lambda: command_process(*arguments, environment=fake.environment()))
        assert done.returncode == 0, done.stdout + done.stderr
        await asyncio.to_thread(until, lambda: "by hand" in rig.why(), "it is noticed")
        await rig.stays(State.RUNNING, MAX_PAUSE_S)
        rig.lease = "8"
        await rig.until(State.LOCKED)

    enforced(fake, tmp_path, body)
