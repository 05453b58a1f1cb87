"""The health of a GPU: the worst level counts, every reason has a name and a sentence, and no false alarm."""

import pytest

from gpucommons.model.gpu import THROTTLE_REASONS, Gpu, GpuIdentity, GpuReadings, XidRecord
from gpucommons.model.problems import HealthLevel
from gpucommons.rules.health import gpu_health_of

NOW = 1000.0
WELL = Gpu(
    GpuIdentity("GPU-a", 0, "NVIDIA H200", "00000000:00:06.0", temperature_slowdown_celsius=89),
    up=True,
    since_wall_s=0.0,
    readings=GpuReadings(temperature_celsius=60, throttle_mask=0x5, ecc_uncorrected_volatile=0, recovery_action=0),
    xid=XidRecord(watched=True),
)


def with_readings(**changes: int) -> Gpu:
    return WELL._replace(readings=WELL.readings._replace(**changes))


def names(gpu: Gpu) -> list[str]:
    return [reason.name for reason in gpu_health_of(gpu, NOW).reasons]


def test_a_gpu_at_its_power_cap_or_idle_is_ok() -> None:
    assert gpu_health_of(WELL, NOW).level is HealthLevel.OK
    assert gpu_health_of(WELL, NOW).reasons == ()


def test_a_gpu_without_readings_is_ok() -> None:
    assert gpu_health_of(WELL._replace(readings=GpuReadings()), NOW).level is HealthLevel.OK


@pytest.mark.parametrize(
    ("gpu", "level", "name", "sentence"),
    [
        (with_readings(remapped_rows_failed=1), HealthLevel.CRITICAL, "row_remap_failed", "replace the GPU"),
        (with_readings(recovery_action=2), HealthLevel.CRITICAL, "recovery_action_needed", "a reboot of the node"),
        (with_readings(ecc_uncorrected_volatile=1), HealthLevel.CRITICAL, "uncorrected_ecc_errors", "ECC"),
        (with_readings(remapped_rows_pending=1), HealthLevel.WARNING, "row_remap_pending", "next reset"),
        (with_readings(throttle_mask=0x40), HealthLevel.WARNING, "hw_thermal_slowdown", "too hot"),
        (with_readings(temperature_celsius=84), HealthLevel.WARNING, "hot", "at least 84 °C"),
        (WELL._replace(xid=XidRecord(True, {79: 1}, 79, NOW - 10)), HealthLevel.CRITICAL, "xid_79", "XID 79 in the"),
        (
            WELL._replace(xid=XidRecord(True, {31: 1}, 31, NOW - 10)),
            HealthLevel.WARNING,
            "xid_31",
            "page fault of the program",
        ),
        (WELL._replace(up=False, down_reason="gpu_is_lost"), HealthLevel.LOST, "gpu_is_lost", "no longer answers"),
        (WELL._replace(up=False), HealthLevel.LOST, "lost", "no longer answers"),
    ],
)
def test_a_fault_has_a_level_a_name_and_a_sentence(gpu: Gpu, level: HealthLevel, name: str, sentence: str) -> None:
    health = gpu_health_of(gpu, NOW)
    assert health.level is level
    (reason,) = health.reasons
    assert (reason.name, reason.level) == (name, level)
    assert sentence in reason.sentence
    assert reason.sentence.endswith(".")


def test_a_gpu_is_hot_from_five_degrees_below_its_limit() -> None:
    assert names(with_readings(temperature_celsius=83)) == []
    assert names(with_readings(temperature_celsius=84)) == ["hot"]


@pytest.mark.parametrize(("bit", "name"), THROTTLE_REASONS)
def test_every_throttle_reason_is_judged(bit: int, name: str) -> None:
    harmless = {"gpu_idle", "applications_clocks_setting", "display_clock_setting", "sync_boost", "sw_power_cap"}
    assert names(with_readings(throttle_mask=bit)) == ([] if name in harmless else [name])


def test_an_xid_older_than_ten_minutes_does_not_count() -> None:
    assert gpu_health_of(WELL._replace(xid=XidRecord(True, {79: 1}, 79, NOW - 601)), NOW).level is HealthLevel.OK


def test_the_worst_level_counts_and_every_reason_is_named() -> None:
    gpu = with_readings(remapped_rows_pending=1, remapped_rows_failed=1, temperature_celsius=95)
    assert gpu_health_of(gpu, NOW).level is HealthLevel.CRITICAL
    assert names(gpu) == ["row_remap_failed", "row_remap_pending", "hot"]
