"""The dcgm dialect end to end: values of the driver's library in the units of dcgm-exporter."""

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.nvml import build
from fakes.nvml.control import FakeNvml, mig_device
from fakes.nvml.rig import rig_in
from gpucommons.faces.dialects.dcgm import DCGM
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.snapshot import Readings, Snapshot
from needs import needs_program
from parsing import parsed
from running import command, running_agent
from waiting import until


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_program("cc")
    return build.build(tmp_path_factory.mktemp("libnvidia-ml"))


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((build.HERE / "recordings" / "busy.json").read_text())
    return found


def test_each_value_is_the_drivers_value_in_dcgms_unit(library: Path, tmp_path: Path) -> None:
    lines = (
        "recording busy",
        *(f"set nvmlDeviceGetFieldValues.{field} 0 {value}" for field, value in ((29, 5), (30, 2), (31, 1))),
        *(f"set nvmlDeviceGetFieldValues.{field} 0 {value}" for field, value in ((38, 6), (45, 7), (52, 8), (59, 9))),
        "set nvmlDeviceGetRemappedRows 0 11 12 1 0",
        "set nvmlDeviceGetCurrentClocksEventReasons 0 68",
    )

    def traffic(kibibytes: int) -> list[str]:
        return [
            f"set nvmlDeviceGetFieldValues.{field}.{link} 0 {kibibytes * (1 if link == 3 else 10)}"
            for field in (138, 139)
            for link in ("all", 3)
        ]

    with rig_in(tmp_path, library) as rig:
        rig.fake.say(*lines, *traffic(0))
        rig.read()
        rig.fake.xid(0, 31)
        rig.fake.xid(0, 31)
        rig.fake.replace(*lines, *traffic(22_500_000), *(line for line in rig.fake.lines if line.startswith("event")))
        reading = rig.read(after_s=15)
        snapshot = Snapshot(1, 0.0, rig.clock.wall(), "host", readings=Readings(gpus=reading))
    body, _ = Exposition(lambda: snapshot, [DCGM]).metrics("dcgm", False, False)
    series = {
        (name.removesuffix("_total"), dict(labels).get("xid") or dict(labels).get("clock_event")): value
        for (name, labels), value in parsed(body.decode()).items()
    }
    device, fields = recorded()["device"], recorded()["fields"]
    memory = device["nvmlDeviceGetMemoryInfo_v2"]["value"]
    expected: dict[str, float] = {
        "DEV_FB_USED": memory["used"] // 2**20,
        "DEV_FB_FREE": memory["free"] // 2**20,
        "DEV_FB_RESERVED": memory["reserved"] // 2**20,
        "DEV_POWER_USAGE": device["nvmlDeviceGetPowerUsage"]["value"] / 1000,
        "DEV_TOTAL_ENERGY_CONSUMPTION": device["nvmlDeviceGetTotalEnergyConsumption"]["value"],
        "DEV_POWER_VIOLATION": device["nvmlDeviceGetViolationStatus.POWER"]["value"]["violationTime"],
        "DEV_THERMAL_VIOLATION": 0,
        "DEV_SYNC_BOOST_VIOLATION": 0,
        "DEV_BOARD_LIMIT_VIOLATION": 0,
        "DEV_LOW_UTIL_VIOLATION": fields["NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION"]["value"],
        "DEV_RELIABILITY_VIOLATION": 0,
        "DEV_RETIRED_SBE": 5,
        "DEV_RETIRED_DBE": 2,
        "DEV_RETIRED_PENDING": 1,
        "DEV_CORRECTABLE_REMAPPED_ROWS": 11,
        "DEV_UNCORRECTABLE_REMAPPED_ROWS": 12,
        "DEV_ROW_REMAP_FAILURE": 0,
        "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 6,
        "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": 7,
        "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 8,
        "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 9,
        # 225 and 22.5 million KiB each way in 15 s, in thousands of KiB a second.
        "DEV_NVLINK_BANDWIDTH_TOTAL": 30_000,
        "DEV_NVLINK_BANDWIDTH_L3": 3_000,
        "DEV_XID_ERRORS": 31,
    }
    found = {name.removeprefix("DCGM_FI_"): value for (name, what), value in series.items() if what is None}
    assert {name: found.get(name) for name in expected} == {n: pytest.approx(v) for n, v in expected.items()}
    assert "DEV_NVLINK_BANDWIDTH_L0" not in found, "a link that the GPU lacks has no bandwidth, not 0"
    counted = {what: value for (name, what), value in series.items() if name.startswith("DCGM_EXP_") and what}
    assert counted == {"31": 2, "power_cap": 1, "hw_thermal": 1}, "one sample so far"


def test_the_settings_reach_the_series_of_a_running_agent(library: Path, tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path / "driver", library)
    fake.say("gpus 2", "mig_mode 1 1 1", mig_device(1, 2), mig_device(1, 5, start=1))
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "0").write_text('47"11\n')
    (jobs / "1.5").write_text("4712\n")
    environment = fake.environment() | {
        "DCGM_HPC_JOB_MAPPING_DIR": str(jobs),
        "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE": "60000",
        "GPUCOMMONS_DCGM_HOSTNAME_LABEL": "both",
    }

    with running_agent(environment=environment) as agent:

        def labels_of(name: str) -> list[dict[str, str]]:
            series = parsed(agent.get("/metrics/dcgm")[1])
            return [dict(labels) for found, labels in series if found == name]

        def jobs_of(name: str) -> list[tuple[str, str, str]]:
            found = labels_of(name)
            return sorted((one["gpu"], one.get("GPU_I_ID", ""), one.get("hpc_job", "")) for one in found)

        memory = [("0", "", '47"11'), ("1", "2", ""), ("1", "5", "4712")]
        until(lambda: jobs_of("DCGM_FI_DEV_FB_USED") == memory, "the jobs are named", within_s=30)
        assert jobs_of("DCGM_FI_DEV_POWER_USAGE") == [("0", "", '47"11'), ("1", "", "")]
        (first, *_) = labels_of("DCGM_FI_DEV_GPU_TEMP")
        assert first["Hostname"] == first["hostname"]
        assert {one["window_size_in_ms"] for one in labels_of("DCGM_EXP_XID_ERRORS_COUNT")} == {"60000"}

        def held() -> set[tuple[str, str]]:
            series = parsed(agent.get("/metrics/gpucommons")[1])
            return {
                (dict(labels)["slot"], dict(labels)["workload"])
                for name, labels in series
                if name == "gpucommons_allocation_share_ratio" and dict(labels)["kind"] == "job"
            }

        until(lambda: held() == {("0", '47"11'), ("1.1", "4712")}, "the jobs hold what they were given", within_s=30)
        (jobs / "0").unlink()
        until(lambda: held() == {("1.1", "4712")}, "a job that ended holds nothing", within_s=30)


def test_a_replaced_key_is_rejected_with_its_replacement(tmp_path: Path) -> None:
    file = tmp_path / "gpucommons.toml"
    file.write_text("[dcgm]\nolder_hostname = true\n")
    refused = command("check-config", str(file))
    assert refused.returncode != 0
    assert "was replaced by 'dcgm.hostname_label'" in refused.stderr
