"""The agent's side against a real pauser, a fake driver and real processes."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
import uvloop

from fakes.cuda.build import build_driver
from fakes.cuda.control import FakeCuda
from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import Code, Failure, State
from gpucommons.pauser.client import Pauser, PauserSettings
from gpucommons.pauser.protocol import Notice, Paused
from gpucommons.pauser.record import Entry, PauseRecord, Stage
from pauser.rig import code_of, environment, pausing, run_with, service, settings
from tiers import in_long_tier
from waiting import until


def entries(record: Path) -> list[tuple[int, Stage]]:
    opened = PauseRecord.open_existing(record)
    if opened is None:
        return []
    found = [(entry.pid, entry.stage) for entry in opened.entries()]
    opened.close()
    return found


def modes(*paths: Path) -> list[int]:
    return [path.stat().st_mode & 0o777 for path in paths]


def test_a_program_is_paused_and_resumed_and_the_record_knows(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()

    async def body(pauser: Pauser) -> None:
        program.runs()
        reply = await pauser.lock(program.key, gpu="GPU-1")
        assert reply.failure is None
        assert reply.duration_s > 0
        assert program.state is State.LOCKED
        assert program.stands_still()
        assert entries(record) == [(program.pid, Stage.LOCKED)]
        assert modes(record, record / str(program.pid)) == [0o700, 0o600]
        asked = await pauser.state(program.key)
        assert asked.state is State.LOCKED
        (held,) = await _listed(pauser)
        assert (held.process, held.stage, held.gpu) == (program.key, Stage.LOCKED, "GPU-1")
        assert code_of(await pauser.unlock(program.key)) == 0
        program.runs()
        assert entries(record) == []
        assert await _listed(pauser) == ()
        assert (pauser.counters.locks, pauser.counters.unlocks) == (1, 1)
        assert pauser.counters.lock_seconds.reading().counts[-1] == 1
        assert pauser.counters.longest_pause_s > 0

    run_with(settings(cuda, record), body)


async def _listed(pauser: Pauser) -> tuple[Paused, ...]:
    found = await pauser.list()
    assert not isinstance(found, Failure)
    return found


def test_errors_come_back_as_values_and_leave_the_program_running(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()

    async def body(pauser: Pauser) -> None:
        for code in (3, 304, 401, 600, 801, 719):
            pauser.refusals._failures.clear()
            cuda.say(f"fail lock {code} {program.pid}")
            reply = await pauser.lock(program.key)
            assert reply.failure is not None
            assert reply.failure.code == code
            assert reply.failure.meaning
            cuda.unsay("fail")
            assert entries(record) == []
            program.runs()
        cuda.say(f"fail * 304 {program.pid}")
        assert code_of(await pauser.lock(program.key)) == Code.OPERATING_SYSTEM
        assert entries(record) == [], "a program that is not ours to ask about is not held"
        cuda.unsay("fail")
        assert pauser.counters.timeouts == 1
        assert pauser.counters.failures["lock", 600] == 1
        assert code_of(await pauser.lock(ProcessKey(os.getpid(), 1))) == Code.GONE
        assert code_of(await pauser.unlock(program.key)) == Code.NOT_PAUSED

    run_with(settings(cuda, record), body)


def test_a_deep_queue_times_out_and_the_program_goes_on(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()
    program.drain_in(5)

    async def body(pauser: Pauser) -> None:
        assert code_of(await pauser.lock(program.key, timeout_ms=50)) == Code.TIMEOUT
        program.runs()
        program.drain_in(0.05)
        assert code_of(await pauser.lock(program.key, timeout_ms=2000)) == 0
        assert code_of(await pauser.unlock(program.key)) == 0

    run_with(settings(cuda, record), body)


def test_a_program_that_cannot_be_paused_three_times_is_left_alone(cuda: FakeCuda, record: Path) -> None:
    program, other = cuda.start(), cuda.start()
    cuda.say(f"fail lock 801 {program.pid}")

    async def body(pauser: Pauser) -> None:
        found = [code_of(await pauser.lock(program.key)) for _ in range(4)]
        assert found == [801, 801, 801, Code.LEFT_ALONE]
        assert 0 < pauser.refusals.remaining_s(program.key, time.monotonic()) <= 60
        assert code_of(await pauser.lock(other.key)) == 0

    run_with(settings(cuda, record), body)
    other.runs()


def test_a_start_time_that_does_not_match_is_refused(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()
    stranger = ProcessKey(program.pid, program.key.start_ticks + 1)

    async def body(pauser: Pauser) -> None:
        assert code_of(await pauser.lock(stranger)) == Code.GONE
        assert program.locks == 0
        assert entries(record) == []

    run_with(settings(cuda, record), body)


@pytest.mark.long
def test_a_lock_held_by_something_else_is_not_ours_to_undo(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()

    async def body(pauser: Pauser) -> None:
        assert code_of(await pauser.lock(program.key)) == 0
        (record / str(program.pid)).unlink()
        async with pausing(settings(cuda, record.with_name("other"))) as second:
            assert code_of(await second.lock(program.key)) == Code.WRONG_STATE
            await second.resume_all()
            assert program.state is State.LOCKED

    run_with(settings(cuda, record), body)
    program.runs()


def test_exit_and_fork_while_paused(cuda: FakeCuda, record: Path) -> None:
    leaves, forks = cuda.start(), cuda.start()

    async def body(pauser: Pauser) -> None:
        for program in (leaves, forks):
            assert code_of(await pauser.lock(program.key)) == 0
        leaves.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(leaves.process.wait, 10)
        # The pauser may have noticed its end before.
        assert code_of(await pauser.unlock(leaves.key)) in (Code.GONE, Code.NOT_PAUSED)
        assert pauser.paused == 1, "the pause of one that has ended does not go on"
        assert entries(record) == [(forks.pid, Stage.LOCKED)]
        forks.fork()
        children = Path(f"/proc/{forks.pid}/task/{forks.pid}/children")
        await asyncio.to_thread(until, lambda: children.read_text().split(), "it has a child")
        assert forks.state is State.LOCKED
        assert code_of(await pauser.unlock(forks.key)) == 0
        forks.runs()
        assert entries(record) == []

    run_with(settings(cuda, record), body)


def test_a_hung_call_delays_no_call_for_another_program(cuda: FakeCuda, record: Path) -> None:
    hung, neighbour, elsewhere = cuda.start(), cuda.start(), cuda.start()

    async def body(pauser: Pauser) -> None:
        assert code_of(await pauser.lock(neighbour.key)) == 0
        cuda.say(f"hang lock {hung.pid}")
        stuck = asyncio.create_task(pauser.lock(hung.key, timeout_ms=100))
        await asyncio.to_thread(until, lambda: (hung.pid, Stage.LOCKING) in entries(record), "it is being locked")
        assert code_of(await pauser.lock(elsewhere.key)) == 0
        assert code_of(await pauser.unlock(elsewhere.key)) == 0
        assert code_of(await pauser.unlock(neighbour.key)) == 0
        assert code_of(await stuck) == Code.HANGS
        assert pauser.available, "the pauser itself answers"
        cuda.unsay("hang")
        # The call goes on now and succeeds. The agent has given it up, so it is undone.
        await asyncio.to_thread(until, lambda: entries(record) == [], "nothing is paused", 5)
        hung.runs()

    run_with(settings(cuda, record), body)


def test_the_longest_pause_ends_for_others_while_a_call_hangs(cuda: FakeCuda, record: Path) -> None:
    hung, neighbour = cuda.start(), cuda.start()

    async def body(pauser: Pauser) -> None:
        assert code_of(await pauser.lock(neighbour.key)) == 0
        cuda.say(f"hang * {hung.pid}")
        stuck = asyncio.create_task(pauser.lock(hung.key, timeout_ms=100))
        await asyncio.to_thread(neighbour.runs)
        assert entries(record) == [(hung.pid, Stage.LOCKING)], "what hangs is not forgotten"
        cuda.unsay("hang")
        await asyncio.to_thread(until, lambda: entries(record) == [], "nothing is paused")
        await stuck

    run_with(settings(cuda, record, max_pause_s=0.5), body)
    hung.runs()


def test_a_program_that_ends_while_it_is_parked_leaves_the_record(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start(1 << 20)

    async def body(pauser: Pauser) -> None:
        assert code_of(await pauser.lock(program.key)) == 0
        assert code_of(await pauser.checkpoint(program.key)) == 0
        program.end()
        await asyncio.to_thread(until, lambda: entries(record) == [], "its entry goes")
        assert await _listed(pauser) == ()

    run_with(settings(cuda, record), body)


@pytest.mark.long
def test_a_pauser_that_freezes_keeps_the_entries_of_one_that_used_the_driver(
    cuda: FakeCuda, record: Path, tmp_path: Path
) -> None:
    program = cuda.start()
    opened = PauseRecord.open(record)
    opened.write(Entry(program.pid, program.key.start_ticks, Stage.LOCKED))
    opened.close()
    without = {**environment(), "LD_LIBRARY_PATH": str(tmp_path)}

    async def body(pauser: Pauser) -> None:
        assert entries(record) == [(program.pid, Stage.LOCKED)], "only the driver knows that it runs"

    run_with(PauserSettings(record=record, backend="freeze", environment=without), body)
    run_with(PauserSettings(record=record, backend="freeze", environment=environment(cuda)), _nothing)
    assert entries(record) == []


async def _nothing(_: Pauser) -> None:
    return


@pytest.mark.long
def test_it_works_in_the_loop_that_the_agent_uses(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()

    async def whole() -> None:
        async with pausing(settings(cuda, record)) as pauser:
            assert code_of(await pauser.lock(program.key)) == 0
            assert pauser.pid is not None
            os.kill(pauser.pid, signal.SIGKILL)
            await asyncio.to_thread(program.runs)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(whole())


def test_a_service_that_is_not_there_yet_is_found_when_it_comes(cuda: FakeCuda, record: Path, tmp_path: Path) -> None:
    program, path = cuda.start(), tmp_path / "pauser.sock"

    async def whole() -> None:
        pauser = Pauser(PauserSettings(socket_path=path))
        await pauser.start()
        await asyncio.to_thread(until, lambda: "cannot connect" in pauser.reason, "it was tried")
        with service(cuda, record, path):
            assert await pauser.wait_available(30), pauser.reason
            assert code_of(await pauser.lock(program.key)) == 0
            second = Pauser(PauserSettings(socket_path=path))
            await second.start()
            await asyncio.to_thread(until, lambda: "another agent" in second.reason, "it is turned away")
            assert program.stands_still()
            await pauser.stop()
            await asyncio.to_thread(program.runs)
            assert await second.wait_available(10), "the next agent's turn comes soon"
            await second.stop()

    asyncio.run(whole())


def test_the_longest_pause_ends_although_the_agent_says_nothing(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()
    heard: list[Notice] = []

    async def whole() -> None:
        pauser = Pauser(settings(cuda, record, max_pause_s=1.0), on_notice=heard.append)
        await pauser.start()
        assert await pauser.wait_available(30)
        assert code_of(await pauser.lock(program.key)) == 0
        await asyncio.to_thread(program.runs)
        await asyncio.to_thread(until, lambda: heard, "the agent has the notice")
        assert heard[0].process == program.key
        assert "longest" in heard[0].reason
        assert pauser.counters.forced == 1
        assert pauser.counters.longest_pause_s > 0.9
        assert code_of(await pauser.unlock(program.key)) == Code.NOT_PAUSED
        assert code_of(await pauser.lock(program.key)) == Code.RESTING
        await asyncio.sleep(1.05)
        assert code_of(await pauser.lock(program.key)) == 0
        await pauser.stop()

    asyncio.run(whole())
    program.runs()


def test_checkpoint_and_restore_move_the_memory_and_outlive_the_longest_pause(cuda: FakeCuda, record: Path) -> None:
    size = 8 << 20
    program = cuda.start(size)
    program.move_at(40 << 20)

    async def body(pauser: Pauser) -> None:
        assert code_of(await pauser.checkpoint(program.key)) == Code.NOT_PAUSED
        assert code_of(await pauser.lock(program.key)) == 0
        reply = await pauser.checkpoint(program.key, memory_bytes=size)
        assert code_of(reply) == 0
        assert reply.duration_s > 0.15
        assert (program.gpu_bytes, program.host_bytes) == (0, size)
        await asyncio.sleep(0.4)
        assert entries(record) == [(program.pid, Stage.PARKED)]
        assert code_of(await pauser.unlock(program.key)) == Code.WRONG_STATE
        assert code_of(await pauser.resume_all()) == 0
        assert program.state is State.CHECKPOINTED, "only the agent knows whether there is room"
        assert code_of(await pauser.restore(program.key)) == 0
        assert (program.gpu_bytes, program.host_bytes) == (size, 0)
        assert program.stands_still()
        assert code_of(await pauser.unlock(program.key)) == 0
        program.runs()
        assert pauser.counters.longest_pause_s == 0.0, "parking is not a pause for a turn"

    run_with(settings(cuda, record, max_pause_s=0.3), body)


def test_what_cannot_be_parked_goes_on(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start(1 << 20)
    program.use_managed_memory()

    async def body(pauser: Pauser) -> None:
        assert code_of(await pauser.lock(program.key)) == 0
        assert code_of(await pauser.checkpoint(program.key)) == Code.NOT_SUPPORTED
        assert code_of(await pauser.unlock(program.key)) == 0
        program.runs()

    run_with(settings(cuda, record), body)


def test_memory_that_processes_share_is_not_moved(cuda: FakeCuda, record: Path) -> None:
    """The driver moves it, and cannot bring it back."""
    program = cuda.start(1 << 20)
    program.share_memory()

    async def body(pauser: Pauser) -> None:
        assert code_of(await pauser.lock(program.key)) == 0
        assert code_of(await pauser.checkpoint(program.key)) == Code.SHARED_MEMORY
        assert code_of(await pauser.unlock(program.key)) == 0
        program.runs()

    run_with(settings(cuda, record), body)


def stand_still_s(seconds: float) -> None:
    """The whole agent, for longer than it waits for a reply."""
    time.sleep(seconds)


def test_a_program_does_not_stay_paused_because_the_agent_read_the_reply_too_late(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()

    async def body(pauser: Pauser) -> None:
        lock = asyncio.create_task(pauser.lock(program.key, timeout_ms=1))
        await asyncio.sleep(0)
        stand_still_s(2.2)
        assert code_of(await lock) == Code.DEADLINE
        program.runs()
        assert await _listed(pauser) == ()

    run_with(settings(cuda, record), body)


def test_an_over_full_restore_strands_and_is_reported(cuda: FakeCuda, record: Path) -> None:
    program, other = cuda.start(1 << 20), cuda.start()

    async def body(pauser: Pauser) -> None:
        assert code_of(await pauser.lock(program.key)) == 0
        assert code_of(await pauser.checkpoint(program.key)) == 0
        cuda.gpu_has(1000)
        assert code_of(await pauser.restore(program.key)) == Code.OUT_OF_MEMORY
        assert program.state is State.FAILED
        assert code_of(await pauser.lock(other.key)) == 0

    run_with(settings(cuda, record), body)
    other.runs()


@pytest.mark.long
def test_parked_programs_stay_in_the_record_of_the_next_pauser(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start(1 << 20)

    async def park(pauser: Pauser) -> None:
        assert code_of(await pauser.lock(program.key, gpu="GPU-7")) == 0
        assert code_of(await pauser.checkpoint(program.key, memory_bytes=123)) == 0

    async def wake(pauser: Pauser) -> None:
        found = await pauser.list()
        assert not isinstance(found, Failure)
        assert [(p.process, p.stage, p.gpu, p.memory_bytes) for p in found] == [
            (program.key, Stage.PARKED, "GPU-7", 123)
        ]
        assert code_of(await pauser.restore(program.key)) == 0
        assert code_of(await pauser.unlock(program.key)) == 0

    run_with(settings(cuda, record), park)
    assert program.state is State.CHECKPOINTED
    run_with(settings(cuda, record), wake)
    program.runs()
    assert entries(record) == []


def unavailable(given: PauserSettings) -> str:
    async def whole() -> str:
        pauser = Pauser(given)
        await pauser.start()
        await asyncio.to_thread(until, lambda: not pauser.reason.startswith("the pauser has not"), "it is tried")
        reason = pauser.reason
        assert code_of(await pauser.lock(ProcessKey(1, 1))) == Code.UNAVAILABLE
        await pauser.stop()
        return reason

    return asyncio.run(whole())


@pytest.mark.long
def test_why_there_is_no_pausing(cuda: FakeCuda, record: Path, tmp_path: Path) -> None:
    none = {**environment(), "LD_LIBRARY_PATH": str(tmp_path)}
    assert "cannot load the NVIDIA driver's libcuda.so.1" in unavailable(
        PauserSettings(record=record, environment=none)
    )
    build_driver(tmp_path / "old", old=True)
    old = {**environment(cuda), "LD_LIBRARY_PATH": str(tmp_path / "old")}
    assert "r570" in unavailable(PauserSettings(record=record, environment=old))
    cuda.say("fail init 100")
    assert "cuInit failed" in unavailable(settings(cuda, record))
    cuda.unsay("fail")
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "cannot use the record" in unavailable(settings(cuda, blocked / "paused"))
    assert "cannot connect to the pauser" in unavailable(PauserSettings(socket_path=tmp_path / "none.sock"))


@pytest.mark.parametrize("number", [signal.SIGKILL, *in_long_tier(signal.SIGTERM, signal.SIGSEGV)])
def test_a_pauser_that_ends_is_replaced_and_everything_runs(cuda: FakeCuda, record: Path, number: int) -> None:
    program = cuda.start()

    async def body(pauser: Pauser) -> None:
        assert code_of(await pauser.lock(program.key)) == 0
        first = pauser.pid
        assert first is not None
        os.kill(first, number)
        await asyncio.to_thread(program.runs)
        await asyncio.to_thread(until, lambda: pauser.pid not in (None, first), "there is another")
        assert code_of(await pauser.lock(program.key)) == 0
        assert pauser.counters.restarts == 1

    run_with(settings(cuda, record), body)
    program.runs()


def test_a_stopped_pauser_is_replaced(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()

    async def body(pauser: Pauser) -> None:
        first = pauser.pid
        assert first is not None
        assert code_of(await pauser.lock(program.key)) == 0
        os.kill(first, signal.SIGSTOP)
        assert code_of(await pauser.unlock(program.key)) == Code.DEADLINE
        await asyncio.to_thread(program.runs)
        # Its watchdog may have resumed the program before the client has given it up.
        await asyncio.to_thread(until, lambda: pauser.pid != first, "another pauser runs")

    run_with(settings(cuda, record), body)


def test_a_lost_pauser_is_reported_at_once(cuda: FakeCuda, record: Path) -> None:
    """At no moment is it gone and its loss not reported: programs that are seen then would be taken for others'."""

    async def whole() -> None:
        heard: list[bool] = []
        pauser = Pauser(settings(cuda, record), on_change=lambda: heard.append(pauser.available))
        await pauser.start()
        assert await pauser.wait_available(30)
        assert pauser.pid is not None
        os.kill(pauser.pid, signal.SIGKILL)
        while pauser.available:  # noqa: ASYNC110 - each step of the loop is looked at
            await asyncio.sleep(0)
        assert heard == [True, False]
        assert pauser.reason == "the pauser has ended"
        await pauser.stop()

    asyncio.run(whole())
