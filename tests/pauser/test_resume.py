"""`gpucommons resume`: with no agent and no pauser, from nothing but the record."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.cuda.control import FakeCuda, FakeProgram
from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml
from gpucommons.cli.main import main
from gpucommons.pauser import places
from gpucommons.pauser.backend import State
from gpucommons.pauser.protocol import Operation, PauserRequest
from needs import needs_program, needs_root
from pauser.rig import child, kill_with_watchdog
from running import command, command_process

GIB = 1 << 30
Resume = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_program("cc")
    return build(tmp_path_factory.mktemp("libnvidia-ml"))


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "nvml", nvml_library)


@pytest.fixture
def resume(cuda: FakeCuda, nvml: FakeNvml, record: Path) -> Resume:
    libraries = f"{cuda.library.parent}:{nvml.library.parent}"
    environment = {**cuda.environment(), **nvml.environment(), "LD_LIBRARY_PATH": libraries}

    def run(*arguments: str, places: tuple[str, ...] = ("--record", str(record))) -> "subprocess.CompletedProcess[str]":
        return command_process("resume", *arguments, *places, environment=environment)

    return run


def left_paused(cuda: FakeCuda, record: Path, *programs: FakeProgram, park: bool = False, gpu: str = "") -> None:
    """Paused, or parked, by a pauser that was killed."""
    with child(cuda, record) as (process, agent):
        agent.hello()
        for number, program in enumerate(programs, 1):
            assert agent.ask(PauserRequest(number, Operation.LOCK, program.key, 500, gpu)).failure is None
            if park:
                assert agent.ask(PauserRequest(99, Operation.CHECKPOINT, program.key)).failure is None
        kill_with_watchdog(process)


def test_what_was_left_runs_again(cuda: FakeCuda, record: Path, resume: Resume) -> None:
    done = resume("--all")
    assert (done.returncode, done.stdout) == (0, "nothing is paused\n")
    one, two, ended = (cuda.start() for _ in range(3))
    left_paused(cuda, record, one, two, ended)
    ended.end()
    done = resume("--all", "--json")
    assert done.returncode == 0, done.stderr
    outcomes = {row["pid"]: row["outcome"] for row in json.loads(done.stdout)["programs"]}
    assert outcomes == {one.pid: "resumed", two.pid: "resumed", ended.pid: "has ended"}
    one.runs()
    two.runs()
    assert list(record.iterdir()) == []


@pytest.mark.long
def test_one_program_by_its_pid(cuda: FakeCuda, record: Path, resume: Resume) -> None:
    one, two = cuda.start(), cuda.start()
    left_paused(cuda, record, one, two)
    assert resume("--pid", str(one.pid)).stdout == f"pid {one.pid}: resumed\n"
    one.runs()
    assert two.state is State.LOCKED
    (record / str(two.pid)).unlink()
    done = resume("--pid", str(two.pid))
    assert (done.returncode, done.stdout) == (0, f"pid {two.pid}: resumed\n")
    two.runs()
    assert resume("--pid", str(two.pid)).stdout == f"pid {two.pid}: was not paused\n"


@pytest.mark.long
def test_what_cannot_be_resumed_is_named_with_the_reason(cuda: FakeCuda, record: Path, resume: Resume) -> None:
    program = cuda.start()
    left_paused(cuda, record, program)
    cuda.say(f"fail unlock 999 {program.pid}")
    done = resume("--all")
    assert done.returncode == 1
    assert f"pid {program.pid}: try again: CUDA error 999" in done.stdout
    assert [path.name for path in record.iterdir()] == [str(program.pid)]
    cuda.unsay("fail")
    assert resume("--all").returncode == 0
    program.runs()


@pytest.mark.parametrize("arguments", [(), ("--all", "--pid", "7"), ("--pid", "0"), ("--pid", "x"), ("--some",)])
def test_wrong_usage_is_one_line(record: Path, arguments: tuple[str, ...]) -> None:
    done = command("resume", *arguments, "--record", str(record))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


@pytest.mark.long
def test_without_a_driver_it_says_so(cuda: FakeCuda, record: Path, tmp_path: Path) -> None:
    program = cuda.start()
    left_paused(cuda, record, program)
    done = command_process("resume", "--all", "--record", str(record), environment={"LD_LIBRARY_PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "cannot load the NVIDIA driver's libcuda.so.1" in done.stdout
    assert [path.name for path in record.iterdir()] == [str(program.pid)]
    (record / str(program.pid)).unlink()
    done = command_process("resume", "--pid", str(program.pid), environment={"LD_LIBRARY_PATH": str(tmp_path)})
    assert done.returncode == 1, "whether it is paused cannot be known"


def test_parked_programs_come_back_where_there_is_room(
    cuda: FakeCuda, record: Path, nvml: FakeNvml, resume: Resume
) -> None:
    size = 16 << 20
    programs = [cuda.start(size) for _ in range(2)]
    left_paused(cuda, record, *programs, park=True)
    # NVML says how much is free: enough for neither, then for both.
    memory = "set nvmlDeviceGetMemoryInfo_v2 0 0"
    nvml.say(f"{memory} {8 * GIB} 0 {GIB} {7 * GIB}")
    done = resume("--all")
    assert done.returncode == 1
    assert done.stdout.count("not restored: it needs 0.0 GiB and a reserve of 1.0 GiB, 1.0 GiB is free") == 2
    assert all(program.state is State.CHECKPOINTED for program in programs)
    assert len(list(record.iterdir())) == 2
    nvml.replace(f"{memory} {8 * GIB} 0 {2 * GIB} {6 * GIB}")
    done = resume("--all")
    assert done.returncode == 0, done.stdout
    for program in programs:
        program.runs()
        assert (program.gpu_bytes, program.host_bytes) == (size, 0)
    assert list(record.iterdir()) == []


@pytest.mark.long
def test_a_parked_program_of_an_unknown_gpu_stays_parked(cuda: FakeCuda, record: Path, resume: Resume) -> None:
    program = cuda.start(1 << 20)
    left_paused(cuda, record, program, park=True, gpu="GPU-unknown")
    done = resume("--all")
    assert done.returncode == 1
    assert "not restored: there is no GPU GPU-unknown" in done.stdout


def test_resume_while_a_pauser_runs(cuda: FakeCuda, record: Path, resume: Resume) -> None:
    program = cuda.start()
    with child(cuda, record) as (_, agent):
        agent.hello()
        assert agent.ask(PauserRequest(1, Operation.LOCK, program.key, 500)).failure is None
        done = resume("--all")
        assert done.returncode == 0
        assert "a pauser is running" in done.stdout
        program.runs()
        assert agent.ask(PauserRequest(2, Operation.UNLOCK, program.key)).failure is None
    assert list(record.iterdir()) == []


@pytest.mark.long
def test_a_users_record_speaks_for_that_users_programs_only(cuda: FakeCuda, record: Path, resume: Resume) -> None:
    needs_root()
    roots, own = cuda.start(), cuda.start(uid=65534)
    left_paused(cuda, record, roots, own)
    theirs = record.with_name("theirs")
    record.rename(theirs)
    os.chown(theirs, 65534, 65534)
    done = resume("--all", places=("--record", str(theirs)))
    assert done.stdout == f"pid {own.pid}: resumed\n"
    own.runs()
    assert roots.state is State.LOCKED


def test_a_link_to_another_users_files_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_root()
    victim = tmp_path / "project" / "paused" / "4194000"
    victim.parent.mkdir(parents=True)
    victim.write_text("a file of another user, named like a pid")
    users = tmp_path / "run" / "user"
    (users / "65534").mkdir(parents=True)
    (users / "65534" / "gpucommons").symlink_to(tmp_path / "project")
    monkeypatch.setattr(places, "_USERS", users)
    monkeypatch.setattr(places, "_ROOT_RECORD", tmp_path / "none")
    monkeypatch.setattr(places, "SERVICE_RECORD", tmp_path / "none")
    with pytest.raises(SystemExit) as ended:
        main(["resume", "--all"])
    assert ended.value.code == 0
    assert "passed over: it belongs to uid 0" in capsys.readouterr().out
    assert victim.exists()
