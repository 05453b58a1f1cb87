"""Users name processes, and directories of cgroups that were delegated to them, so that a part looks like a line."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from fakes.cuda.control import FakeCuda
from gpucommons.base.cgroup_paths import cgroup_lines
from gpucommons.pauser.client import Pauser
from gpucommons.pauser.freeze import Freeze
from gpucommons.pauser.release import key_of
from gpucommons.pauser.stopped import FreezerMounts, why_stopped
from gpucommons.pauser.suspension import Suspensions
from gpucommons.scheduler.parking.host import container_room_bytes, job_marks
from needs import needs_root
from pauser.rig import code_of, run_with, settings
from tiers import in_long_tier
from waiting import until

# What ends a line for str.splitlines, or for a file that is opened as text. The kernel refuses only newlines.
SEPARATORS = ("\x0c", "\r", "\u2028", "\x85")
PROGRAM = (
    "import ctypes, sys; ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1]), 0, 0, 0); print(flush=True); input()"
)
IDS = [f"U+{ord(separator):04X}" for separator in SEPARATORS]


@pytest.fixture(params=(SEPARATORS[0], *in_long_tier(*SEPARATORS[1:])), ids=IDS)
def cgroup(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A cgroup whose name contains what looks like another line, where the freezer is mounted."""
    needs_root()
    mounts = FreezerMounts()
    mount = mounts.v2 or mounts.v1
    if mount is None:
        pytest.skip("needs a mounted freezer")
    directory = mount / f"gpucommons-test-{uuid4().hex}{request.param}no-colon"
    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"needs cgroups that can be written: {error}")
    yield directory
    with suppress(OSError):
        for pid in (directory / "cgroup.procs").read_text().split():
            (mount / "cgroup.procs").write_text(pid)
        until(lambda: not (directory / "cgroup.procs").read_text(), "it is empty")
        directory.rmdir()


def test_a_program_in_such_a_cgroup_is_paused_as_any_other(cuda: FakeCuda, record: Path, cgroup: Path) -> None:
    program, other = cuda.start(), cuda.start()
    (cgroup / "cgroup.procs").write_text(str(program.pid))
    assert why_stopped(program.pid) == ""
    assert container_room_bytes([program.pid]) is None or container_room_bytes([program.pid])
    assert any(cgroup.name in mark for mark in job_marks(program.pid))

    async def body(pauser: Pauser) -> None:
        first = pauser.pid
        assert code_of(await pauser.watch(program.key)) == 0
        assert code_of(await pauser.watch(other.key)) == 0
        # The thread that looks at programs does so ten times a second, and the watchdog waits for 2 s.
        for _ in range(30):
            assert code_of(await pauser.lock(program.key)) == 0
            assert code_of(await pauser.unlock(program.key)) == 0
            await asyncio.sleep(0.1)
        assert (pauser.pid, pauser.available) == (first, True)

    run_with(settings(cuda, record), body)


def test_a_frozen_one_is_found(cuda: FakeCuda, cgroup: Path) -> None:
    program = cuda.start()
    (cgroup / "cgroup.procs").write_text(str(program.pid))
    name, words = ("cgroup.freeze", ("1", "0"))
    if not (cgroup / name).exists():
        name, words = ("freezer.state", ("FROZEN", "THAWED"))
    (cgroup / name).write_text(words[0])
    try:
        until(lambda: why_stopped(program.pid) == "its cgroup is frozen", "it is found frozen")
    finally:
        (cgroup / name).write_text(words[1])


@pytest.mark.parametrize("separator", SEPARATORS, ids=IDS)
def test_no_part_of_a_path_is_a_line(separator: str) -> None:
    path = f"/user.slice/a{separator}0::/system.slice/docker-{'a' * 64}.scope"
    assert cgroup_lines(f"1:name=systemd:{path}\n0::/b\n") == [("name=systemd", path), ("", "/b")]


@pytest.mark.parametrize("cut", ["0", "0:", ""])
def test_a_line_that_was_cut_short_is_left_out(cut: str) -> None:
    assert cgroup_lines(f"1:name=systemd:/a\n{cut}") == [("name=systemd", "/a")]


def test_the_freezer_of_another_container_cannot_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the driver's calls a container is frozen as a whole."""
    own, other = tmp_path / "own", tmp_path / "other"
    text = f"1:name=systemd:/a\r0::/{'b' * 64}\n0::/own\n"
    for directory in (own, other):
        directory.mkdir()
    monkeypatch.setattr("gpucommons.pauser.freeze.read_cgroups", lambda pid: cgroup_lines(text))
    freeze = Freeze()
    monkeypatch.setattr(freeze, "_root", tmp_path)
    assert freeze._container(os.getpid()) is None


@pytest.mark.parametrize("name", [b"a\x0cState:", b"a\rState:", b"a\x0cState:\tT"])
def test_a_name_is_not_the_state_of_a_suspended_process(name: bytes) -> None:
    """The thread that continues the processes of suspended jobs goes on."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name.hex()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline()
        suspensions = Suspensions()
        program.send_signal(signal.SIGSTOP)
        until(lambda: why_stopped(program.pid) != "", "it is stopped")
        key = key_of(program.pid)
        assert key is not None
        assert suspensions.let_run(key) is None
        assert why_stopped(program.pid) == ""
    finally:
        program.kill()
        program.communicate()
