"""The walks of docs/design.md are what is executed: real runs, with every call of a function traced."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.cuda.build import build_driver, build_program
from fakes.cuda.control import FakeCuda
from fakes.nvml.build import build
from fakes.nvml.control import process
from fakes.nvml.rig import rig_in
from gpucommons.pauser.protocol import Operation, PauserRequest
from house.test_walks import walk
from needs import needs_program
from open_folder import open_folder
from pauser.rig import child
from prometheus_server import answers, free_port
from scheduler.served import Scripted, serving
from traced import profiler, traced
from waiting import until

TRACED = Path(profiler.__code__.co_filename)
# Values that rules and steps share are no steps of their own.
VALUES = {"model/sharing.py", "scheduler/policy/state.py"}


def test_a_frame_becomes_lock_ok() -> None:
    """Exactly the files of the walk, in its order."""
    steps = walk("A frame becomes LOCK_OK")
    with tempfile.TemporaryDirectory(dir="/tmp") as directory, serving(Path(directory)) as served:
        client = Scripted(served.path).register()
        files: list[str] = []
        served.call(lambda: sys.setprofile(profiler(files.append)))
        client.ask().granted()
        served.call(lambda: sys.setprofile(None))
    assert [file for file in files if file not in VALUES] == steps


@pytest.mark.long
def test_the_walks_of_an_agent(tmp_path: Path) -> None:
    """A simulated node that shares its GPUs. What the simulation replaces is walked in the other tests."""
    steps = {
        *walk("A pid becomes a pod label"),
        *walk("A busy program is paused"),
        *walk("A GPU-second becomes a row of `report`"),
        *walk("A setting becomes effective (`scheduler.turn_quantum_s`)"),
    }
    elsewhere = {"sources/nvml/processes.py", "pauser/server.py", "pauser/pauses.py", "pauser/cuda.py"}
    assert elsewhere <= steps
    trace = tmp_path / "trace"
    with traced_agent(tmp_path, trace) as url:
        until(lambda: answers(f"{url}/metrics/vgpu"), "an answer")

        def missing() -> set[str]:
            answers(f"{url}/metrics/vgpu")
            return steps - elsewhere - {"cli/report.py"} - set(trace.read_text().split())

        until(lambda: not missing(), "all files were executed", within_s=90)
        report = [sys.executable, str(TRACED), str(trace), "gpucommons", "report", "--connect", url]
        subprocess.run(report, check=True, timeout=60, stdout=subprocess.DEVNULL)
    assert "cli/report.py" in trace.read_text().split()


@contextmanager
def traced_agent(directory: Path, trace: Path) -> Iterator[str]:
    url = f"127.0.0.1:{free_port()}"
    (directory / "gpucommons.toml").write_text(
        '[web]\nsocket = ""\n[leases]\nenabled = "false"\n[scheduler]\nturn_quantum_s = 5\n'
    )
    state = {"XDG_STATE_HOME": str(directory), "XDG_RUNTIME_DIR": str(directory), "HOME": str(directory)}
    agent = subprocess.Popen(
        [
            *(sys.executable, str(TRACED), str(trace), "gpucommons", "up", "--config", directory / "gpucommons.toml"),
            *("--simulate", "lab", "--share", "--listen", url),
        ],
        env={**os.environ, **state},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield f"http://{url}"
    finally:
        agent.terminate()
        agent.wait(30)


@pytest.mark.long
def test_the_driver_lists_processes(tmp_path: Path) -> None:
    needs_program("cc")
    library = build(tmp_path)
    with rig_in(tmp_path / "node", library) as rig:
        rig.fake.say(process(0, 10, 2**30))
        assert rig.read().gpus
        with traced() as files:
            rig.read()
    assert "sources/nvml/processes.py" in files
    for title in ("A pid becomes a pod label", "A busy program is paused"):
        assert walk(title)[0] == "sources/nvml/processes.py"


@pytest.mark.long
def test_the_pauser_pauses(tmp_path: Path) -> None:
    needs_program("cc")
    trace = tmp_path / "trace"
    program = f"import sys, traced; sys.argv[1:1] = [{str(trace)!r}, 'gpucommons.pauser']; traced.main()"
    with open_folder() as directory:
        cuda = FakeCuda(directory / "cuda", build_driver(directory), build_program(directory))
        try:
            paused = cuda.start()
            with child(cuda, tmp_path / "run" / "paused", program=program) as (_, agent):
                agent.hello()
                assert agent.ask(PauserRequest(1, Operation.LOCK, paused.key, 500)).failure is None
        finally:
            cuda.close()
    steps = walk("A busy program is paused")
    in_pauser = steps[steps.index("pauser/client.py") + 1 :]
    assert in_pauser
    assert set(in_pauser) <= set(trace.read_text().split())
