"""A program as a client of the policy, with a real pauser and real processes: it does what was requested last."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import monotonic

import pytest

from fakes.shared_gpu import MATMUL, SharedGpu, SharedProgram
from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import Code, failure
from gpucommons.pauser.client import LOCK_TIMEOUT_MS, Pauser, PauserSettings
from gpucommons.pauser.protocol import Notice, Reply
from gpucommons.scheduler.policy.policy import Policy
from gpucommons.scheduler.policy.state import PROGRAM, Action, Client
from gpucommons.scheduler.protocol.wire import MessageType
from gpucommons.scheduler.service.programs import ProgramPeer
from gpucommons.scheduler.service.turn_loop import TurnLoop
from pauser.rig import GPU, environment, pausing
from stopping import by_signal
from waiting import until

HEAVY = MATMUL[4096]


def play(
    directory: Path,
    scenario: Callable[[ProgramPeer, Pauser, list[SharedProgram]], Awaitable[None]],
) -> None:
    """Two programs, of which the first is the peer's."""
    errors: list[object] = []

    async def whole(shared: SharedGpu) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        settings = PauserSettings(
            record=directory / "run" / "paused", environment={**environment(), **shared.environment()}
        )
        async with pausing(settings, lambda notice: peer.hear(notice)) as pauser:
            policy, now = Policy(SchedulerSettings()), monotonic()
            turns = TurnLoop(policy)
            turns.start(asyncio.get_running_loop())
            client = Client(1, policy.add_gpu(GPU, 0, now), version=PROGRAM)
            peer = client.peer = ProgramPeer(turns, pauser, client)
            policy.register(client, now)
            programs = [shared.program(HEAVY) for _ in range(2)]
            peer.set_processes({programs[0].key: GPU})
            await scenario(peer, pauser, programs)

    with SharedGpu(directory) as shared:
        asyncio.run(whole(shared))
    assert not errors


def test_a_process_that_begins_while_the_program_is_paused_is_paused(tmp_path: Path) -> None:
    async def scenario(peer: ProgramPeer, pauser: Pauser, programs: list[SharedProgram]) -> None:
        first, second = programs
        peer.send(MessageType.DROP_LOCK, 0)
        await peer.settle()
        assert first.locked
        peer.set_processes({program.key: GPU for program in programs})
        await peer.settle()
        assert second.locked
        peer.write(peer.lock_ok)
        await peer.settle()
        assert not first.locked
        assert not second.locked

    play(tmp_path, scenario)


def test_the_last_request_counts(tmp_path: Path) -> None:
    async def scenario(peer: ProgramPeer, pauser: Pauser, programs: list[SharedProgram]) -> None:
        for number in range(20):
            peer.send(MessageType.DROP_LOCK, 0)
            await asyncio.sleep(0.0004 * number)
            peer.run_freely()
            await peer.settle()
            assert not programs[0].locked, (number, pauser.counters)

    play(tmp_path, scenario)


def test_a_request_at_the_end_of_the_one_before_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when the program is paused, and before the event loop knows that the work for that has ended."""
    paused = Policy.record_pause

    def then_resume(policy: Policy, client: Client, now: float) -> Sequence[Action]:
        assert client.peer is not None
        asyncio.get_running_loop().call_soon(client.peer.write, b"")
        return paused(policy, client, now)

    async def scenario(peer: ProgramPeer, pauser: Pauser, programs: list[SharedProgram]) -> None:
        peer.send(MessageType.DROP_LOCK, 0)
        await peer.settle()
        assert pauser.counters.locks == 1
        assert not programs[0].locked

    monkeypatch.setattr(Policy, "record_pause", then_resume)
    play(tmp_path, scenario)


def test_without_processes_there_is_nothing_to_do(tmp_path: Path) -> None:
    async def scenario(peer: ProgramPeer, pauser: Pauser, programs: list[SharedProgram]) -> None:
        peer.set_processes({})
        peer.run_freely()
        async with asyncio.timeout(5):
            await peer.settle()

    play(tmp_path, scenario)


def test_the_time_that_a_program_needs_to_stop_is_remembered(tmp_path: Path) -> None:
    """The first attempt fails and lets it run on; those of later turns do not."""

    async def scenario(peer: ProgramPeer, pauser: Pauser, programs: list[SharedProgram]) -> None:
        program = programs[0]
        program.program.drain_in(1.5 * LOCK_TIMEOUT_MS / 1000)
        peer.send(MessageType.DROP_LOCK, 0)
        await peer.settle()
        assert not program.locked
        for _ in range(2):
            peer.send(MessageType.DROP_LOCK, 0)
            await peer.settle()
            assert program.locked
            peer.run_freely()
            await peer.settle()
        assert pauser.counters.timeouts == 1

    play(tmp_path, scenario)


def test_the_pauser_resumes_it_while_the_agent_tries(tmp_path: Path) -> None:
    """A notice between two attempts to resume it ends them."""

    async def scenario(peer: ProgramPeer, pauser: Pauser, programs: list[SharedProgram]) -> None:
        peer.send(MessageType.DROP_LOCK, 0)
        await peer.settle()
        attempts = []
        unlock = pauser.unlock

        async def busy(process: ProcessKey) -> Reply:
            attempts.append(process)
            asyncio.get_running_loop().call_soon(peer.hear, Notice(process, "it was paused for too long"))
            return Reply(0, failure(Code.BUSY, "it is being resumed"))

        pauser.unlock = busy  # type: ignore[method-assign]
        peer.run_freely()
        await peer.settle()
        assert len(attempts) == 1
        await unlock(programs[0].key)

    play(tmp_path, scenario)


def test_one_stopped_process_does_not_free_the_others_of_its_program(tmp_path: Path) -> None:
    """It submits no work, and the others take turns. Continued, it is paused like them. All stopped: no turns."""

    async def scenario(peer: ProgramPeer, pauser: Pauser, programs: list[SharedProgram]) -> None:
        first, second = programs
        peer.set_processes({program.key: GPU for program in programs})
        with by_signal(first.pid):
            # It may take a moment until the peer hears of it: then the first attempt fails.
            while not second.locked:
                peer.send(MessageType.DROP_LOCK, 0)
                await peer.settle()
            assert peer.held_up is None
            assert not first.locked
        await asyncio.to_thread(until, lambda: programs[0].locked, "it is paused as soon as it goes on")
        await peer.settle()
        # Now it is stopped while both are paused.
        with by_signal(first.pid):
            await asyncio.to_thread(until, lambda: first.key in peer._held_up, "the peer hears of it")
            await peer.settle()
            assert second.locked
            with by_signal(second.pid):
                await asyncio.to_thread(until, lambda: peer.held_up is not None, "all are stopped")
                assert peer.held_up is not None
                assert peer.held_up.is_stopped
        await asyncio.to_thread(until, lambda: peer.held_up is None, "they go on")
        await asyncio.to_thread(until, lambda: not first.locked and not second.locked, "and are resumed")

    play(tmp_path, scenario)


def test_a_call_that_hangs_is_reported_to_the_policy_until_it_returns(tmp_path: Path) -> None:
    async def scenario(peer: ProgramPeer, pauser: Pauser, programs: list[SharedProgram]) -> None:
        hung = peer.client.gpu.turns.hung
        programs[0].program.drain_in(1.0)
        # The first attempt has 0.2 s, which is too short: the second has 0.8 s, and the third is long enough.
        for _ in range(2):
            peer.send(MessageType.DROP_LOCK, 0)
            await peer.settle()
        peer.send(MessageType.DROP_LOCK, 0)
        await asyncio.to_thread(until, lambda: hung, "others do not wait for it")
        assert not programs[0].locked
        await peer.settle()
        assert not hung

    play(tmp_path, scenario)
