"""Programs that their users stop, with the fake driver: it hangs for them as the real one does."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.cuda.control import FakeCuda, FakeProgram
from gpucommons.pauser import cuda as cuda_calls
from gpucommons.pauser.backend import Code, Failure, State
from gpucommons.pauser.client import Pauser
from gpucommons.pauser.protocol import Notice, NoticeKind, Operation, PauserRequest, Reply
from gpucommons.pauser.record import PauseRecord
from gpucommons.pauser.stopped import FreezerMounts, why_stopped
from pauser.rig import child, code_of, run_with, settings, watchdog_of
from running import command_process
from stopping import WAYS, Stopper, by_signal
from waiting import until


@pytest.fixture(params=WAYS)
def stopped(request: pytest.FixtureRequest) -> Stopper:
    return WAYS[request.param]


def recorded(record: Path) -> list[int]:
    opened = PauseRecord.open_existing(record)
    assert opened is not None
    try:
        return [entry.pid for entry in opened.entries()]
    finally:
        opened.close()


# -- looking


def test_whether_a_process_is_stopped(cuda: FakeCuda, stopped: Stopper) -> None:
    program = cuda.start()
    assert why_stopped(program.pid) == ""
    with stopped(program.pid):
        assert why_stopped(program.pid) != ""
    until(lambda: why_stopped(program.pid) == "", "it goes on")


def test_a_core_dump_counts_as_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one is over too soon."""
    read = {f"/proc/7/{name}": b"" for name in ("cgroup",)}
    read["/proc/7/stat"] = b"7 (a) T ) S 1 1 1"
    read["/proc/7/status"] = b"Name:\ta\nState:\tS (sleeping)\nCoreDumping:\t1\nThreads:\t9\n"
    monkeypatch.setattr("gpucommons.pauser.stopped._read", lambda path: read.get(path, b""))
    assert why_stopped(7) == "its core dump is being written"
    read["/proc/7/status"] = b"Name:\tCoreDumping:\t1\nCoreDumping:\t0\n"
    assert why_stopped(7) == "", "a program may have any name"


@pytest.mark.parametrize("text", ["", "cgroup2", "a b c\n\n", "cgroup /x cgroup rw,cpu 0 0\n", "\x00\xff"])
def test_mounts_that_say_nothing_of_a_freezer(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mounts"
    path.write_text(text, encoding="latin-1")
    found = FreezerMounts(path)
    assert (found.v1, found.v2) == (None, None)
    assert not found.is_frozen(os.getpid())
    assert not FreezerMounts(tmp_path / "none").is_frozen(1)


def test_a_process_that_is_not_there_is_not_stopped() -> None:
    assert why_stopped(2**22 - 1) == ""


# -- the fake driver


def test_the_fake_driver_hangs_for_a_stopped_program_as_the_real_one(
    cuda: FakeCuda, stopped: Stopper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUDA_DIR", str(cuda.directory))
    calls = cuda_calls.load(str(cuda.library))
    assert not isinstance(calls, Failure)
    program = cuda.start()
    results: list[Failure | None] = []
    calling = threading.Thread(target=lambda: results.append(calls.lock(program.pid, 50)), daemon=True)
    with stopped(program.pid):
        calling.start()
        calling.join(0.5)
        assert calling.is_alive(), "the timeout is ignored"
        assert program.locks == 0
    calling.join(20)
    assert results == [None], "it succeeds once the program is continued"
    assert program.state is State.LOCKED


# -- the pauser


def test_a_stopped_program_gets_no_call(cuda: FakeCuda, record: Path, stopped: Stopper) -> None:
    program, other = cuda.start(1 << 20), cuda.start()

    async def body(pauser: Pauser) -> None:
        with stopped(program.pid):
            for reply in (await pauser.lock(program.key), await pauser.state(program.key)):
                assert reply.failure is not None
                assert reply.failure.code == Code.STOPPED
                assert reply.failure.meaning.startswith("stopped by its user: ")
            assert not program.is_asked
            assert recorded(record) == []
            assert code_of(await pauser.lock(other.key)) == 0
            assert code_of(await pauser.unlock(other.key)) == 0
            assert pauser.refusals.remaining_s(program.key, time.monotonic()) == 0
        assert code_of(await _retried(lambda: pauser.lock(program.key))) == 0
        assert code_of(await pauser.checkpoint(program.key)) == 0
        with stopped(program.pid):
            assert code_of(await pauser.restore(program.key)) == Code.STOPPED
        assert program.state is State.CHECKPOINTED
        assert code_of(await _retried(lambda: pauser.restore(program.key))) == 0
        with stopped(program.pid):
            assert code_of(await pauser.checkpoint(program.key)) == Code.STOPPED
        assert code_of(await pauser.unlock(program.key)) in (0, Code.STOPPED)
        await asyncio.to_thread(program.runs)

    run_with(settings(cuda, record), body)


async def _retried(ask: Callable[[], object]) -> Reply:
    """A program that was just continued may still be found stopped."""
    while True:
        reply = await ask()  # type: ignore[misc]
        assert isinstance(reply, Reply)
        if code_of(reply) != Code.STOPPED:
            return reply
        await asyncio.sleep(0.02)


@pytest.mark.long
def test_a_program_that_is_stopped_during_the_call_keeps_no_caller_waiting(
    cuda: FakeCuda, record: Path, stopped: Stopper
) -> None:
    program = cuda.start()
    program.drain_in(0.5)

    async def body(pauser: Pauser) -> None:
        asked = asyncio.create_task(pauser.lock(program.key, timeout_ms=20_000))
        await asyncio.to_thread(until, lambda: program.is_asked, "the driver is asked")
        with stopped(program.pid):
            assert code_of(await asked) == Code.STOPPED, "long before the timeout"
            assert recorded(record) == [program.pid], "the call is still under way"
        await asyncio.to_thread(until, lambda: recorded(record) == [], "what came of the call was undone")
        await asyncio.to_thread(program.runs)

    run_with(settings(cuda, record), body)


@pytest.mark.long
def test_a_paused_program_that_is_stopped_runs_when_it_is_continued(
    cuda: FakeCuda, record: Path, stopped: Stopper
) -> None:
    program, other = cuda.start(), cuda.start()

    async def body(pauser: Pauser) -> None:
        assert code_of(await pauser.lock(program.key)) == 0
        assert code_of(await pauser.lock(other.key)) == 0
        with stopped(program.pid):
            code = code_of(await pauser.unlock(program.key))
            assert code == Code.STOPPED
            assert code_of(await pauser.unlock(other.key)) == 0
            other.runs()
            assert recorded(record) == [program.pid]
        await asyncio.to_thread(program.runs)
        await asyncio.to_thread(until, lambda: recorded(record) == [], "it has left the record")

    run_with(settings(cuda, record), body)


def test_the_agent_hears_of_a_watched_program(cuda: FakeCuda, record: Path) -> None:
    program, unwatched = cuda.start(), cuda.start()
    heard: list[Notice] = []

    async def whole() -> None:
        pauser = Pauser(settings(cuda, record), on_notice=heard.append)
        await pauser.start()
        assert await pauser.wait_available(30)
        assert code_of(await pauser.watch(program.key)) == 0
        for paused in (False, True):
            heard.clear()
            if paused:
                assert code_of(await pauser.lock(program.key)) == 0
            with by_signal(unwatched.pid), by_signal(program.pid):
                await asyncio.to_thread(until, lambda: heard, "the agent hears of it")
                assert [(one.process, one.kind) for one in heard] == [(program.key, NoticeKind.STOPPED)]
                assert heard[0].reason.startswith("stopped by its user: ")
            await asyncio.to_thread(until, lambda: len(heard) > 1, "the agent hears that it goes on")
            assert heard[1].kind is NoticeKind.GOES_ON
            assert program.state is State.RUNNING, "it was resumed first"
        assert code_of(await pauser.unwatch(program.key)) == 0
        heard.clear()
        with by_signal(program.pid):
            assert code_of(await pauser.lock(program.key)) == Code.STOPPED
        assert heard == []
        assert pauser.counters.forced == 0
        await pauser.stop()

    asyncio.run(whole())


def test_a_call_that_hangs_for_a_watched_program_is_reported_until_it_returns(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()
    heard: list[Notice] = []

    async def whole() -> None:
        pauser = Pauser(settings(cuda, record), on_notice=heard.append)
        await pauser.start()
        assert await pauser.wait_available(30)
        assert code_of(await pauser.watch(program.key)) == 0
        cuda.say(f"hang lock {program.pid}")
        assert code_of(await pauser.lock(program.key, timeout_ms=100)) == Code.HANGS
        assert [one.kind for one in heard] == [NoticeKind.HANGS], "before the answer"
        cuda.unsay("hang")
        await asyncio.to_thread(until, lambda: len(heard) > 1, "the agent hears that it has returned")
        assert heard[1].kind is NoticeKind.GOES_ON
        assert program.state is State.RUNNING
        await pauser.stop()

    asyncio.run(whole())
    program.runs()


def test_a_program_that_is_stopped_when_the_agent_ends_is_resumed_later(cuda: FakeCuda, record: Path) -> None:
    """By the watchdog, which stays for it: the pauser has ended."""
    program, other = cuda.start(), cuda.start()
    with child(cuda, record) as (process, agent):
        agent.hello()
        for number, one in enumerate((program, other), 1):
            assert agent.ask(PauserRequest(number, Operation.LOCK, one.key, 5000)).failure is None
        until(lambda: watchdog_of(process.pid), "the watchdog has started")
        with by_signal(program.pid):
            agent.socket.close()
            assert process.wait(15) == 0
            other.runs()
            assert program.state is State.LOCKED
            assert recorded(record) == [program.pid]
            done = command_process("resume", "--all", "--record", str(record), environment=cuda.environment())
            assert done.returncode == 1
            assert "stopped by its user" in done.stdout
    program.runs()
    until(lambda: recorded(record) == [], "it has left the record")


@pytest.mark.long
def test_the_next_pauser_takes_over_a_stopped_program(cuda: FakeCuda, record: Path) -> None:
    program, other = cuda.start(), cuda.start()
    with child(cuda, record) as (process, agent):
        agent.hello()
        assert agent.ask(PauserRequest(1, Operation.LOCK, program.key, 5000)).failure is None
        os.kill(program.pid, signal.SIGSTOP)
        process.kill()
        process.wait()
        with child(cuda, record) as (_, following):
            assert following.hello().unavailable == ""
            assert following.ask(PauserRequest(1, Operation.LOCK, other.key, 5000)).failure is None
            failed = following.ask(PauserRequest(2, Operation.LOCK, program.key, 5000)).failure
            assert failed is not None
            assert failed.code == Code.STOPPED
            os.kill(program.pid, signal.SIGCONT)
            program.runs()
            assert other.state is State.LOCKED


def test_a_restored_program_is_not_waited_for_while_it_is_stopped(cuda: FakeCuda, record: Path) -> None:
    """`gpucommons resume` leaves a parked program that is stopped, and says why."""
    program: FakeProgram = cuda.start(1 << 20)

    async def park(pauser: Pauser) -> None:
        assert code_of(await pauser.lock(program.key)) == 0
        assert code_of(await pauser.checkpoint(program.key)) == 0

    run_with(settings(cuda, record), park)
    with by_signal(program.pid):
        done = command_process("resume", "--all", "--record", str(record), environment=cuda.environment())
        assert done.returncode == 1
        assert "stopped by its user" in done.stdout
    assert program.state is State.CHECKPOINTED
