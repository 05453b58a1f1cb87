"""A pid file names a process by pid and start time, so that a reused pid is not mistaken for ours."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpucommons.stack.process import (
    StartedProcess,
    identity_of,
    is_alive,
    read_pid_file,
    send,
    wait_gone,
    write_pid_file,
)


@pytest.fixture
def sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["sleep", "60"])


def test_a_process_is_known_until_it_ends(tmp_path: Path, sleeper: "subprocess.Popen[bytes]") -> None:
    identity = identity_of(sleeper.pid)
    assert identity is not None
    write_pid_file(tmp_path / "a.pid", identity)
    assert read_pid_file(tmp_path / "a.pid") == identity
    send(identity, signal.SIGTERM)
    assert wait_gone([identity], 5) == [], "a zombie counts as gone"
    assert read_pid_file(tmp_path / "a.pid") is None
    sleeper.wait()


def test_another_process_under_the_same_pid_is_not_ours(tmp_path: Path, sleeper: "subprocess.Popen[bytes]") -> None:
    old = StartedProcess(sleeper.pid, "1")
    write_pid_file(tmp_path / "a.pid", old)
    assert read_pid_file(tmp_path / "a.pid") is None
    send(old, signal.SIGKILL)
    assert sleeper.poll() is None, "it was not signalled"
    sleeper.kill()
    sleeper.wait()


@pytest.mark.parametrize("content", ["", "{}", "12", "[]", '{"pid": "x", "started": "1"}', "\x00\xff", "null"])
def test_a_damaged_pid_file_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.pid").write_text(content)
    assert read_pid_file(tmp_path / "a.pid") is None
    assert read_pid_file(tmp_path / "nowhere.pid") is None


def test_a_name_with_parentheses_and_spaces_is_read_right(tmp_path: Path) -> None:
    program = tmp_path / "a) b (c"
    program.symlink_to(sys.executable)
    process = subprocess.Popen([str(program), "-c", "input()"], stdin=subprocess.PIPE)
    try:
        identity = identity_of(process.pid)
        assert identity is not None
        assert identity.started.isdigit()
        assert is_alive(identity)
        assert json.dumps(identity.pid)
    finally:
        process.kill()
        process.wait()
