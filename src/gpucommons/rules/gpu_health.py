"""The health of a GPU: its level, and each reason with a sentence. The page, top, gpus and metrics all use it. Pure."""

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from gpucommons.model.gpu import Gpu
from gpucommons.rules.xids import Cause, xid_meaning

# Closer than this to the temperature at which the driver slows the GPU down counts as hot.
_HOT_MARGIN_CELSIUS = 5
# The effects of an older XID show in other readings.
XID_RECENT_S = 600.0
# Reasons for lower clocks that are normal operation: an idle GPU, a setting, or full use of the power limit.
_HARMLESS_THROTTLE_REASONS = frozenset(
    {"gpu_idle", "applications_clocks_setting", "display_clock_setting", "sync_boost", "sw_power_cap"}
)
_THROTTLE_SENTENCES = {
    "hw_slowdown": "The hardware halves the clocks or more because of heat or power.",
    "sw_thermal_slowdown": "The driver lowers the clocks because the GPU or its memory is too hot.",
    "hw_thermal_slowdown": "The hardware lowers the clocks because the GPU is too hot.",
    "hw_power_brake_slowdown": "The hardware lowers the clocks because the power supply asserts a power brake.",
    "board_limit": "The clocks are lowered because of a limit of the board.",
    "reliability": "The clocks are lowered because of a limit of the voltage.",
}
# As NVML numbers them.
_RECOVERY_ACTIONS = {1: "a reset of the GPU", 2: "a reboot of the node", 3: "a drain", 4: "a drain and a reset"}


class HealthLevel(IntEnum):
    OK = 0
    WARNING = 1
    CRITICAL = 2
    LOST = 3


class HealthReason(NamedTuple):
    name: str
    level: HealthLevel
    sentence: str


class GpuHealth(NamedTuple):
    reasons: tuple[HealthReason, ...]

    @property
    def level(self) -> HealthLevel:
        return max((reason.level for reason in self.reasons), default=HealthLevel.OK)


def health_of(gpu: Gpu, now_wall_s: float) -> GpuHealth:
    if not gpu.up:
        return GpuHealth((HealthReason(_down_reason(gpu), HealthLevel.LOST, lost_sentence(gpu)),))
    return GpuHealth((*_memory_errors(gpu), *_throttling(gpu), *_heat(gpu), *_recent_xid(gpu, now_wall_s)))


def lost_sentence(gpu: Gpu) -> str:
    return f"The GPU no longer answers ({_down_reason(gpu).replace('_', ' ')})."


def _down_reason(gpu: Gpu) -> str:
    return gpu.down_reason or "lost"


def _memory_errors(gpu: Gpu) -> Iterator[HealthReason]:
    readings = gpu.readings
    if readings.remapped_rows_failed:
        yield _critical("row_remap_failed", "A faulty row of memory could not be remapped; replace the GPU.")
    if readings.recovery_action:
        action = _RECOVERY_ACTIONS.get(readings.recovery_action, "a recovery")
        yield _critical("recovery_action_needed", f"The driver requests {action}.")
    if readings.ecc_uncorrected_volatile:
        yield _critical(
            "uncorrected_ecc_errors", "The memory has had uncorrected ECC errors since the driver was loaded."
        )
    if readings.remapped_rows_pending:
        yield _warning("row_remap_pending", "A row of memory is remapped at the next reset.")


def _throttling(gpu: Gpu) -> Iterator[HealthReason]:
    for name in gpu.readings.throttle_reasons or ():
        if name not in _HARMLESS_THROTTLE_REASONS:
            yield _warning(name, _THROTTLE_SENTENCES[name])


def _heat(gpu: Gpu) -> Iterator[HealthReason]:
    temperature, limit = gpu.readings.temperature_celsius, gpu.identity.temperature_slowdown_celsius
    if temperature is not None and limit is not None and temperature >= limit - _HOT_MARGIN_CELSIUS:
        sentence = f"The temperature is at least {limit - _HOT_MARGIN_CELSIUS} °C; the clocks slow down at {limit} °C."
        yield _warning("hot", sentence)


def _recent_xid(gpu: Gpu, now_wall_s: float) -> Iterator[HealthReason]:
    code, last_wall_s = gpu.xid.last_code, gpu.xid.last_wall_s
    if code is None or last_wall_s is None or now_wall_s - last_wall_s > XID_RECENT_S:
        return
    known = xid_meaning(code)
    sentence = f"The driver reported XID {code} in the last {XID_RECENT_S / 60:.0f} minutes: {known.sentence}."
    yield (_warning if known.cause is Cause.PROGRAM else _critical)(f"xid_{code}", sentence)


def _warning(name: str, sentence: str) -> HealthReason:
    return HealthReason(name, HealthLevel.WARNING, sentence)


def _critical(name: str, sentence: str) -> HealthReason:
    return HealthReason(name, HealthLevel.CRITICAL, sentence)
