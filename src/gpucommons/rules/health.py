"""The health of a GPU, with a sentence for each reason, and the health score of the node. Pure.

The page, top, gpus and the metrics all take their levels and sentences from here. What an XID error of the driver
means is a table.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from gpucommons.model.gpu import Gpu
from gpucommons.model.host import CpuReading, MemoryReading, Pressure, PressureReading
from gpucommons.model.problems import HealthLevel

# What an XID error of the NVIDIA driver means, and what to do about it. Pure: a table.
#
# Only `Cause` decides how grave an XID is: a fault of a program ends the program, a fault of the hardware the GPU.


class Cause(StrEnum):
    PROGRAM = "program"
    HARDWARE = "hardware"
    UNCLEAR = "unclear"


class XidMeaning(NamedTuple):
    meaning: str
    cause: Cause
    remedy: str

    @property
    def sentence(self) -> str:
        return f"{self.meaning}{_BLAME[self.cause]}"


_BLAME: Final = {
    Cause.PROGRAM: " of the program, not the hardware",
    Cause.HARDWARE: ", a fault of the hardware",
    Cause.UNCLEAR: "",
}
_INFORM: Final = "Inform the owner of the program; the GPU needs no repair."
_RESET: Final = "Take the GPU out of service and reset it (nvidia-smi --gpu-reset); replace it if this repeats."
_REBOOT: Final = "Drain the node and reboot it; check the seating, power and cooling of the GPU if this repeats."
_WATCH: Final = "Watch whether it repeats; the kernel log (dmesg) has the details."

_MEANINGS: Final = {
    8: XidMeaning("timeout of the GPU's processing", Cause.UNCLEAR, _WATCH),
    13: XidMeaning("exception in a computation", Cause.PROGRAM, _INFORM),
    31: XidMeaning("page fault", Cause.PROGRAM, _INFORM),
    32: XidMeaning("invalid or corrupted command stream", Cause.UNCLEAR, _WATCH),
    38: XidMeaning("firmware error of the driver", Cause.UNCLEAR, _WATCH),
    43: XidMeaning("halted computation", Cause.PROGRAM, _INFORM),
    45: XidMeaning("removed channel", Cause.PROGRAM, _INFORM),
    48: XidMeaning("double-bit ECC error of the memory", Cause.HARDWARE, _RESET),
    61: XidMeaning("breakpoint of the GPU's internal microcontroller", Cause.HARDWARE, _RESET),
    62: XidMeaning("halt of the GPU's internal microcontroller", Cause.HARDWARE, _RESET),
    63: XidMeaning("a row of memory is remapped at the next reset", Cause.UNCLEAR, "Reset the GPU when it is free."),
    64: XidMeaning("a faulty row of memory could not be remapped", Cause.HARDWARE, _RESET),
    68: XidMeaning("exception of the video processor", Cause.PROGRAM, _INFORM),
    69: XidMeaning("exception of the graphics engine", Cause.PROGRAM, _INFORM),
    74: XidMeaning("NVLink error", Cause.HARDWARE, "Check the NVLink bridge or fabric, then reset the GPU."),
    79: XidMeaning("the GPU has fallen off the bus", Cause.HARDWARE, _REBOOT),
    92: XidMeaning("many single-bit ECC errors", Cause.UNCLEAR, _WATCH),
    94: XidMeaning("contained memory error: one program was ended", Cause.UNCLEAR, "Reset the GPU when it is free."),
    95: XidMeaning("uncontained memory error", Cause.HARDWARE, _RESET),
    109: XidMeaning("timeout of a context switch", Cause.UNCLEAR, _WATCH),
    119: XidMeaning("the GPU's system processor does not answer", Cause.HARDWARE, _RESET),
    120: XidMeaning("error of the GPU's system processor", Cause.HARDWARE, _RESET),
    140: XidMeaning("unrecovered ECC error", Cause.HARDWARE, _RESET),
    143: XidMeaning("failed initialisation of the GPU", Cause.HARDWARE, _RESET),
}


def xid_meaning(code: int) -> XidMeaning:
    return _MEANINGS.get(code) or XidMeaning("error that the driver's documentation explains", Cause.UNCLEAR, _WATCH)


# The health of a GPU: its level, and each reason with a sentence. The page, top, gpus and metrics all use it. Pure.

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


class HealthReason(NamedTuple):
    name: str
    level: HealthLevel
    sentence: str


class GpuHealth(NamedTuple):
    reasons: tuple[HealthReason, ...]

    @property
    def level(self) -> HealthLevel:
        return max((reason.level for reason in self.reasons), default=HealthLevel.OK)


def gpu_health_of(gpu: Gpu, now_wall_s: float) -> GpuHealth:
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
    meaning = xid_meaning(code)
    sentence = f"The driver reported XID {code} in the last {XID_RECENT_S / 60:.0f} minutes: {meaning.sentence}."
    yield (_warning if meaning.cause is Cause.PROGRAM else _critical)(f"xid_{code}", sentence)


def _warning(name: str, sentence: str) -> HealthReason:
    return HealthReason(name, HealthLevel.WARNING, sentence)


def _critical(name: str, sentence: str) -> HealthReason:
    return HealthReason(name, HealthLevel.CRITICAL, sentence)


# The node's health score, 0 (no headroom) to 10 (idle): a weighted mean of its components. Pure.
#
# A component that was not read is left out of the mean; `completeness_ratio` is the weight of the others.

_WEIGHTS: Mapping[str, float] = {
    "cpu_utilization": 0.5 * 0.6,
    "cpu_load": 0.5 * 0.4,
    "memory": 0.3,
    "cpu_pressure": 0.1,
    "memory_pressure": 0.1,
}


class NodeHealth(NamedTuple):
    """`components` are the headroom of each, 0 to 1. `completeness_ratio` is the weight of those that were read."""

    score: float
    completeness_ratio: float
    components: Mapping[str, float]


def _clamp(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _headroom(pressure: Pressure | None) -> float | None:
    return None if pressure is None or pressure.some is None else 1.0 - _clamp(pressure.some.avg10 / 100.0)


def node_health_of(
    cpu: CpuReading | None, memory: MemoryReading | None, pressure: PressureReading | None
) -> NodeHealth | None:
    """None if no component was read."""
    components: dict[str, float | None] = {
        "cpu_utilization": None
        if cpu is None or cpu.utilization_ratio is None
        else _clamp(1.0 - cpu.utilization_ratio),
        "cpu_load": None if cpu is None or cpu.load_1m is None else _clamp(1.0 - cpu.load_1m / cpu.cores),
        "memory": None
        if memory is None or memory.available_bytes is None or memory.total_bytes <= 0
        else _clamp(memory.available_bytes / memory.total_bytes),
        "cpu_pressure": None if pressure is None else _headroom(pressure.cpu),
        "memory_pressure": None if pressure is None else _headroom(pressure.memory),
    }
    read = {name: value for name, value in components.items() if value is not None}
    if not read:
        return None
    weight = sum(_WEIGHTS[name] for name in read)
    blend = sum(_WEIGHTS[name] * value for name, value in read.items())
    return NodeHealth(10.0 * _clamp(blend / weight), min(weight, 1.0), read)
