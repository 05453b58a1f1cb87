"""Whether a GPU is well, from its readings: the worst of what is wrong, and each problem by name. Pure."""

from dataclasses import dataclass
from enum import IntEnum

from gpucommons.model.gpu import Gpu

# An XID is news for this long: what it was about has by then been dealt with, or shows elsewhere.
_XID_RECENT_S = 600.0
# XIDs of an application that went wrong by itself: the GPU is well.
_APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68})
_SLOWDOWNS = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})


class HealthLevel(IntEnum):
    OK = 0
    WARNING = 1
    CRITICAL = 2
    LOST = 3


@dataclass(frozen=True, slots=True)
class GpuHealth:
    level: HealthLevel
    problems: tuple[str, ...]


def health_of(gpu: Gpu, now_wall_s: float) -> GpuHealth:
    if not gpu.up:
        return GpuHealth(HealthLevel.LOST, (gpu.down_reason or "lost",))
    found = [*_errors(gpu), *_heat(gpu), *_recent_xid(gpu, now_wall_s)]
    return GpuHealth(max((level for level, _ in found), default=HealthLevel.OK), tuple(name for _, name in found))


def _errors(gpu: Gpu) -> list[tuple[HealthLevel, str]]:
    readings = gpu.readings
    found = (
        (HealthLevel.CRITICAL, "row_remap_failed", readings.remapped_rows_failed),
        (HealthLevel.CRITICAL, "recovery_action_needed", readings.recovery_action),
        (HealthLevel.CRITICAL, "uncorrected_ecc_errors", readings.ecc_uncorrected_volatile),
        (HealthLevel.WARNING, "row_remap_pending", readings.remapped_rows_pending),
    )
    return [(level, name) for level, name, value in found if value]


def _heat(gpu: Gpu) -> list[tuple[HealthLevel, str]]:
    found = [(HealthLevel.WARNING, reason) for reason in gpu.readings.throttle_reasons or () if reason in _SLOWDOWNS]
    temperature, limit = gpu.readings.temperature_celsius, gpu.identity.temperature_slowdown_celsius
    if temperature is not None and limit is not None and temperature >= limit:
        found.append((HealthLevel.WARNING, "hot"))
    return found


def _recent_xid(gpu: Gpu, now_wall_s: float) -> list[tuple[HealthLevel, str]]:
    code, last_wall_s = gpu.xid.last_code, gpu.xid.last_wall_s
    if code is None or last_wall_s is None or now_wall_s - last_wall_s > _XID_RECENT_S:
        return []
    return [(HealthLevel.WARNING if code in _APPLICATION_XIDS else HealthLevel.CRITICAL, f"xid_{code}")]
