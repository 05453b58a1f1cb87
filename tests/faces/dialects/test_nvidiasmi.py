"""The nvidiasmi dialect against what nvidia_gpu_exporter served of the same fake GPUs, with a stand-in for nvidia-smi.

`bench/nvidia_smi_peer.py` runs the exporter itself and makes the recording.
"""

import math
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fakes.nvml.build import build
from fakes.nvml.control import FakeNvml, mig_device, process
from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.faces.dialects.nvidiasmi import NVIDIASMI
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.gpu import Gpu, GpuIdentity, GpuReading, GpuReadings, XidRecord
from gpucommons.model.snapshot import Readings, Snapshot, SourceState
from needs import needs_program
from parsing import Series, parsed, types_of
from running import running_agent
from testbeds import nvidia_smi
from waiting import until

RECORDINGS = Path(__file__).parent / "recordings"
RECORDING = RECORDINGS / "nvidia_gpu_exporter-1.14.0.prom"
# What the exporter's NVML backend served of these GPUs, the second with MIG devices: the families that only it has.
NVML_RECORDING = RECORDINGS / "nvidia_gpu_exporter-1.14.0-nvml.prom"
NVML_FAMILIES = ("nvidia_smi_mig_", "nvidia_smi_energy_")
MIG_LINES = ("mig_mode 1 1 1", mig_device(1, 2, used_mb=300), mig_device(1, 5, start=1))
USED_BYTES = 3 * (1 << 30) + 12345
# Texts in which the exporter finds a number, and what it has of its own runs.
LEFT_OUT = re.compile(
    r"nvidia_smi_(name|serial|vbios_version|driver_version|driver_model_\w+|pci_\w+|command_exit_code"
    r"|last_collect_\w*(duration|timestamp)\w*)"
)
# The metrics of the exporter's two dashboards (49 and 30 queries), without nvidia_smi_.
DASHBOARDS = """
clocks_current_graphics_clock_hz clocks_current_memory_clock_hz clocks_current_sm_clock_hz clocks_current_video_clock_hz
clocks_event_reasons_applications_clocks_setting clocks_event_reasons_gpu_idle
clocks_event_reasons_hw_power_brake_slowdown clocks_event_reasons_hw_thermal_slowdown clocks_event_reasons_sw_power_cap
clocks_event_reasons_sw_thermal_slowdown clocks_event_reasons_sync_boost clocks_max_graphics_clock_hz
clocks_max_memory_clock_hz clocks_throttle_reasons_applications_clocks_setting clocks_throttle_reasons_gpu_idle
clocks_throttle_reasons_hw_power_brake_slowdown clocks_throttle_reasons_hw_thermal_slowdown
clocks_throttle_reasons_sw_power_cap clocks_throttle_reasons_sw_thermal_slowdown clocks_throttle_reasons_sync_boost
compute_app_info compute_app_used_memory_bytes compute_apps_last_collect_success compute_mode
ecc_errors_uncorrected_aggregate_total energy_joules_total enforced_power_limit_watts fabric_state fan_speed_ratio
gpu_info gpu_recovery_action memory_total_bytes memory_used_bytes mig_info mig_memory_used_bytes mig_sm_activity_ratio
mig_tensor_activity_ratio pcie_throughput_rx_bytes_per_second pcie_throughput_tx_bytes_per_second
power_default_limit_watts power_draw_watts power_limit_watts pstate temperature_gpu utilization_gpu_ratio
utilization_memory_ratio xid_errors_total xid_last_timestamp_seconds
"""
OF_THE_PROGRAM = ("go_", "process_", "promhttp_", "nvidia_gpu_exporter_")


@dataclass
class FakeNode:
    driver: FakeNvml
    pid: int

    def peer_environment(self) -> dict[str, str]:
        return {**os.environ, **self.driver.environment()}


@contextmanager
def node_of_two(directory: Path) -> Iterator[FakeNode]:
    """Two busy GPUs: on the first a process with a real pid, on the second throttled clocks."""
    needs_program("cc")
    (directory / "library").mkdir()
    driver = FakeNvml(directory / "driver", build(directory / "library"))
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        driver.say("gpus 2", "recording busy", process(0, sleeper.pid, USED_BYTES))
        driver.say("set nvmlDeviceGetCurrentClocksEventReasons 1 68", "set nvmlDeviceGetPowerUsage 1 345678")
        yield FakeNode(driver, sleeper.pid)
    finally:
        sleeper.kill()
        sleeper.wait()


def served(node: FakeNode) -> str:
    with running_agent(environment=node.driver.environment()) as agent:

        def complete() -> str | None:
            text = agent.get("/metrics/nvidiasmi")[1]
            slow = "nvidia_smi_persistence_mode{" in text and "nvidia_smi_compute_mode{" in text
            return text if slow and 'process_name="sleep"' in text else None

        return recorded_text(until(complete, "every GPU and process has been read", within_s=60))


def recorded_text(text: str) -> str:
    """Without help and what is of the program, and with one pid for all runs."""
    lines = [line for line in text.splitlines() if not line.startswith("# HELP ")]
    lines = [line for line in lines if not line.removeprefix("# TYPE ").startswith(OF_THE_PROGRAM)]
    return re.sub(r'pid="\d+"', 'pid="4711"', "\n".join(lines)) + "\n"


@dataclass
class Result:
    theirs: int = 0
    equal: int = 0
    left_out: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)


def compare(ours: str, theirs: str) -> Result:
    left, right = parsed(recorded_text(ours)), parsed(recorded_text(theirs))
    result = Result(len(right))
    for key, value in right.items():
        if key not in left:
            (result.left_out if LEFT_OUT.fullmatch(key[0]) else result.missing).append(f"{key}: {value!r}")
        elif key[0].endswith("_seconds") or math.isclose(left[key], value, rel_tol=1e-12):
            result.equal += 1
        else:
            result.different.append(f"{key}: ours {left[key]!r}, theirs {value!r}")
    own, peer = types_of(ours), types_of(theirs)
    result.different += [f"type of {name}" for name in own.keys() & peer.keys() if own[name] != peer[name]]
    return result


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> str:
    with node_of_two(tmp_path_factory.mktemp("node")) as node:
        return served(node)


def test_values_are_those_of_nvidia_gpu_exporter(ours: str) -> None:
    result = compare(ours, RECORDING.read_text())
    assert result.missing == []
    assert result.different == []
    assert result.equal > 100, "there are series to compare"


def test_names_that_it_lacks_are_those_of_its_nvml_backend(ours: str) -> None:
    names = {name for name, _ in parsed(ours)} - {name for name, _ in parsed(RECORDING.read_text())}
    assert names == {
        "nvidia_smi_energy_joules_total",
        "nvidia_smi_pcie_throughput_tx_bytes_per_second",
        "nvidia_smi_pcie_throughput_rx_bytes_per_second",
    }


def test_a_difference_is_seen(ours: str) -> None:
    theirs = RECORDING.read_text()
    changed = re.sub(r"(?m)^(nvidia_smi_power_draw_watts\{.*\}) .*$", r"\1 1.5", ours, count=1)
    assert compare(changed, theirs).different
    assert compare(re.sub(r"(?m)^nvidia_smi_pstate\{.*\n", "", ours), theirs).missing
    assert compare(ours.replace("# TYPE nvidia_smi_pstate gauge", "# TYPE nvidia_smi_pstate counter"), theirs).different


def test_fields_that_the_driver_refuses_are_absent(ours: str) -> None:
    """An H200 has no fan and no retired pages; the exporter gets [N/A] for them."""
    names = {name for name, _ in parsed(ours)}
    assert "nvidia_smi_fan_speed_ratio" not in names
    assert "nvidia_smi_fan_speed_ratio" not in RECORDING.read_text()
    assert "fan.speed" in nvidia_smi.FIELDS, "it was asked for"


def test_the_dashboards_find_their_metrics() -> None:
    """Absent: the state of the NVLink fabric, and the names that drivers before r535 have for clock event reasons."""
    names = {metric.name.removeprefix("nvidia_smi_") for metric in NVIDIASMI.catalogue}
    missing = set(DASHBOARDS.split()) - names
    assert {name for name in missing if not name.startswith("clocks_throttle_reasons_")} == {"fabric_state"}
    assert {name.replace("_throttle_", "_event_") for name in missing} - {"fabric_state"} <= names


def of(readings: Readings, *states: SourceState) -> Series:
    snapshot = Snapshot(1, 100.0, 1.7e9, "host", readings=readings, sources={state.name: state for state in states})
    body, _ = Exposition(lambda: snapshot, DIALECTS).metrics("nvidiasmi", openmetrics=False, gzip=False)
    return parsed(body.decode())


def test_no_driver_is_a_failure_and_nothing_else() -> None:
    found = of(Readings(), SourceState("nvml", up=False, failures={"unreadable": 2, "timeout": 1}))
    assert found == {("nvidia_smi_failed_scrapes_total", ()): 3, ("nvidia_smi_last_collect_success", ()): 0}


def test_a_lost_gpu_keeps_its_xids_alone() -> None:
    xid = XidRecord(True, {79: 2, 31: 1}, 79, 1.7e9 - 5, {}, {(1_699_999_990, 31): 1, (1_699_999_980, 31): 1})
    gpu = Gpu(GpuIdentity("GPU-ABC", 0, "NVIDIA H200", "00000000:01:00.0"), False, 0.0, "lost", xid=xid)
    found = of(Readings(gpus=GpuReading("580", "13", "13.0", (gpu,), 1, 0)))
    assert found["nvidia_smi_xid_errors_total", (("uuid", "abc"), ("xid", "79"))] == 2
    assert found["nvidia_smi_xid_last_timestamp_seconds", (("uuid", "abc"), ("xid", "31"))] == 1_699_999_990
    assert found["nvidia_smi_xid_last_timestamp_seconds", (("uuid", "abc"), ("xid", "79"))] == 1.7e9 - 5
    assert {name for name, _ in found} == {
        "nvidia_smi_xid_errors_total",
        "nvidia_smi_xid_last_timestamp_seconds",
        "nvidia_smi_compute_apps_last_collect_success",
    }


def test_a_value_that_was_not_read_is_absent() -> None:
    gpu = Gpu(GpuIdentity("GPU-ABC", 0, "NVIDIA H200", "00000000:01:00.0"), True, 0.0)
    found = of(Readings(gpus=GpuReading("580", "13", "13.0", (gpu,), 1, 1)))
    assert {name for name, _ in found} == {
        *("nvidia_smi_index", "nvidia_smi_count", "nvidia_smi_gpu_info"),
        "nvidia_smi_compute_apps_last_collect_success",
    }
    assert found["nvidia_smi_compute_apps_last_collect_success", ()] == 0, "the processes were not listed"
    zero = gpu._replace(readings=GpuReadings(utilization_percent=0), processes=())
    found = of(Readings(gpus=GpuReading("580", "13", "13.0", (zero,), 1, 1)))
    assert found["nvidia_smi_utilization_gpu_ratio", (("uuid", "abc"),)] == 0
    assert found["nvidia_smi_compute_apps", (("uuid", "abc"),)] == 0


@pytest.mark.long
def test_mig_devices_and_energy_are_those_of_its_nvml_backend(tmp_path: Path) -> None:
    with node_of_two(tmp_path) as node:
        node.driver.say(*MIG_LINES)
        found = parsed(served(node))
    theirs = parsed(NVML_RECORDING.read_text())
    # The agent does not read the mode that MIG has after the next reset.
    theirs = {key: value for key, value in theirs.items() if key[0] != "nvidia_smi_mig_mode_pending"}
    assert {key: found.get(key) for key in theirs} == pytest.approx(theirs, rel=1e-9)
    assert {name for name, _ in found if name.startswith(NVML_FAMILIES)} == {name for name, _ in theirs}
    info = [dict(labels) for name, labels in found if name == "nvidia_smi_mig_info"]
    assert [(one["gpu_instance_id"], one["profile"]) for one in info] == [("2", "1g.18gb"), ("5", "1g.18gb")]


@pytest.mark.long
def test_it_is_served_by_name_and_by_its_own_listener() -> None:
    assert not NVIDIASMI.on_main
    environment = {"GPUCOMMONS_LISTENERS_NVIDIASMI": "127.0.0.1:0"}
    with running_agent("--simulate", "lab", environment=environment) as agent:
        assert "(nvidiasmi dialect alone)" in "\n".join(agent.lines)
        assert "nvidia_smi_gpu_info{" in agent.get("/metrics/nvidiasmi")[1]
        assert "nvidia_smi_" not in agent.get("/metrics")[1]
