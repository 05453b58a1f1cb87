"""Prolog, epilog and task prolog: the job's file, the indices of night jobs, the wait for a suspended job's memory."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucommons.slurm import hooks

_JOB = {"SLURM_JOB_ID": "41", "SLURM_JOB_UID": "1000", "SLURM_JOB_GPUS": "4-5,7", "SLURMD_NODENAME": "gpu1"}


def run_hook(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """As the printed script does: the file alone, without site-packages."""
    command = [sys.executable, "-I", "-S", hooks.__file__, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)


def test_the_file_of_a_job_is_written_by_the_prolog_and_removed_by_the_epilog(tmp_path: Path) -> None:
    jobs, agent = tmp_path / "jobs", tmp_path / "agent"
    agent.mkdir()
    options = ("--directory", str(jobs), "--agent-directory", str(agent), "--gpus", "4")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(agent / "api.sock"))
        listener.listen()
        done = run_hook("prolog", *options, **_JOB)
    assert (done.returncode, done.stderr) == (0, "")
    assert hooks.read_jobs(str(jobs)) == {41: {"uid": "1000", "gpus": "0,1,3", "node": "gpu1"}}
    assert (jobs / "41").stat().st_mode & 0o777 == 0o644
    assert run_hook("epilog", *options, **_JOB).returncode == 0
    assert os.listdir(jobs) == []


def test_without_an_agent_the_job_begins_and_one_line_says_so(tmp_path: Path) -> None:
    done = run_hook("prolog", "--directory", str(tmp_path / "jobs"), "--agent-directory", str(tmp_path), **_JOB)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "job 41: no agent answers" in done.stderr
    assert list(hooks.read_jobs(str(tmp_path / "jobs"))) == [41], "an agent that starts later finds the job"


@pytest.mark.parametrize("hook", hooks.HOOKS)
def test_no_hook_fails_a_job(hook: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for environment in ({}, {**_JOB, "SLURM_JOB_ID": "x"}, {**_JOB, "SLURM_JOB_UID": ""}, _JOB):
        done = run_hook(hook, "--directory", str(tmp_path / "file"), "--gpus", "4", "--wait", "0", **environment)
        assert done.returncode == 0
        assert done.stderr.count("\n") <= 1, "at most one line"
    assert run_hook(hook, "--gpus", **_JOB).returncode == 0, "not even by a wrong option"


def test_the_command_starts_a_hook_without_the_rest_of_the_package(tmp_path: Path) -> None:
    program = "import sys; from gpucommons.__main__ import main; main(); print(*sorted(sys.modules))"
    command = [sys.executable, "-c", program, "slurm", "prolog", "--directory", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, **_JOB}, capture_output=True, text=True, check=True, timeout=30)
    loaded = {name for name in done.stdout.split() if name.partition(".")[0] == "gpucommons"}
    assert loaded == {"gpucommons", "gpucommons.__main__", "gpucommons.slurm", "gpucommons.slurm.hooks"}
    assert not {"typing", "json", "socket", "subprocess", "typer"} & set(done.stdout.split())


def test_a_job_without_gpus_has_no_file(tmp_path: Path) -> None:
    run_hook("prolog", "--directory", str(tmp_path), SLURM_JOB_ID="41", SLURM_JOB_UID="1000")
    assert os.listdir(tmp_path) == []


class Clock:
    """Time that passes only while the hook sleeps. `at` are changes of the world, by second."""

    def __init__(self, at: dict[float, Callable[[], object]] | None = None) -> None:
        self.now_s = 0.0
        self._at = dict(at or {})

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for due in [second for second in self._at if second <= self.now_s]:
            self._at.pop(due)()


def lines_of(tmp_path: Path, clock: Clock, wait_s: float = 60.0, **environment: str) -> list[str]:
    given = {"SLURM_JOB_ID": "50", "SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0", **environment}
    return list(
        hooks.task_prolog(given, str(tmp_path), str(tmp_path), 4, wait_s, now=lambda: clock.now_s, sleep=clock.sleep)
    )


def night_job(tmp_path: Path, id: int = 49, gpus: str = "0") -> Path:
    path = tmp_path / str(id)
    path.write_text(f"uid 1000\ngpus {gpus}\nnode gpu1\n")
    return path


def says(tmp_path: Path, text: str) -> Callable[[], object]:
    return lambda: (tmp_path / hooks.SUSPENDED_FILE).write_text(text)


def test_a_night_job_gets_the_real_indices(tmp_path: Path) -> None:
    assert lines_of(tmp_path, Clock(), CUDA_VISIBLE_DEVICES="4,6") == ["export CUDA_VISIBLE_DEVICES=0,2"]
    assert lines_of(tmp_path, Clock(), CUDA_VISIBLE_DEVICES="0,2") == []
    assert lines_of(tmp_path, Clock(), CUDA_VISIBLE_DEVICES="GPU-1a2b") == [], "UUIDs are right as they are"


@pytest.mark.parametrize("text", ["²", "١", "1_0", "+1", " 1", "-1", "0-²", "9" * 21, "9" * 5000])
def test_what_is_not_a_number_gives_no_gpu(text: str) -> None:
    assert hooks.indices(text, 4) == []


def test_a_day_job_waits_until_the_memory_of_the_night_job_has_left(tmp_path: Path) -> None:
    night_job(tmp_path)
    clock = Clock({2.5: says(tmp_path, "49 parking moves\n"), 20.0: says(tmp_path, "49 parked it is away\n")})
    assert lines_of(tmp_path, clock) == []
    assert 20.0 <= clock.now_s < 21.0


def test_it_begins_at_once_where_no_other_job_has_its_gpu(tmp_path: Path) -> None:
    night_job(tmp_path, gpus="1,2")
    clock = Clock()
    assert lines_of(tmp_path, clock) == []
    assert clock.now_s == 0


def test_it_begins_at_once_when_the_night_job_ends(tmp_path: Path) -> None:
    file = night_job(tmp_path)
    clock = Clock({1.0: file.unlink})
    assert lines_of(tmp_path, clock) == []
    assert clock.now_s < 2


def test_the_job_reads_in_its_output_why_the_memory_stays(tmp_path: Path) -> None:
    night_job(tmp_path)
    sentence = "suspended job 49 keeps 40.0 GiB on GPU 0: host memory is short"
    clock = Clock({2.0: says(tmp_path, f"49 kept {sentence}\n")})
    assert lines_of(tmp_path, clock) == [f"print gpucommons: {sentence}"]


def test_a_job_that_is_not_suspended_delays_no_other_for_long(tmp_path: Path) -> None:
    night_job(tmp_path)
    clock = Clock()
    assert lines_of(tmp_path, clock) == []
    assert 8 <= clock.now_s < 9


def test_it_begins_after_the_longest_wait_and_says_so(tmp_path: Path) -> None:
    night_job(tmp_path)
    says(tmp_path, "49 parking moves\n")()
    (line,) = lines_of(tmp_path, Clock(), wait_s=30.0)
    assert "job 49 is still on a GPU of this job after 30 s" in line


def test_the_memory_limit_of_shards_under_mps() -> None:
    def limits(shards: str, gpus: str, shard_mib: int = 1000) -> list[str]:
        return list(hooks.memory_limit({"SLURM_SHARDS_ON_NODE": shards, "CUDA_VISIBLE_DEVICES": gpus}, shard_mib))

    name = "export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    assert limits("2", "3") == [f"{name}=0=2000M"], "the first GPU that the job sees"
    assert limits("4", "0,1") == [f"{name}=0=2000M,1=2000M"]
    assert limits("", "0") == limits("2", "") == limits("2", "0", 0) == [], "a job without shards, or no MPS"
