"""The library as nvidia-ml-py finds it: on the loader's path, missing, too old, or replaced."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.nvml.build import build
from fakes.nvml.children import child
from fakes.nvml.control import FakeNvml, process, usage
from needs import needs_program
from waiting import until


def test_the_fake_is_found_on_the_loaders_path(library: Path, tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path / "driver", library)
    fake.say("gpus 2")
    with child(fake.environment()) as reader:
        answer = reader.read()
    assert [gpu["temperature_celsius"] for gpu in answer["gpus"]] == [42, 43]


def test_without_a_library_the_source_is_absent_with_a_remedy(tmp_path: Path) -> None:
    with child({"LD_LIBRARY_PATH": str(tmp_path)}) as reader:
        answer = reader.read()
    if "gpus" in answer or "error" in answer:
        pytest.skip("this machine has a real driver")
    assert "libnvidia-ml.so.1" in answer["absent"]
    assert "install the NVIDIA driver" in answer["remedy"]


OLD_DRIVER = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetJpgUtilization",
    "nvmlDeviceGetOfaUtilization",
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleGet",
    "nvmlGpmMetricsGet",
    "nvmlDeviceGetMigMode",
)
OLDER_DRIVER = (
    *OLD_DRIVER,
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetFieldValues",
    "nvmlEventSetWait_v2",
    "nvmlDeviceGetGridLicensableFeatures_v4",
)


@pytest.mark.long
def test_an_old_driver_has_fewer_readings(library_without: Callable[..., Path], tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path / "driver", library_without(*OLD_DRIVER))
    fake.say(process(0, 10, 2**30, gi=3, ci=0), usage(0, 10, 50))
    with child(fake.environment()) as reader:
        reader.read()
        answer = reader.read()
    gpu = answer["gpus"][0]
    assert (gpu["memory_used_bytes"], gpu["memory_reserved_bytes"]) == (644939776, None)
    assert gpu["throttle_mask"] == 1
    assert (gpu["jpeg_percent"], gpu["ofa_percent"], gpu["gpm"], gpu["mig_enabled"]) == (None,) * 4
    assert [(row["pid"], row["used_memory_bytes"], row["sm_percent"]) for row in gpu["processes"]] == [(10, 2**30, 50)]
    assert gpu["pcie_tx_bytes_per_s"] == 1614000
    assert not answer["failures"]


@pytest.mark.long
def test_a_very_old_driver_has_fewer_readings(library_without: Callable[..., Path], tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path / "driver", library_without(*OLDER_DRIVER))
    fake.say(process(0, 10, 2**30), process(0, 11, 2**64 - 1))
    with child(fake.environment()) as reader:
        gpu = reader.read()["gpus"][0]
    assert [(row["pid"], row["used_memory_bytes"], row["sm_percent"]) for row in gpu["processes"]] == [
        (10, 2**30, None),
        (11, None, None),
    ]
    assert (gpu["memory_temperature_celsius"], gpu["vgpu_licensed"], gpu["watched"]) == (None, None, False)
    assert gpu["temperature_celsius"] == 42


@pytest.mark.long
def test_after_an_upgrade_of_the_driver_the_new_library_is_loaded_without_a_restart(tmp_path: Path) -> None:
    needs_program("cc")
    directory = tmp_path / "lib"
    fake = FakeNvml(tmp_path / "driver", build(directory, nvml_version="old"))
    with child(fake.environment()) as reader:
        assert reader.read()["nvml"] == "old"
        # The new module is loaded and the old library does not match it; then the new library is installed.
        fake.say("fail * 18", "fail nvmlInit 18")
        assert reader.read()["reason"] == "lib_rm_version_mismatch"
        build(directory, nvml_version="new")
        fake.replace("driver 590.1")
        answer = until(lambda: None if "error" in (read := reader.read()) else read, "the new driver answers", 20)
    assert (answer["nvml"], answer["driver"], answer["connections"]) == ("new", "590.1", 2)
    assert answer["gpus"][0]["temperature_celsius"] == 42
