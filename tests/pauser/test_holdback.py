"""Programs that are held back while another one works: real processes, a real pauser and the fake driver."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from fakes.cuda.control import FakeCuda, FakeProgram
from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import State
from gpucommons.pauser.holdback import BUCKET_S, LINGER_S, LONGEST_S, POLL_S, HoldBack, cpu_time_s
from gpucommons.pauser.protocol import Notice, NoticeKind, Operation, PauserRequest
from gpucommons.pauser.record import PauseRecord
from gpucommons.pauser.release import key_of
from pauser.rig import Connection, child, watchdog_of
from waiting import until

GROUP = "gpu0/latency"
# Answers each line that it reads after it has computed for so many seconds, as a server does.
_SERVER = """
import sys, time
for line in sys.stdin:
    end_s = time.monotonic() + float(line)
    while time.monotonic() < end_s:
        pass
    print("done", flush=True)
"""


class Server:
    """A process that waits for requests, and computes for as long as each says."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        key = key_of(self._process.pid)
        assert key is not None
        self.key = key
        self.request(0.0)
        self.wait()

    def request(self, cpu_s: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{cpu_s}\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "done\n"

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def server() -> Iterator[Server]:
    made = Server()
    try:
        yield made
    finally:
        made.end()


NUMBERS = count(1)


def ask(agent: Connection, operation: Operation, process: ProcessKey, timeout_ms: int = 0, share: int = 0) -> None:
    request = PauserRequest(next(NUMBERS), operation, process, timeout_ms, GROUP, 0, share)
    assert agent.ask(request).failure is None


def name_both(agent: Connection, guard: Server, program: FakeProgram, share: int = 100) -> None:
    ask(agent, Operation.GUARD, guard.key, share=share)
    ask(agent, Operation.YIELD_TO, program.key)


def is_held(program: FakeProgram) -> bool:
    return program.state is State.LOCKED


def work_until_held(guard: Server, program: FakeProgram, cpu_s: float) -> None:
    """The guard has a request when this returns. On a busy machine one may pass without that this process sees it."""

    def is_held_during_a_request() -> bool:
        end_s = time.monotonic() + cpu_s
        guard.request(cpu_s)
        while time.monotonic() < end_s:
            if is_held(program):
                return True
            time.sleep(POLL_S)
        guard.wait()
        return False

    until(is_held_during_a_request, "it is held back")


def test_a_program_is_held_back_while_the_other_works(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()
    with child(cuda, record) as (_, agent), server() as guard:
        agent.hello()
        name_both(agent, guard, program)
        program.runs()
        assert not is_held(program), "the server waits for requests"
        work_until_held(guard, program, 1.0)
        opened = PauseRecord.open_existing(record)
        assert opened is not None
        assert [entry.pid for entry in opened.entries()] == [program.pid]
        opened.close()
        guard.wait()
        program.runs()
        first, second = agent.next(), agent.next()
        assert first == Notice(guard.key, "", NoticeKind.HOLDS_BACK)
        # On a busy machine a program that computes may not run for a while.
        assert isinstance(second, Notice)
        assert (second.process, second.kind) == (guard.key, NoticeKind.HELD_BACK)
        assert LINGER_S <= second.held_back_s < BUCKET_S


def test_it_stays_paused_for_the_agent_and_for_the_other_until_both_let_it_go(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()
    with child(cuda, record) as (_, agent), server() as guard:
        agent.hello()
        name_both(agent, guard, program)
        # The agent's pause begins while it is held back, and lasts longer.
        work_until_held(guard, program, 0.5)
        ask(agent, Operation.LOCK, program.key, timeout_ms=5000)
        guard.wait()
        time.sleep(10 * LINGER_S)
        assert is_held(program), "the agent has paused it, too"
        # The agent's pause ends while it is held back. On a busy machine the other one may not run at that moment.
        for _ in range(20):
            guard.request(0.5)
            while (found := agent.next()) is None or getattr(found, "kind", None) is not NoticeKind.HOLDS_BACK:
                assert found is not None
            ask(agent, Operation.UNLOCK, program.key)
            stayed = is_held(program)
            guard.wait()
            program.runs()
            if stayed:
                break
            ask(agent, Operation.LOCK, program.key, timeout_ms=5000)
        assert stayed, "it is still held back"
        # And without the other.
        ask(agent, Operation.LOCK, program.key, timeout_ms=5000)
        ask(agent, Operation.UNLOCK, program.key)
        program.runs()


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_it_is_held_back_for_no_more_than_the_share_of_the_other(share: float) -> None:
    """A guard that works all the time."""
    now_s = 0.0
    held_s: list[float] = []

    def report(_: ProcessKey, begins: bool, seconds: float) -> None:
        if not begins:
            held_s.append(seconds)

    holdback = HoldBack(lambda _: None, lambda _: None, report, cpu_time_s=lambda _: now_s)
    holdback.yield_to(ProcessKey(2, 1), GROUP)
    holdback.guard(ProcessKey(1, 1), GROUP, share)
    begin_s = now_s = time.monotonic()
    while now_s < begin_s + 60.0:
        now_s += POLL_S
        holdback.look(now_s)
    assert sum(held_s) <= BUCKET_S + share * 60.0 + 0.1
    # A pause may go on at the end, and after each one others run for a moment.
    assert sum(held_s) >= 0.9 * share * 60.0 - LONGEST_S
    assert max(held_s) <= LONGEST_S + 0.01


def test_a_program_that_could_not_be_paused_is_tried_again() -> None:
    """In the same pause: by a clock of its own, which is ahead of the machine's."""
    begin_s = now_s = time.monotonic() + 1.0
    calls: list[ProcessKey] = []

    def hold(process: ProcessKey) -> float | None:
        calls.append(process)
        return 0.0 if len(calls) == 1 else None

    def is_tried_again() -> bool:
        nonlocal now_s
        now_s += POLL_S
        holdback.look(now_s)
        return len(calls) == 2

    holdback = HoldBack(hold, lambda _: None, lambda *_: None, cpu_time_s=lambda _: now_s)
    holdback.guard(ProcessKey(1, 1), GROUP, 1.0)
    holdback.yield_to(ProcessKey(2, 1), GROUP)
    until(is_tried_again, "it is tried again", within_s=40)
    assert now_s - begin_s < LONGEST_S


def test_a_group_in_which_nothing_yields_is_in_the_way_of_no_other() -> None:
    calls: list[ProcessKey] = []
    holdback = HoldBack(calls.append, lambda _: None, lambda *_: None, cpu_time_s=lambda _: time.monotonic())
    for group in (GROUP, "gpu1/latency"):
        holdback.guard(ProcessKey(1, 1), group, 1.0)
    holdback.yield_to(ProcessKey(2, 1), GROUP)
    holdback.start()
    until(lambda: calls, "it is held back", within_s=40)
    holdback.leave(ProcessKey(2, 1))


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_it_runs_when_the_pauser_is_killed_or_stopped_meanwhile(cuda: FakeCuda, record: Path, number: int) -> None:
    program = cuda.start()
    with child(cuda, record) as (process, agent), server() as guard:
        agent.hello()
        until(lambda: watchdog_of(process.pid), "the watchdog has started")
        name_both(agent, guard, program)
        work_until_held(guard, program, 1.5)
        os.kill(process.pid, number)
        program.runs()


def test_it_runs_when_the_agent_ends_or_takes_it_out(cuda: FakeCuda, record: Path) -> None:
    program = cuda.start()
    with child(cuda, record) as (_, agent), server() as guard:
        agent.hello()
        name_both(agent, guard, program)
        work_until_held(guard, program, 1.5)
        ask(agent, Operation.LEAVE_GROUPS, program.key)
        program.runs()
        ask(agent, Operation.YIELD_TO, program.key)
        work_until_held(guard, program, 1.5)
    program.runs()


def test_the_cpu_time_of_a_process_counts_all_threads() -> None:
    with server() as one:
        before_s = cpu_time_s(one.key.pid)
        one.request(0.2)
        one.wait()
        after_s = cpu_time_s(one.key.pid)
        assert before_s is not None
        assert after_s is not None
        assert 0.01 < after_s - before_s < 1.0
    assert cpu_time_s(one.key.pid) is None


def test_one_look_at_eight_programs_is_cheap() -> None:
    """Two percent of a core at 250 looks a second are 80 microseconds each; without the sleep in between, less."""
    holdback = HoldBack(lambda _: None, lambda _: None, lambda *_: None)
    for pid in range(8):
        holdback.guard(ProcessKey(os.getpid(), pid), GROUP, 1.0)
        holdback.yield_to(ProcessKey(1, pid), GROUP)
    begin_s = time.process_time()
    for number in range(1000):
        holdback.look(float(number))
    assert (time.process_time() - begin_s) / 1000 < 0.0005
