"""`gpucommons stress`: the controller reaches its target, with other load and with late measurements."""

import json
import os
import signal
import subprocess
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml
from gpucommons.cli import stress_load
from gpucommons.cli.main import main
from gpucommons.cli.stress_load import (
    SLICE_S,
    BackendMissing,
    UtilizationController,
    _Worker,
    begin,
    slice_of,
    step,
    stress,
)
from needs import needs_program
from running import command_process
from unhurried import unhurried

ratios = st.floats(0, 1)


@given(ratios, ratios, st.none() | ratios)
@unhurried(100)
def test_the_duty_stays_between_0_and_1(target: float, duty: float, measured: float | None) -> None:
    after = step(UtilizationController(target, duty), measured)
    assert 0 <= after.duty <= 1
    work_s, rest_s = slice_of(after)
    assert work_s >= 0
    assert rest_s >= 0
    assert work_s + rest_s == pytest.approx(SLICE_S)


@given(ratios, ratios)
@unhurried(100)
def test_a_failed_reading_leaves_the_duty_as_it_is(target: float, duty: float) -> None:
    assert step(UtilizationController(target, duty), None).duty == duty


@dataclass
class SimulatedGpu:
    """Its clock advances only by work and rest. It measures utilisation like the driver: late, in whole percents."""

    gain: float
    others: float
    lag: int
    now: float = 0.0
    busy_s: float = 0.0
    last: tuple[float, float] = (0.0, 0.0)
    readings: deque[float] = field(default_factory=deque)

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.busy_s += seconds * self.gain

    def rest(self, seconds: float) -> None:
        self.now += seconds

    def now_s(self) -> float:
        return self.now

    def measure(self) -> float:
        then, busy = self.last
        share = (self.busy_s - busy) / max(self.now - then, 1e-9)
        self.last = (self.now, self.busy_s)
        self.readings.append(round(100 * min(share + self.others, 1.0)) / 100)
        return self.readings[max(len(self.readings) - 1 - self.lag, 0)]


@given(st.floats(0.1, 1.0), st.floats(0.5, 1.5), st.floats(0.0, 0.5), st.integers(0, 2))
@unhurried(100)
def test_a_reachable_target_is_reached(target: float, gain: float, others: float, lag: int) -> None:
    gpu = SimulatedGpu(gain, others, lag)
    seen: list[UtilizationController] = []
    summary = stress(target, 120.0, gpu, gpu.measure, gpu, lambda elapsed_s, control: seen.append(control))
    reachable = min(max(target, others), min(gain + others, 1.0))
    assert summary.mean == pytest.approx(reachable, abs=0.03)
    assert summary.elapsed_s == pytest.approx(120.0, abs=2 * SLICE_S)
    assert len(seen) >= 115


def test_without_readings_the_duty_is_the_target() -> None:
    gpu = SimulatedGpu(1.0, 0.0, 0)
    summary = stress(0.4, 30.0, gpu, lambda: None, gpu, lambda elapsed_s, control: None)
    assert summary.mean is None
    assert gpu.busy_s == pytest.approx(12.0, rel=0.01)
    assert begin(0.4).duty == 0.4


def test_a_missing_library_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendMissing, match="torch or cupy is not installed; install it with 'pip install torch' or"):
        stress_load.choose(None)
    with pytest.raises(BackendMissing, match=r"cupy is not installed; install it with 'pip install cupy-cuda12x'"):
        stress_load.choose("cupy")


def test_the_installed_library_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "cupy" else None)
    assert stress_load.choose(None) == "cupy"


def test_work_fills_the_queue_and_waits_for_it() -> None:
    calls: list[str] = []
    _Worker(lambda: calls.append("launch"), lambda: calls.append("wait")).work(0.001)
    assert calls.count("launch") >= 4
    assert calls[-1] == "wait"


_TORCH = """
import types
cuda = types.SimpleNamespace(is_available=lambda: True, synchronize=lambda: None)
randn = lambda *size, device: None
empty_like = lambda other: None
matmul = lambda left, right, out: None
"""


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with one fake GPU and a fake torch."""
    needs_program("cc")
    fake = FakeNvml(tmp_path / "fake", build(tmp_path / "library"))
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "torch.py").write_text(_TORCH)
    path = os.pathsep.join([str(tmp_path / "modules"), *filter(None, sys.path)])
    return {**os.environ, **fake.environment(), "PYTHONPATH": path}


@pytest.mark.long
def test_a_run_and_an_interrupted_run(machine: dict[str, str]) -> None:
    run = [sys.executable, "-m", "gpucommons", "stress", "--device"]
    done = subprocess.run([*run, "0", "--duration", "2"], env=machine, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert first.startswith("GPU 0 (NVIDIA H200")
    assert "torch" in first
    assert last.startswith("done after 2 s; utilisation in the second half: ")

    done = subprocess.run(
        [*run, "0", "--duration", "1", "--json"], env=machine, capture_output=True, text=True, timeout=60
    )
    document = json.loads(done.stdout)
    assert (document["gpu_index"], document["target_ratio"], document["stopped"]) == (0, 0.9, False)
    assert document["elapsed_s"] >= 1
    assert document["utilization_ratio"] == pytest.approx(float(last.split()[-1].removesuffix("%")) / 100)
    assert done.stderr.startswith("GPU 0 (NVIDIA H200")

    process = subprocess.Popen([*run, "0", "--duration", "300"], env=machine, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == first.replace(" 2 s", " 300 s") + "\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "stopped\n"
    assert process.returncode == 0

    process = subprocess.Popen(
        [*run, "0", "--json"], env=machine, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("GPU 0 (NVIDIA H200")
    process.send_signal(signal.SIGINT)
    document = json.loads(process.communicate(timeout=30)[0])
    assert (process.returncode, document["stopped"], document["utilization_ratio"]) == (0, True, None)

    absent = subprocess.run([*run, "7"], env=machine, capture_output=True, text=True, timeout=60)
    assert absent.returncode == 2
    assert "--device: no GPU 7; this machine has only GPU 0" in absent.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--device", "0", "--target-util", "5"], "--target-util"),
        (["--device", "0", "--target-util", "101"], "--target-util"),
        (["--device", "-1"], "--device"),
        (["--device", "0", "--backend", "opencl"], "opencl"),
        ([], "--device"),
    ],
)
def test_a_usage_error_is_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["stress", *arguments])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_without_a_driver_it_is_an_error(tmp_path: Path) -> None:
    done = command_process("stress", "--device", "0", environment={"LD_LIBRARY_PATH": str(tmp_path)})
    if done.returncode == 0:
        pytest.skip("this machine has a GPU")
    assert done.returncode == 2
    assert "driver does not answer" in done.stderr
    assert done.stderr.count("\n") == 1
