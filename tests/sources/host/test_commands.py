"""Names and command lines of real processes."""

import os
import subprocess
import sys
from pathlib import Path

from gpucommons.base.processes import MAX_COMMAND_BYTES, start_ticks
from gpucommons.model.process_identity import ProcessKey
from gpucommons.sources.host.process_details import CommandReader
from waiting import until

READER = CommandReader(Path("/proc"))


def key_of(pid: int) -> ProcessKey:
    return ProcessKey(pid, start_ticks(Path(f"/proc/{pid}/stat").read_bytes()))


def test_the_command_line_of_a_process_until_it_ends() -> None:
    arguments = [sys.executable, "-c", "import sys; sys.stdin.read()", "", "a b", "\x1b[31m", "\n"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE) as child:
        key = key_of(child.pid)
        until(lambda: READER.command_line(key) == tuple(arguments))
        assert READER.command_line(ProcessKey(child.pid, key.start_ticks + 1)) == ()
        child.kill()
        child.wait()
        assert READER.command_line(key) == ()
        assert READER.name(child.pid) is None


def test_a_name_changes_with_the_program() -> None:
    with subprocess.Popen(["bash", "-c", "read; exec sleep 60"], stdin=subprocess.PIPE) as child:
        try:
            until(lambda: READER.name(child.pid) == "bash\n")
            assert child.stdin is not None
            child.stdin.write(b"\n")
            child.stdin.flush()
            until(lambda: READER.name(child.pid) == "sleep\n")
            assert READER.command_line(key_of(child.pid)) == ("sleep", "60")
        finally:
            child.kill()


def test_a_long_command_line_is_cut() -> None:
    with subprocess.Popen(["sleep", "60", *["0" * 1000] * 100]) as child:
        try:
            until(lambda: READER.name(child.pid) == "sleep\n")
            # The kernel sets the name a moment before the arguments.
            found = until(lambda: READER.command_line(key_of(child.pid)))
            assert found[:3] == ("sleep", "60", "0" * 1000)
            assert len("\0".join(found)) <= MAX_COMMAND_BYTES
        finally:
            child.kill()


def test_a_kernel_thread_or_missing_procfs_has_none(tmp_path: Path) -> None:
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "stat").write_text("?")
    nowhere = CommandReader(tmp_path)
    assert nowhere.command_line(ProcessKey(9, 1)) == ()
    assert nowhere.command_line(key_of(os.getpid())) == ()
    assert nowhere.name(9) is None
