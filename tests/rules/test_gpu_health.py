"""A GPU's health: the worst of what is wrong, each problem by name, and no false alarm."""

from dataclasses import replace

import pytest

from gpucommons.model.gpu import Gpu, GpuIdentity, GpuReadings, XidRecord
from gpucommons.rules.gpu_health import GpuHealth, HealthLevel, health_of

NOW = 1000.0
WELL = Gpu(
    GpuIdentity("GPU-a", 0, "NVIDIA H200", "00000000:00:06.0", temperature_slowdown_celsius=89),
    up=True,
    since_wall_s=0.0,
    readings=GpuReadings(temperature_celsius=60, throttle_mask=0x5, ecc_uncorrected_volatile=0, recovery_action=0),
    xid=XidRecord(watched=True),
)


def with_readings(**changes: int) -> Gpu:
    return replace(WELL, readings=WELL.readings._replace(**changes))


def test_a_gpu_at_its_power_cap_or_idle_is_well() -> None:
    assert health_of(WELL, NOW) == GpuHealth(HealthLevel.OK, ())


def test_a_gpu_of_which_nothing_is_known_is_not_ill() -> None:
    assert health_of(replace(WELL, readings=GpuReadings()), NOW).level is HealthLevel.OK


@pytest.mark.parametrize(
    ("gpu", "level", "problem"),
    [
        (with_readings(remapped_rows_failed=1), HealthLevel.CRITICAL, "row_remap_failed"),
        (with_readings(recovery_action=2), HealthLevel.CRITICAL, "recovery_action_needed"),
        (with_readings(ecc_uncorrected_volatile=1), HealthLevel.CRITICAL, "uncorrected_ecc_errors"),
        (with_readings(remapped_rows_pending=1), HealthLevel.WARNING, "row_remap_pending"),
        (with_readings(throttle_mask=0x40), HealthLevel.WARNING, "hw_thermal_slowdown"),
        (with_readings(temperature_celsius=89), HealthLevel.WARNING, "hot"),
        (replace(WELL, xid=XidRecord(True, {79: 1}, 79, NOW - 10)), HealthLevel.CRITICAL, "xid_79"),
        (replace(WELL, xid=XidRecord(True, {31: 1}, 31, NOW - 10)), HealthLevel.WARNING, "xid_31"),
        (replace(WELL, up=False, down_reason="gpu_is_lost"), HealthLevel.LOST, "gpu_is_lost"),
    ],
)
def test_what_is_wrong_has_a_name(gpu: Gpu, level: HealthLevel, problem: str) -> None:
    assert health_of(gpu, NOW) == GpuHealth(level, (problem,))


def test_an_old_xid_is_history() -> None:
    assert health_of(replace(WELL, xid=XidRecord(True, {79: 1}, 79, NOW - 601)), NOW).level is HealthLevel.OK


def test_the_worst_counts_and_all_are_named() -> None:
    health = health_of(with_readings(remapped_rows_pending=1, remapped_rows_failed=1, temperature_celsius=95), NOW)
    assert health == GpuHealth(HealthLevel.CRITICAL, ("row_remap_failed", "row_remap_pending", "hot"))
