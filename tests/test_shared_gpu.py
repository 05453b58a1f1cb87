"""The fake GPUs that programs share: they behave as measured on an H200, and what NVML reports is what they do."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.gpu.account import Activity, Phase
from fakes.shared_gpu import MATMUL, SharedGpu, SharedProgram
from gpucommons.model.gpu import ActivityMeasurement, Gpu, GpuActivity, GpuProcess
from gpucommons.pauser.client import Pauser, PauserSettings
from gpucommons.sources.nvml.activity_meter import ActivityMeter
from gpucommons.sources.nvml.gpm import GpmAccess
from gpucommons.sources.nvml.source import NvmlReader
from needs import needs_root
from open_folder import open_folder
from parsing import parsed
from pauser.rig import environment, pausing
from running import RunningAgent, running_agent
from scheduler.served import serving
from waiting import until

GIB = 2**30
HEAVY, LIGHT = MATMUL[4096], MATMUL[512]


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedGpu]:
    with SharedGpu(tmp_path, gpus=2) as made:
        yield made


class Reader:
    """The agent's reader of the GPUs, in this process."""

    def __init__(self, shared: SharedGpu) -> None:
        shared.nvml.load_here()
        self.access = GpmAccess()
        self.reader = NvmlReader(gpm_access=self.access)

    def gpu(self, index: int = 0) -> Gpu:
        return self.reader.read().gpus[index]

    def process(self, pid: int) -> GpuProcess | None:
        return next((row for row in self.gpu().processes or () if row.pid == pid), None)


@pytest.fixture
def reader(shared: SharedGpu) -> Iterator[Reader]:
    made = Reader(shared)
    yield made
    made.reader.close()


def pauser_settings(shared: SharedGpu, directory: Path) -> PauserSettings:
    return PauserSettings(record=directory / "run" / "paused", environment={**environment(), **shared.environment()})


async def lock(pauser: Pauser, program: SharedProgram) -> None:
    assert (await pauser.lock(program.key, timeout_ms=20_000)).failure is None
    assert program.locked


async def unlock(pauser: Pauser, program: SharedProgram) -> None:
    assert (await pauser.unlock(program.key)).failure is None
    assert not program.locked


# -- progress


def test_a_program_alone_does_all_of_its_work(shared: SharedGpu) -> None:
    program = shared.program(HEAVY)
    before = shared.works()
    shared.let_pass(0.2)
    assert shared.rates_since(before).of(program) == pytest.approx(1)


@pytest.mark.parametrize(
    ("first", "second", "progress"),
    [
        (4096, 4096, (0.36, 0.36)),
        (8192, 8192, (0.48, 0.48)),
        (512, 4096, (1.02, 0.40)),
        (1536, 4096, (0.65, 0.34)),
    ],
)
def test_two_programs_together_get_what_was_measured(
    shared: SharedGpu, first: int, second: int, progress: tuple[float, float]
) -> None:
    programs = shared.program(MATMUL[first]), shared.program(MATMUL[second])
    before = shared.works()
    shared.let_pass(0.1)
    rates = shared.rates_since(before)
    assert [rates.of(program) for program in programs] == pytest.approx(progress)


def test_other_sets_are_estimated(shared: SharedGpu) -> None:
    """Three that fill the GPU get less than a third each; those that barely use it hardly hinder each other."""
    heavy = [shared.program(HEAVY) for _ in range(3)]
    light = [shared.program(Activity(0.03), gpu=1) for _ in range(3)]
    before = shared.works()
    shared.let_pass(0.1)
    rates = shared.rates_since(before)
    assert [rates.of(program) for program in heavy] == pytest.approx([0.24] * 3)
    assert all(0.98 < rates.of(program) < 1 for program in light)


def test_phases_begin_again_after_the_last(shared: SharedGpu) -> None:
    begun_s = shared.works().now_s
    program = shared.program(phases=[Phase(None, 0.1), Phase(HEAVY, 0.15)])
    until(lambda: program.progress() >= 0.3, "both phases passed twice")
    assert shared.works().now_s - begun_s >= 0.5
    work = program.work
    assert work.progress_s == pytest.approx(work.computing_s)


def test_a_paused_program_loads_its_data_but_does_not_compute(shared: SharedGpu, tmp_path: Path) -> None:
    program = shared.program(phases=[Phase(None, 1.0), Phase(HEAVY)])

    async def scenario() -> None:
        async with pausing(pauser_settings(shared, tmp_path)) as pauser:
            await lock(pauser, program)
            before = program.work
            until(lambda: program.work.computing_s > before.computing_s, "it would compute now")
            assert program.progress() == before.progress_s

    asyncio.run(scenario())


def test_turns_follow_the_pauser_and_together_is_slower(shared: SharedGpu, reader: Reader, tmp_path: Path) -> None:
    """The two programs of the facts: 0.36 each together, all of the GPU in turns; the meter sees both."""
    first, second = shared.program(HEAVY), shared.program(HEAVY)
    uuid = reader.gpu().identity.uuid
    measured: list[ActivityMeasurement] = []

    async def measure(meter: ActivityMeter, phase: str) -> GpuActivity:
        """As the scheduler does: begin once the counters no longer contain what was before."""
        while not measured:
            await asyncio.sleep(0.11)
            meter.begin(uuid, phase)
            await asyncio.sleep(0.11)
            meter.end(uuid, phase)
            await asyncio.sleep(0.05)
        assert {one.token for one in measured} == {phase}
        found = measured[0].activity
        measured.clear()
        return found

    async def scenario() -> None:
        meter = ActivityMeter(reader.access)
        meter.start(asyncio.get_running_loop(), measured.append)
        async with pausing(pauser_settings(shared, tmp_path)) as pauser:
            before = shared.works()
            assert await measure(meter, "together") == pytest.approx(GpuActivity(0.514, 0.406, 0.17, 0.99))
            rates = shared.rates_since(before)
            assert (rates.of(first), rates.of(second)) == pytest.approx((0.36, 0.36))

            await lock(pauser, second)
            before = shared.works()
            assert await measure(meter, "alone") == pytest.approx(GpuActivity(0.789, 0.637, 0.23, 0.87))
            rates = shared.rates_since(before)
            assert (rates.of(first), rates.of(second)) == pytest.approx((1, 0))

            before = shared.works()
            running, waiting = first, second
            for _ in range(6):
                await lock(pauser, running)
                await unlock(pauser, waiting)
                running, waiting = waiting, running
                await asyncio.sleep(0.05)
            rates = shared.rates_since(before)
            # What a switch costs depends on the machine; each ran for three turns, and never both at once.
            assert all(rates.of(program) * rates.over_s >= 3 * 0.05 for program in (first, second))
            assert sum(rates.by_job) <= 1 + 1e-6
            for program in (first, second):
                work, old = program.work, before.by_job[program.job]
                assert work.progress_s - old.progress_s == pytest.approx(work.running_s - old.running_s)
            await unlock(pauser, waiting)
        meter.stop()

    asyncio.run(scenario())


# -- what NVML reports


def test_nvml_lists_the_programs_with_their_memory(shared: SharedGpu, reader: Reader) -> None:
    here, there = shared.program(HEAVY, memory_bytes=3 * GIB), shared.program(LIGHT, memory_bytes=GIB, gpu=1)
    first, second = reader.reader.read().gpus
    assert [(row.pid, row.used_memory_bytes, row.key) for row in first.processes or ()] == [
        (here.pid, 3 * GIB, here.key)
    ]
    assert [(row.pid, row.used_memory_bytes) for row in second.processes or ()] == [(there.pid, GIB)]
    assert (first.readings.memory_used_bytes, second.readings.memory_used_bytes) == (3 * GIB, GIB)


def test_utilisation_is_of_the_last_second(shared: SharedGpu, reader: Reader, tmp_path: Path) -> None:
    """A program that loads data has no sample, one that computes has its part, a paused one comes down to 0."""
    loading, heavy = shared.program(phases=[Phase(None)]), shared.program(HEAVY)

    def percent(program: SharedProgram) -> int | None:
        row = reader.process(program.pid)
        assert row is not None
        return row.sm_percent

    until(lambda: percent(heavy) == 100, "a second has passed")
    assert reader.gpu().readings.utilization_percent == 100
    assert percent(loading) is None
    other = shared.program(HEAVY)
    until(lambda: (percent(heavy), percent(other)) == (50, 50), "a second together has passed")

    async def paused() -> None:
        async with pausing(pauser_settings(shared, tmp_path)) as pauser:
            await lock(pauser, heavy)
            until(lambda: percent(heavy) == 0, "a second without it has passed")
            assert percent(other) == 100

    asyncio.run(paused())


def test_gpm_of_the_reader_is_the_mean_of_its_interval(shared: SharedGpu, reader: Reader) -> None:
    shared.program(HEAVY)
    shared.let_pass(0.2)
    reader.gpu()
    shared.let_pass(0.2)
    gpm = reader.gpu().gpm
    assert gpm is not None
    assert [gpm.graphics_ratio, gpm.sm_ratio] == pytest.approx([0.87, 0.789])
    other = reader.gpu(1).gpm
    assert other is not None
    assert other.sm_ratio in (0, None)


def test_counters_move_every_100_ms(shared: SharedGpu, reader: Reader) -> None:
    """Two samples within one interval have nothing to compare."""
    shared.program(HEAVY)
    uuid = reader.gpu().identity.uuid

    def both() -> float | None:
        assert reader.access.first(uuid)
        reading = reader.access.second(uuid)
        return None if reading is None else reading.sm_ratio

    until(lambda: both() is None, "two samples fall into one interval")


def test_an_agent_reads_what_the_programs_do(shared: SharedGpu) -> None:
    program = shared.program(HEAVY, memory_bytes=3 * GIB)

    def served(agent: RunningAgent, name: str, gpu: str) -> float | None:
        series = parsed(agent.get("/metrics/dcgm")[1])
        return next(
            (value for (found, labels), value in series.items() if found == name and ("gpu", gpu) in labels), None
        )

    with running_agent(environment=shared.environment()) as agent:
        until(lambda: served(agent, "DCGM_FI_PROF_SM_ACTIVE", "0") == pytest.approx(0.789), "it is seen")
        assert served(agent, "DCGM_FI_DEV_FB_USED", "0") == 3 * 1024
        assert served(agent, "DCGM_FI_PROF_SM_ACTIVE", "1") == 0
        program.end()
        until(lambda: served(agent, "DCGM_FI_PROF_SM_ACTIVE", "0") == 0, "its end is seen")


# -- the life of a program


def test_a_killed_program_is_gone_from_the_gpu(shared: SharedGpu, reader: Reader) -> None:
    killed, other = shared.program(HEAVY), shared.program(HEAVY)
    os.kill(killed.pid, signal.SIGKILL)
    until(lambda: reader.process(killed.pid) is None, "its end is noticed")
    before = shared.works()
    shared.let_pass(0.1)
    rates = shared.rates_since(before)
    assert (rates.of(killed), rates.of(other)) == pytest.approx((0, 1))


def test_a_program_killed_while_paused_leaves_the_others(shared: SharedGpu, tmp_path: Path) -> None:
    killed, other = shared.program(HEAVY), shared.program(HEAVY)

    async def scenario() -> None:
        async with pausing(pauser_settings(shared, tmp_path)) as pauser:
            await lock(pauser, killed)
            killed.end()
            before = shared.works()
            shared.let_pass(0.1)
            assert shared.rates_since(before).by_job == pytest.approx((0, 1))
            await lock(pauser, other)
            await unlock(pauser, other)

    asyncio.run(scenario())


def test_a_parked_program_holds_no_gpu_memory(shared: SharedGpu, reader: Reader, tmp_path: Path) -> None:
    program = shared.program(HEAVY, memory_bytes=2**20)

    async def scenario() -> None:
        async with pausing(pauser_settings(shared, tmp_path)) as pauser:
            await lock(pauser, program)
            assert (await pauser.checkpoint(program.key)).failure is None
            assert reader.gpu().readings.memory_used_bytes == 0
            assert (await pauser.restore(program.key)).failure is None
            assert reader.gpu().readings.memory_used_bytes == 2**20
            assert program.locked

    asyncio.run(scenario())


def test_programs_of_other_users_share_the_gpu() -> None:
    needs_root()
    with open_folder() as directory, SharedGpu(directory) as shared:
        theirs, ours = shared.program(HEAVY, uid=65534), shared.program(HEAVY)
        before = shared.works()
        shared.let_pass(0.1)
        rates = shared.rates_since(before)
        assert (rates.of(theirs), rates.of(ours)) == pytest.approx((0.36, 0.36))


# -- nvshare's clients


@pytest.mark.parametrize("version", [1, 2])
def test_nvshare_clients_compute_while_they_hold_the_lock(shared: SharedGpu, tmp_path: Path, version: int) -> None:
    """Clients that start at once, with turns: what each computes is what it holds the lock for."""
    with serving(tmp_path, mode="serial", switch_time_mode="fixed", switch_time_fixed_s=0.1) as served:
        clients = [shared.nvshare_client(Path(served.path), HEAVY, version=version) for _ in range(2)]
        until(lambda: all(client.progress() > 0.1 for client in clients), "both had a turn")
        works = [client.work for client in clients]
        # Never both at once: nothing is lost by sharing.
        assert [work.progress_s for work in works] == pytest.approx([work.running_s for work in works])
        assert all(work.running_s < work.computing_s for work in works)
