"""A process is read completely or not at all, whatever its name is and whenever it ends."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attribution.procfs_tree import add_process
from descriptors import open_descriptors
from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import ProcessDetails, ProcessKey
from gpucommons.sources.host.process_details import ProcessDetailsReader

PROC = Path("/proc")


def details_of(procfs: Path, pid: int, look_for_gpu: bool = False) -> ProcessDetails:
    found = ProcessDetailsReader(procfs).read(pid, look_for_gpu)
    assert isinstance(found, ProcessDetails)
    return found


def test_a_real_process() -> None:
    found = details_of(PROC, os.getpid())
    assert found.key.pid == os.getpid()
    assert found.cgroup == (PROC / "self" / "cgroup").read_text()
    assert f"Uid:\t{os.getuid()}\t" in found.status
    assert found.holds_gpu is None


def test_the_ancestors_of_a_real_process() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        found = details_of(PROC, pid).ancestors
        keys = [details_of(PROC, each).key for each in (shell.pid, os.getpid())]
        os.kill(pid, signal.SIGKILL)
    assert list(found[:2]) == keys, "the nearest is first"


def test_a_real_process_that_holds_no_gpu() -> None:
    assert details_of(PROC, os.getpid(), look_for_gpu=True).holds_gpu is False


@pytest.mark.parametrize("name", ["a) S 1 (b", "two\nlines", "Uid:\t0", "\t", ")", "(((", "é\\n"])
def test_a_real_process_with_a_hostile_name(name: str) -> None:
    """A process can set its name to any 15 bytes; no name may be parsed as another field."""
    script = (
        "import ctypes, sys\n"
        "ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        found = details_of(PROC, process.pid)
        process.communicate()
    assert found.name == name
    assert found.key.pid == process.pid
    assert f"\nUid:\t{os.getuid()}\t" in found.status
    assert ProcessDetailsReader(PROC).read(process.pid) is Reason.PROCESS_GONE


def test_a_process_that_does_not_exist(tmp_path: Path) -> None:
    assert ProcessDetailsReader(tmp_path).read(1) is Reason.PROCESS_GONE
    assert ProcessDetailsReader(tmp_path / "nowhere").read(1) is Reason.PROCESS_GONE


@pytest.mark.parametrize("missing", ["stat", "status"])
def test_a_missing_file_means_that_the_process_has_ended(tmp_path: Path, missing: str) -> None:
    (add_process(tmp_path, 7) / missing).unlink()
    assert ProcessDetailsReader(tmp_path).read(7) is Reason.PROCESS_GONE


def test_a_kernel_without_cgroups(tmp_path: Path) -> None:
    (add_process(tmp_path, 7) / "cgroup").unlink()
    assert details_of(tmp_path, 7).cgroup == ""


@pytest.mark.parametrize("gone_at", ["stat", "status", "cgroup", "fd"])
def test_a_process_that_vanishes_between_two_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone_at: str
) -> None:
    """At whichever open it ends, and even if another process takes its pid: that process's files are never read."""
    process = add_process(tmp_path, 7, name="mine", start_ticks=1, cgroup="0::/mine\n")
    real_open: Callable[..., int] = os.open
    opened: list[str] = []

    def vanish_first(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        opened.append(path)
        if opened.count(gone_at) == 1 and path == gone_at:
            shutil.rmtree(process, ignore_errors=True)
            add_process(tmp_path, 7, name="stranger", start_ticks=2, cgroup="0::/stranger\n")
        return real_open(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", vanish_first)
    found = ProcessDetailsReader(tmp_path).read(7, look_for_gpu=True)
    if isinstance(found, ProcessDetails):
        assert (gone_at, found.name, found.cgroup, found.holds_gpu) == ("fd", "mine", "0::/mine\n", None)
    else:
        assert found is Reason.PROCESS_GONE


@pytest.mark.parametrize("text", ["", "7", "7 (x", "7 (x) S 1", "x (y) S" + " z" * 30, "7 (x) S" + " z" * 30])
def test_an_invalid_stat_file(tmp_path: Path, text: str) -> None:
    (add_process(tmp_path, 7) / "stat").write_text(text)
    assert ProcessDetailsReader(tmp_path).read(7) in (Reason.PROCESS_UNREADABLE, Reason.PROCESS_GONE)


def test_a_huge_cgroup_file_is_truncated(tmp_path: Path) -> None:
    (add_process(tmp_path, 7) / "cgroup").write_bytes(b"0::/" + b"\xff" * (5 << 20))
    assert len(details_of(tmp_path, 7).cgroup) == 64 * 1024 + 1


def test_not_permitted(tmp_path: Path) -> None:
    """A directory in place of a file cannot be read even by root, like a process that hidepid hides."""
    process = add_process(tmp_path, 7)
    (process / "stat").unlink()
    (process / "stat").mkdir()
    assert ProcessDetailsReader(tmp_path).read(7) is Reason.PROCESS_UNREADABLE


@pytest.mark.parametrize(
    ("files", "holds"),
    [
        (("/dev/null", "/dev/nvidiactl"), True),
        (("/dev/dxg",), True),
        (("/dev/null", "/tmp/dev/nvidia0", "socket:[1]"), False),
        ((), False),
    ],
)
def test_a_process_that_has_a_gpu_open(tmp_path: Path, files: tuple[str, ...], holds: bool) -> None:
    add_process(tmp_path, 7, open_files=files)
    assert details_of(tmp_path, 7, look_for_gpu=True).holds_gpu is holds


def test_a_process_is_alive_until_it_ends() -> None:
    reader = ProcessDetailsReader(PROC)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = reader.read(process.pid)
        assert isinstance(found, ProcessDetails)
        assert reader.is_alive(found.key)
        assert not reader.is_alive(found.key._replace(start_ticks=1))
        process.communicate(b"\n")
    assert not reader.is_alive(found.key)


def test_a_reused_pid_is_another_process(tmp_path: Path) -> None:
    reader = ProcessDetailsReader(tmp_path)
    process = add_process(tmp_path, 7, start_ticks=1)
    reader.read(7)
    shutil.rmtree(process)
    add_process(tmp_path, 7, start_ticks=2)
    assert not reader.is_alive(ProcessKey(7, 1))
    assert reader.is_alive(ProcessKey(7, 2))


def test_descriptors_are_closed(tmp_path: Path) -> None:
    keys = [ProcessKey(pid, 100) for pid in range(1000, 1600)]
    for key in keys:
        add_process(tmp_path, key.pid)
    (add_process(tmp_path, 8) / "stat").write_text("?")
    reader = ProcessDetailsReader(tmp_path)
    before = open_descriptors()
    for pid in (8, 9, *(key.pid for key in keys)) * 2:
        reader.read(pid, look_for_gpu=True)
    assert len(open_descriptors() - before) == 512
    assert all(reader.is_alive(key) for key in keys)
    reader.keep(keys[:5])
    assert len(open_descriptors() - before) == 5
    reader.keep(())
    assert open_descriptors() - before == set()
