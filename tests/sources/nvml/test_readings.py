"""Every reading equals the driver's value, is missing if the driver has none, and unsupported calls are not made."""

import json
from typing import Any

import pytest

from fakes.nvml import build
from fakes.nvml.rig import Rig


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((build.HERE / "recordings" / f"{name}.json").read_text())
    return found


def answer(recording: dict[str, Any], call: str) -> Any:
    return recording["device"][call]["value"]


def expected(recording: dict[str, Any]) -> dict[str, Any]:
    """The readings of the recorded GPU, transcribed by hand."""
    fields = recording["fields"]
    memory = answer(recording, "nvmlDeviceGetMemoryInfo_v2")
    utilization = answer(recording, "nvmlDeviceGetUtilizationRates")
    return {
        "utilization_percent": utilization["gpu"],
        "memory_utilization_percent": utilization["memory"],
        "memory_total_bytes": memory["total"],
        "memory_used_bytes": memory["used"],
        "memory_free_bytes": memory["free"],
        "memory_reserved_bytes": memory["reserved"],
        "power_watts": pytest.approx(answer(recording, "nvmlDeviceGetPowerUsage") / 1000),
        "power_limit_set_watts": pytest.approx(answer(recording, "nvmlDeviceGetPowerManagementLimit") / 1000),
        "power_limit_watts": pytest.approx(answer(recording, "nvmlDeviceGetEnforcedPowerLimit") / 1000),
        "temperature_celsius": answer(recording, "nvmlDeviceGetTemperature.GPU"),
        "memory_temperature_celsius": fields["NVML_FI_DEV_MEMORY_TEMP"]["value"],
        "fan_percent": None,
        "clock_graphics_mhz": answer(recording, "nvmlDeviceGetClockInfo.SM"),
        "clock_sm_mhz": answer(recording, "nvmlDeviceGetClockInfo.SM"),
        "clock_memory_mhz": answer(recording, "nvmlDeviceGetClockInfo.MEM"),
        "clock_video_mhz": answer(recording, "nvmlDeviceGetClockInfo.VIDEO"),
        "encoder_percent": answer(recording, "nvmlDeviceGetEncoderUtilization")[0],
        "decoder_percent": answer(recording, "nvmlDeviceGetDecoderUtilization")[0],
        "jpeg_percent": answer(recording, "nvmlDeviceGetJpgUtilization")[0],
        "ofa_percent": answer(recording, "nvmlDeviceGetOfaUtilization")[0],
        "performance_state": answer(recording, "nvmlDeviceGetPerformanceState"),
        "throttle_mask": answer(recording, "nvmlDeviceGetCurrentClocksEventReasons"),
        "energy_millijoules": answer(recording, "nvmlDeviceGetTotalEnergyConsumption"),
        "pcie_tx_bytes_per_s": None,
        "pcie_rx_bytes_per_s": None,
        "pcie_generation": answer(recording, "nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_width": answer(recording, "nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie_replays": answer(recording, "nvmlDeviceGetPcieReplayCounter"),
        "ecc_corrected_volatile": answer(recording, "nvmlDeviceGetTotalEccErrors.SBE_VOL"),
        "ecc_uncorrected_volatile": answer(recording, "nvmlDeviceGetTotalEccErrors.DBE_VOL"),
        "ecc_corrected_aggregate": answer(recording, "nvmlDeviceGetTotalEccErrors.SBE_AGG"),
        "ecc_uncorrected_aggregate": answer(recording, "nvmlDeviceGetTotalEccErrors.DBE_AGG"),
        "remapped_rows_corrected": 0,
        "remapped_rows_uncorrected": 0,
        "remapped_rows_pending": 0,
        "remapped_rows_failed": 0,
        "power_violation_ns": answer(recording, "nvmlDeviceGetViolationStatus.POWER")["violationTime"],
        "thermal_violation_ns": answer(recording, "nvmlDeviceGetViolationStatus.THERMAL")["violationTime"],
        "sync_boost_violation_ns": fields["NVML_FI_DEV_PERF_POLICY_SYNC_BOOST"]["value"],
        "board_limit_violation_ns": fields["NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT"]["value"],
        "low_utilization_violation_ns": fields["NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION"]["value"],
        "reliability_violation_ns": fields["NVML_FI_DEV_PERF_POLICY_RELIABILITY"]["value"],
        "retired_pages_single_bit": None,
        "retired_pages_double_bit": None,
        "retired_pages_pending": None,
        "nvlinks_active": None,
        "nvlink_tx_kibibytes": None,
        "nvlink_rx_kibibytes": None,
        "nvlink_replays": None,
        "nvlink_recoveries": None,
        "nvlink_crc_flit_errors": None,
        "nvlink_crc_data_errors": None,
        "recovery_action": fields["NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"]["value"],
        "persistence_mode": answer(recording, "nvmlDeviceGetPersistenceMode"),
        "compute_mode": answer(recording, "nvmlDeviceGetComputeMode"),
        "vgpu_licensed": 0,
    }


@pytest.mark.parametrize("name", ["idle", "busy"])
def test_the_readings_are_those_of_the_recorded_gpu(rig: Rig, name: str) -> None:
    rig.fake.say(f"recording {name}")
    assert rig.gpu().readings._asdict() == expected(recorded(name))


def test_the_first_pass_is_complete(rig: Rig) -> None:
    first = rig.gpu().readings
    assert rig.gpu().readings == first


def test_the_identity_is_that_of_the_recorded_gpu(rig: Rig) -> None:
    reading = rig.read()
    identity = reading.gpus[0].identity
    assert identity.uuid == "GPU-3ea3f955-c0e4-1497-8afd-c9836cb19860"
    assert (identity.index, identity.name, identity.pci_bus_id) == (0, "NVIDIA H200", "00000000:00:06.0")
    assert (identity.minor, identity.device, identity.serial) == (0, "nvidia0", "1654024031810")
    assert (identity.architecture, identity.compute_capability) == ("hopper", "9.0")
    assert (identity.power_limit_min_watts, identity.power_limit_max_watts) == (200, 700)
    assert (identity.temperature_slowdown_celsius, identity.temperature_shutdown_celsius) == (89, 95)
    assert identity.gpm_supported
    assert (identity.brand, identity.pci_subsystem_id) == ("Nvidia", 0x18BE10DE)
    assert identity.inforom_versions == (("image", "G520.0282.02.02"),)
    assert (identity.clock_graphics_max_mhz, identity.clock_memory_max_mhz) == (1980, 3201)
    assert (reading.driver_version, reading.cuda_version) == ("580.159.04", "13.0")


@pytest.mark.parametrize("count", [1, 8, 16])
def test_each_gpu_has_its_own_readings(rig: Rig, count: int) -> None:
    rig.fake.say(f"gpus {count}")
    reading = rig.read()
    assert [gpu.identity.index for gpu in reading.gpus] == list(range(count))
    assert len({gpu.identity.uuid for gpu in reading.gpus}) == count
    assert [gpu.readings.temperature_celsius for gpu in reading.gpus] == list(range(42, 42 + count))
    assert (reading.expected, reading.present) == (count, count)


def test_throttle_reasons_are_named(rig: Rig) -> None:
    rig.fake.say("set nvmlDeviceGetCurrentClocksEventReasons 0 76")
    assert rig.gpu().readings.throttle_reasons == ("sw_power_cap", "hw_slowdown", "hw_thermal_slowdown")
    rig.fake.replace("set nvmlDeviceGetCurrentClocksEventReasons 0 0")
    assert rig.gpu().readings.throttle_reasons == ()


def test_an_unsupported_call_is_made_once(rig: Rig) -> None:
    assert rig.read_for(40).gpus[0].readings.fan_percent is None
    assert rig.fake.calls("nvmlDeviceGetFanSpeed") == 1
    assert rig.fake.calls("nvmlDeviceGetNvLinkState") == 1


def test_unsupported_calls_are_tried_again_only_with_another_driver(rig: Rig) -> None:
    rig.read()
    rig.fake.say("fail nvmlDeviceGetPowerUsage 1")
    with pytest.raises(Exception, match="NVML"):
        rig.read()
    rig.fake.unsay("fail")
    rig.read(after_s=5)
    assert rig.fake.counter("inits") == 2
    assert rig.fake.calls("nvmlDeviceGetFanSpeed") == 1

    rig.fake.say("driver 590.10", "fail nvmlDeviceGetPowerUsage 1")
    with pytest.raises(Exception, match="NVML"):
        rig.read()
    rig.fake.unsay("fail")
    assert rig.read(after_s=5).driver_version == "590.10"
    assert rig.fake.calls("nvmlDeviceGetFanSpeed") == 2


def test_a_failed_call_is_missing_counted_and_retried(rig: Rig) -> None:
    rig.read()
    rig.fake.say("fail nvmlDeviceGetPowerUsage 999")
    failing = rig.read_for(3)
    assert failing.gpus[0].readings.power_watts is None
    assert failing.gpus[0].readings.temperature_celsius == 42
    assert failing.call_failures == {("power", "unknown"): 3}
    rig.fake.unsay("fail")
    assert rig.gpu().readings.power_watts == pytest.approx(82.958)


def test_a_failure_on_one_gpu_leaves_the_others_alone(rig: Rig) -> None:
    rig.fake.say("gpus 3", "fail nvmlDeviceGetTemperature 3 1")
    temperatures = [gpu.readings.temperature_celsius for gpu in rig.read_for(5).gpus]
    assert temperatures == [42, None, 44]
    assert rig.fake.calls("nvmlDeviceGetTemperature", gpu=1) == 1
    assert rig.fake.calls("nvmlDeviceGetTemperature", gpu=0) == 5


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("set nvmlDeviceGetUtilizationRates 0 101 5", "utilization_percent"),
        ("set nvmlDeviceGetUtilizationRates 0 5 4000000000", "memory_utilization_percent"),
        ("set nvmlDeviceGetMemoryInfo_v2 0 0 1000 0 0 2000", "memory_used_bytes"),
        ("set nvmlDeviceGetPowerUsage 0 4000000000", "power_watts"),
        ("set nvmlDeviceGetTemperature 0 65000", "temperature_celsius"),
        ("set nvmlDeviceGetClockInfo.SM 0 4000000000", "clock_sm_mhz"),
        ("set nvmlDeviceGetEncoderUtilization 0 250 0", "encoder_percent"),
    ],
)
def test_an_implausible_value_is_missing_and_counted(rig: Rig, line: str, field: str) -> None:
    rig.fake.say(line)
    reading = rig.read()
    assert getattr(reading.gpus[0].readings, field) is None
    assert reading.samples_dropped == {(reading.gpus[0].identity.uuid, "above_limit"): 1}
    rig.fake.replace()
    assert getattr(rig.gpu().readings, field) is not None


def test_not_available_is_missing(rig: Rig) -> None:
    rig.fake.say(
        f"set nvmlDeviceGetPcieReplayCounter 0 {2**32 - 1}",
        "set nvmlDeviceGetPerformanceState 0 32",
    )
    reading = rig.read()
    assert reading.gpus[0].readings.pcie_replays is None
    assert reading.gpus[0].readings.performance_state is None
    assert not reading.samples_dropped


def test_memory_of_an_older_driver_has_no_reserve(rig: Rig) -> None:
    rig.fake.say("fail nvmlDeviceGetMemoryInfo_v2 25")
    readings = rig.read_for(2).gpus[0].readings
    assert (readings.memory_used_bytes, readings.memory_reserved_bytes) == (644939776, None)
    assert rig.fake.calls("nvmlDeviceGetMemoryInfo_v2") == 1


def test_nvlinks_are_counted_and_their_counters_read(rig: Rig) -> None:
    rig.fake.say(
        "set nvmlDeviceGetNvLinkState 0 18 17",
        "set nvmlDeviceGetFieldValues.138.all 0 5000",
        "set nvmlDeviceGetFieldValues.139.all 0 7000",
        "set nvmlDeviceGetFieldValues.52 0 3",
        "set nvmlDeviceGetFieldValues.59 0 2",
        "set nvmlDeviceGetFieldValues.38 0 1",
        "set nvmlDeviceGetFieldValues.45 0 4",
    )
    readings = rig.gpu().readings
    assert readings.nvlinks_active == 17
    assert (readings.nvlink_tx_kibibytes, readings.nvlink_rx_kibibytes) == (5000, 7000)
    assert (readings.nvlink_replays, readings.nvlink_recoveries) == (3, 2)
    assert (readings.nvlink_crc_flit_errors, readings.nvlink_crc_data_errors) == (1, 4)


def test_retired_pages_are_read_where_a_gpu_has_them(rig: Rig) -> None:
    rig.fake.say(*(f"set nvmlDeviceGetFieldValues.{field} 0 {value}" for field, value in ((29, 5), (30, 2), (31, 1))))
    readings = rig.gpu().readings
    pages = (readings.retired_pages_single_bit, readings.retired_pages_double_bit, readings.retired_pages_pending)
    assert pages == (5, 2, 1)


def test_the_vgpu_licence_is_read(rig: Rig) -> None:
    rig.fake.say("set nvmlDeviceGetGridLicensableFeatures_v4 0 1 1")
    assert rig.gpu().readings.vgpu_licensed == 1


def test_the_slow_lane_runs_every_15_s_and_its_values_are_kept(rig: Rig) -> None:
    rig.read()
    rig.fake.say("set nvmlDeviceGetTotalEccErrors.DBE_VOL 0 5", "set nvmlDeviceGetTemperature 0 70")
    early = rig.read_for(14).gpus[0].readings
    assert (early.ecc_uncorrected_volatile, early.temperature_celsius) == (0, 70)
    assert rig.gpu().readings.ecc_uncorrected_volatile == 5


def test_the_slow_lanes_of_several_gpus_run_in_different_passes(rig: Rig) -> None:
    rig.fake.say("gpus 8")
    rig.read()
    before = rig.fake.calls("nvmlDeviceGetViolationStatus")
    per_pass = []
    for _ in range(30):
        rig.read()
        now = rig.fake.calls("nvmlDeviceGetViolationStatus")
        per_pass.append((now - before) // 2)
        before = now
    assert max(per_pass) == 1
    assert sum(per_pass) >= 8
