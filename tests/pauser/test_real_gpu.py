"""On a real GPU with the real driver and unmodified torch programs."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucommons.pauser import cuda
from gpucommons.pauser.backend import Code, Failure, State
from gpucommons.pauser.client import Pauser, PauserSettings
from gpucommons.pauser.protocol import Operation, PauserRequest
from gpucommons.pauser.record import Entry, PauseRecord, Stage
from needs import needs_root
from pauser.gpu_programs import GpuProgram, gpu_program, nvml_bytes
from pauser.rig import Connection, arguments, code_of, environment, run_with
from running import command_process

pytestmark = pytest.mark.gpu
pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def driver() -> None:
    if isinstance(cuda.load(), Failure):
        pytest.skip("needs a real NVIDIA GPU with driver r570 or newer")


@pytest.fixture
def given(record: Path) -> PauserSettings:
    return PauserSettings(record=record, environment=environment())


@pytest.fixture
def program() -> Iterator[GpuProgram]:
    with gpu_program() as started:
        yield started


async def locked(pauser: Pauser, program: GpuProgram, timeout_ms: int = 2000) -> float:
    reply = await pauser.lock(program.key, timeout_ms=timeout_ms)
    assert reply.failure is None, reply.failure
    return reply.duration_s


def test_a_locked_program_makes_no_progress_and_goes_on_unharmed(program: GpuProgram, given: PauserSettings) -> None:
    async def body(pauser: Pauser) -> None:
        await locked(pauser, program)
        assert program.asked(within_s=2) is None, "it is paused"
        before = _cpu_s(program.key.pid)
        await asyncio.sleep(1)
        assert _cpu_s(program.key.pid) - before < 0.1, "it sleeps"
        assert (await pauser.state(program.key)).state is State.LOCKED
        assert (await pauser.unlock(program.key)).failure is None
        first = program.answer()
        assert first is not None
        second = program.asked()
        assert second is not None
        assert second[0] > first[0]

    run_with(given, body)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_locks_and_unlocks_are_quick(program: GpuProgram, given: PauserSettings) -> None:
    async def body(pauser: Pauser) -> tuple[list[float], list[float]]:
        locks, unlocks = [], []
        for _ in range(100):
            locks.append(await locked(pauser, program))
            reply = await pauser.unlock(program.key)
            assert reply.failure is None
            unlocks.append(reply.duration_s)
            await asyncio.sleep(0.01)
        return locks, unlocks

    locks, unlocks = (sorted(found) for found in run_with(given, body))
    # A few milliseconds of matrix products are queued whenever the lock comes.
    assert locks[50] < 0.05, locks
    assert unlocks[50] < 0.01, unlocks


def test_turns_of_a_quarter_second_divide_the_gpu(given: PauserSettings) -> None:
    with gpu_program(4096) as one, gpu_program(4096) as two:

        async def body(pauser: Pauser) -> list[int]:
            await locked(pauser, two)
            before = one.asked()
            assert before is not None
            await asyncio.sleep(3)
            after = one.asked()
            assert after is not None
            solo = after[0] - before[0]
            await pauser.unlock(two.key)
            begun = [p.asked() for p in (one, two)]
            for _ in range(12):
                for waits in (two, one):
                    await locked(pauser, waits)
                    await asyncio.sleep(0.25)
                    assert (await pauser.unlock(waits.key)).failure is None
            ended = [p.asked() for p in (one, two)]
            done = [b[0] - a[0] for a, b in zip(begun, ended, strict=True) if a is not None and b is not None]
            assert sum(done) > 0.85 * 2 * solo, (done, solo)
            return done

        done = run_with(given, body)
    assert min(done) > 0.4 * sum(done), done


def test_a_program_stays_locked_when_its_pauser_is_killed_and_the_next_one_resumes_it(
    program: GpuProgram, given: PauserSettings, record: Path
) -> None:
    async def body(pauser: Pauser) -> None:
        await locked(pauser, program)
        first = pauser.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        begun = time.monotonic()
        answer = await asyncio.to_thread(program.asked, 20)
        assert answer is not None
        assert time.monotonic() - begun < 5
        assert pauser.pid != first

    run_with(given, body)
    assert list(record.iterdir()) == []


def test_a_lock_under_way_when_its_caller_dies_does_not_stay(given: PauserSettings, record: Path) -> None:
    """Behind a deep queue: whether the driver carries it out or not, the program runs in the end."""
    with gpu_program(8192) as program:

        async def body(pauser: Pauser) -> None:
            for delay_s in (0.0, 0.002, 0.005, 0.01, 0.02):
                lock = asyncio.create_task(pauser.lock(program.key, timeout_ms=1000))
                await asyncio.sleep(delay_s)
                if pauser.pid is not None:
                    os.kill(pauser.pid, signal.SIGKILL)
                await lock
                assert await asyncio.to_thread(program.asked, 20) is not None
                assert await pauser.wait_available(20), pauser.reason

        run_with(given, body)
    assert list(record.iterdir()) == []


def test_resume_all_without_any_pauser(program: GpuProgram, record: Path) -> None:
    calls = cuda.load()
    assert not isinstance(calls, Failure)
    opened = PauseRecord.open(record)
    opened.write(Entry(program.key.pid, program.key.start_ticks, Stage.LOCKED))
    opened.close()
    assert calls.lock(program.key.pid, 2000) is None
    assert program.asked(within_s=1) is None
    done = command_process("resume", "--all", "--record", str(record))
    assert done.returncode == 0, done.stdout + done.stderr
    assert program.answer() is not None


def test_two_gibibytes_come_back_bit_for_bit(given: PauserSettings) -> None:
    with gpu_program(1024, gib=2) as program:

        async def body(pauser: Pauser) -> None:
            before = program.asked()
            assert before is not None
            for _ in range(3):
                await locked(pauser, program)
                reply = await pauser.checkpoint(program.key, memory_bytes=3 << 30)
                assert reply.failure is None, reply.failure
                assert (await pauser.state(program.key)).state is State.CHECKPOINTED
                assert nvml_bytes(program.key.pid) == 0
                reply = await pauser.restore(program.key)
                assert reply.failure is None, reply.failure
                assert (await pauser.unlock(program.key)).failure is None
                after = await asyncio.to_thread(program.asked)
                assert after is not None
                assert after[1] == before[1]

        run_with(given, body)


def test_a_pauser_killed_in_a_checkpoint_or_restore_loses_nothing(record: Path, given: PauserSettings) -> None:
    """The next pauser, and then `resume --all`, bring the program back with its memory, wherever it was."""
    with gpu_program(1024, gib=2) as program:
        before = program.asked()
        assert before is not None
        for delay_s in (0.05, 0.3, 0.8):

            async def body(pauser: Pauser, delay_s: float = delay_s) -> None:
                await locked(pauser, program)
                moved = asyncio.create_task(pauser.checkpoint(program.key, memory_bytes=3 << 30))
                await asyncio.sleep(delay_s)
                if pauser.pid is not None:
                    os.kill(pauser.pid, signal.SIGKILL)
                await moved
                assert await pauser.wait_available(60), pauser.reason

            run_with(given, body)
            deadline_s = time.monotonic() + 60
            while command_process("resume", "--all", "--record", str(record)).returncode:
                assert time.monotonic() < deadline_s
            after = program.asked()
            assert after is not None
            assert after[1] == before[1]


def test_a_process_without_cuda_and_one_that_is_not_there(given: PauserSettings) -> None:
    calls = cuda.load()
    assert not isinstance(calls, Failure)
    assert code_of(calls.lock(1, 100)) in (Code.NOT_CUDA, Code.OPERATING_SYSTEM)
    assert code_of(calls.lock(4_000_000, 100)) == Code.OPERATING_SYSTEM


CAPABILITIES = "-all,+sys_ptrace,+dac_override,+kill"


@pytest.mark.parametrize("bounding_set", ["-all", CAPABILITIES, "+all"])
def test_which_capabilities_the_pauser_needs(record: Path, bounding_set: str) -> None:
    """The shipped unit keeps SYS_PTRACE, DAC_OVERRIDE and KILL: enough to pause the program of another user."""
    needs_root()
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    with gpu_program(1024, uid=65534) as program:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [
                    *("setpriv", f"--bounding-set={bounding_set}", "--inh-caps=-all", "--no-new-privs"),
                    *arguments(record, "--fd", str(theirs.fileno())),
                ],
                pass_fds=(theirs.fileno(),),
                env=environment(),
            )
        with ours:
            agent = Connection(ours)
            assert agent.hello().unavailable == ""
            failed = agent.ask(PauserRequest(1, Operation.LOCK, program.key, 2000)).failure
        process.wait(30)
        if bounding_set == "-all":
            pytest.skip(f"for information: without any capability the lock gives {failed}")
        assert failed is None, failed
        assert program.asked() is not None
