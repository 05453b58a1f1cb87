"""Processes from a /proc made by the test, with hostile names and reused pids; and from the real one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.model.process_identity import ProcessKey
from gpucommons.sources.host.portable import PortableProcessReader
from gpucommons.sources.host.processes import ProcessTableReader, parse_stat
from gpucommons.sources.source import SourceAbsent, SourceError


def stat_line(pid: int, name: bytes, *, ticks: int = 0, start: int = 1, pages: int = 1) -> bytes:
    fields = ["S", *["0"] * 10, str(ticks), "0", *["0"] * 6, str(start), "0", str(pages), *["0"] * 28]
    return b"%d (%b) %b\n" % (pid, name, " ".join(fields).encode())


def add(root: Path, pid: int, name: bytes = b"p", **stat: int) -> None:
    (root / str(pid)).mkdir(exist_ok=True)
    (root / str(pid) / "stat").write_bytes(stat_line(pid, name, **stat))


@given(st.binary(min_size=0, max_size=64), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_any_name_is_read_back(name: bytes, ticks: int, start: int, pages: int) -> None:
    row = parse_stat(stat_line(7, name, ticks=ticks, start=start, pages=pages), 100, 4096)
    assert row.key == ProcessKey(7, start)
    assert row.name == name.decode("utf-8", "replace")
    assert row.cpu_seconds == ticks / 100
    assert row.rss_bytes == pages * 4096


def test_hostile_and_ending_processes_do_not_fail_a_pass(tmp_path: Path) -> None:
    add(tmp_path, 1, b"a) b (c\n)")
    add(tmp_path, 2, b"\xff\xfe")
    (tmp_path / "3").mkdir()
    (tmp_path / "4").mkdir()
    (tmp_path / "4" / "stat").write_bytes(b"4 (cut off")
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "stat").write_bytes(b"5 (short) S 1 2\n")
    (tmp_path / "sys").mkdir()
    table = ProcessTableReader(tmp_path, 100).read()
    assert {pid: row.name for pid, row in table.by_pid.items()} == {1: "a) b (c\n)", 2: "��"}


def test_a_reused_pid_is_another_process(tmp_path: Path) -> None:
    source = ProcessTableReader(tmp_path, 100)
    add(tmp_path, 1, b"old", start=10, ticks=500)
    old = source.read().by_pid[1]
    add(tmp_path, 1, b"old", start=99, ticks=1)
    new = source.read().by_pid[1]
    assert (old.key, new.key) == ((1, 10), (1, 99))
    assert new.cpu_seconds == 0.01


def test_ended_processes_are_removed(tmp_path: Path) -> None:
    source = ProcessTableReader(tmp_path, 100)
    add(tmp_path, 1)
    add(tmp_path, 2)
    source.read()
    shutil.rmtree(tmp_path / "1")
    table = source.read()
    assert set(table.by_pid) == {2}
    assert table.busiest == ((2, 1),)


def test_an_unchanged_process_is_not_parsed_again(tmp_path: Path) -> None:
    source = ProcessTableReader(tmp_path, 100)
    add(tmp_path, 1)
    add(tmp_path, 2, ticks=1)
    before = source.read().by_pid
    add(tmp_path, 2, ticks=2)
    after = source.read().by_pid
    assert after[1] is before[1]
    assert after[2].cpu_seconds == 0.02


def test_an_empty_or_missing_proc_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no process"):
        ProcessTableReader(tmp_path, 100).read()
    with pytest.raises(SourceAbsent, match="no processes"):
        ProcessTableReader(tmp_path / "nowhere", 100).read()


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
def test_the_real_proc_agrees_with_psutil() -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        ours = ProcessTableReader(Path("/proc"), 100).read().by_pid
        theirs = PortableProcessReader(100).read().by_pid
        row = ours[child.pid]
        assert row.name == psutil.Process(child.pid).name() == theirs[child.pid].name
        assert row.rss_bytes > 0
        assert ours[os.getpid()].cpu_seconds == pytest.approx(theirs[os.getpid()].cpu_seconds, abs=0.5)
        child.communicate()
    assert child.pid not in ProcessTableReader(Path("/proc"), 100).read().by_pid
