"""The supervisor restarts programs that die, with backoff; ends all on SIGTERM; and its death ends all."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.stack.process import StartedProcess, read_pid_file, wait_gone
from gpucommons.stack.supervisor import (
    SupervisedProgram,
    deaths_file,
    exclusive,
    failures_after,
    read_plan,
    restart_delay_s,
    write_plan,
)
from waiting import until


@given(st.integers(0, 10_000))
def test_patience_grows_to_a_minute_and_no_further(failures: int) -> None:
    assert 1.0 <= restart_delay_s(failures) <= restart_delay_s(failures + 1) <= 60.0


def test_a_minute_of_running_is_forgiveness() -> None:
    assert failures_after(7, ran_s=59.9) == 8
    assert failures_after(7, ran_s=60.0) == 1


@contextmanager
def supervised(run: Path, *programs: str) -> Iterator["subprocess.Popen[bytes]"]:
    services = [
        SupervisedProgram(f"s{number}", ["sh", "-c", program], str(run / "log" / f"s{number}.log"))
        for number, program in enumerate(programs)
    ]
    write_plan(run, services)
    assert read_plan(run) == services
    process = subprocess.Popen(
        [sys.executable, "-m", "gpucommons.stack.supervisor", str(run)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def child(run: Path, name: str = "s0", other_than: StartedProcess | None = None) -> StartedProcess:
    def ask() -> StartedProcess | None:
        found = read_pid_file(run / f"{name}.pid")
        return None if found == other_than else found

    return until(ask)


def test_what_dies_is_started_again_and_what_is_stopped_is_not(tmp_path: Path) -> None:
    with supervised(tmp_path, "echo hello; exec sleep 60", "exec sleep 61") as supervisor:
        first, other = child(tmp_path), child(tmp_path, "s1")
        os.kill(first.pid, signal.SIGKILL)
        second = child(tmp_path, other_than=first)
        assert deaths_file(tmp_path, "s0").read_text() == "1"
        assert not deaths_file(tmp_path, "s1").exists()
        assert child(tmp_path, "s1") == other, "the other was left alone"
        supervisor.terminate()
        assert supervisor.wait(20) == 0
        assert wait_gone([second, other], 5) == []
        assert not list(tmp_path.glob("*.pid"))
        assert (tmp_path / "log/s0.log").read_text() == "hello\nhello\n"


def test_a_program_that_ignores_the_request_to_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys, gpucommons.stack.supervisor as s; from pathlib import Path;"
        "s._STOP_S = 0.2; sys.exit(s.run_supervisor(Path(sys.argv[1])))"
    )
    write_plan(
        tmp_path,
        [SupervisedProgram("s0", ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"], str(tmp_path / "l"))],
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    supervisor = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment)
    stubborn = child(tmp_path)
    supervisor.terminate()
    assert supervisor.wait(20) == 0
    assert wait_gone([stubborn], 5) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_a_supervisor_that_is_killed_takes_its_programs_with_it(tmp_path: Path) -> None:
    with supervised(tmp_path, "exec sleep 60") as supervisor:
        program = child(tmp_path)
        supervisor.kill()
        assert wait_gone([program], 10) == []


def test_one_directory_has_one_supervisor(tmp_path: Path) -> None:
    with supervised(tmp_path, "exec sleep 60"):
        child(tmp_path)
        second = subprocess.run(
            [sys.executable, "-m", "gpucommons.stack.supervisor", str(tmp_path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            timeout=30,
        )
        assert second.returncode == 3
    with exclusive(tmp_path) as alone:
        assert alone, "the lock went with its holder"


def test_a_log_does_not_grow_for_ever(tmp_path: Path) -> None:
    log = tmp_path / "log" / "s0.log"
    log.parent.mkdir()
    log.write_bytes(b"x" * (11 * 2**20))
    with supervised(tmp_path, "echo new; exec sleep 60"):
        child(tmp_path)
        until(lambda: log.exists() and log.read_text() == "new\n")
    assert log.with_suffix(".log.1").stat().st_size == 11 * 2**20
