"""Pausing without the driver: a real cgroup v2 freezer and real signals."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.cuda.control import FakeCuda, FakeProgram
from gpucommons.pauser.backend import Code, Failure, State
from gpucommons.pauser.client import Pauser, PauserSettings
from gpucommons.pauser.freeze import Freeze
from gpucommons.pauser.release import state_letter
from needs import needs_root
from pauser.rig import code_of, environment, run_with
from waiting import until


def cgroup_root() -> Path:
    """Where this machine has cgroup v2; without it, or without the right to make a group there, the test cannot be."""
    needs_root()
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    found = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"]
    if not found or not os.access(found[0], os.W_OK):
        pytest.skip("needs a writable cgroup v2")
    return found[0]


@contextmanager
def group(name: str) -> Iterator[Path]:
    path = cgroup_root() / name
    path.mkdir()
    try:
        yield path
    finally:
        (path / "cgroup.freeze").write_text("0")
        for pid in (path / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        # A killed process leaves the list before it leaves the group, which cannot be removed until then.
        until(lambda: "populated 0" in (path / "cgroup.events").read_text(), "the group is empty")
        path.rmdir()


@pytest.fixture
def container() -> Iterator[Path]:
    with group(f"docker-{secrets.token_hex(32)}.scope") as path:
        yield path


def put(program: FakeProgram, into: Path) -> None:
    (into / "cgroup.procs").write_text(str(program.pid))


def test_a_bare_program_is_stopped_and_continued(cuda: FakeCuda) -> None:
    program, freeze = cuda.start(), Freeze()
    assert freeze.state(program.pid) is State.RUNNING
    assert freeze.lock(program.pid, 1000) is None
    assert freeze.state(program.pid) is State.LOCKED
    assert program.stands_still()
    assert code_of(freeze.lock(program.pid, 1000)) == Code.STOPPED
    assert freeze.unlock(program.pid) is None
    program.runs()
    assert code_of(freeze.unlock(program.pid)) == Code.WRONG_STATE
    assert code_of(freeze.checkpoint(program.pid)) == Code.NOT_SUPPORTED
    assert code_of(freeze.restore(program.pid)) == Code.NOT_SUPPORTED
    program.end()
    assert code_of(freeze.lock(program.pid, 100)) == Code.OPERATING_SYSTEM
    assert isinstance(freeze.state(program.pid), Failure)


def test_a_container_is_frozen_as_a_whole_and_thaws_with_the_last(cuda: FakeCuda, container: Path) -> None:
    one, two, freeze = cuda.start(), cuda.start(), Freeze()
    for program in (one, two):
        put(program, container)
    assert freeze.lock(one.pid, 2000) is None
    assert one.stands_still()
    assert two.stands_still()
    assert state_letter(one.pid) != "T", "frozen, not stopped: no shell sees it"
    assert freeze.lock(two.pid, 2000) is None
    assert freeze.unlock(one.pid) is None
    assert two.stands_still(), "the other is still held"
    assert freeze.unlock(two.pid) is None
    one.runs()
    two.runs()


def test_after_a_restart_a_container_thaws_at_once(cuda: FakeCuda, container: Path) -> None:
    program = cuda.start()
    put(program, container)
    assert Freeze().lock(program.pid, 2000) is None
    successor = Freeze()
    assert successor.state(program.pid) is State.LOCKED
    assert successor.unlock(program.pid) is None
    program.runs()


def test_a_container_that_was_paused_by_its_owner_stays_so(cuda: FakeCuda, container: Path) -> None:
    program = cuda.start()
    put(program, container)
    (container / "cgroup.freeze").write_text("1")
    until(lambda: "frozen 1" in (container / "cgroup.events").read_text(), "it is frozen")
    assert code_of(Freeze().lock(program.pid, 1000)) == Code.STOPPED
    assert "frozen 1" in (container / "cgroup.events").read_text()


def test_a_group_that_is_no_container_is_never_frozen(cuda: FakeCuda) -> None:
    with group(f"user-{os.getpid()}.slice") as slice_:
        program, freeze = cuda.start(), Freeze()
        put(program, slice_)
        assert freeze.lock(program.pid, 1000) is None
        assert (slice_ / "cgroup.freeze").read_text() == "0\n"
        assert state_letter(program.pid) == "T"
        assert freeze.unlock(program.pid) is None


INSIDE = """
import sys
from gpucommons.pauser.freeze import Freeze
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
failed = Freeze().lock(int(sys.argv[2]), 1000)
sys.stdout.write(failed.meaning)
"""


def test_a_container_that_holds_the_pauser_is_never_frozen(cuda: FakeCuda, container: Path) -> None:
    program = cuda.start()
    put(program, container)
    done = subprocess.run(
        [sys.executable, "-c", INSIDE, str(container), str(program.pid)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "holds the pauser or the agent" in done.stdout, done.stderr
    program.runs()
    freeze = Freeze()
    assert code_of(freeze.lock(os.getpid(), 100)) == Code.REFUSED
    freeze.protected = {program.pid}
    assert code_of(freeze.lock(program.pid, 100)) == Code.REFUSED
    program.runs()


def test_the_pauser_keeps_its_promises_with_it(cuda: FakeCuda, container: Path, record: Path) -> None:
    bare, inside = cuda.start(), cuda.start()
    put(inside, container)
    given = PauserSettings(record=record, backend="freeze", environment=environment())

    async def body(pauser: Pauser) -> None:
        for program in (bare, inside):
            reply = await pauser.lock(program.key, timeout_ms=2000)
            assert reply.failure is None, reply.failure
            assert program.stands_still()
        assert pauser.pid is not None
        os.kill(pauser.pid, signal.SIGKILL)
        await asyncio.to_thread(bare.runs)
        await asyncio.to_thread(inside.runs)

    run_with(given, body)
    assert list(record.iterdir()) == []
