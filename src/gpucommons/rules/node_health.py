"""The node's health score, 0 (no headroom) to 10 (idle): a weighted blend of the signals that were read.

A signal that could not be read is left out and the others are weighed up to make the whole; how complete
the score is stands beside it. Pure arithmetic on readings.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpucommons.model.host import CpuReading, MemoryReading, Pressure, PressureReading

_WEIGHTS: Mapping[str, float] = {
    "cpu_utilization": 0.5 * 0.6,
    "cpu_load": 0.5 * 0.4,
    "memory": 0.3,
    "cpu_pressure": 0.1,
    "memory_pressure": 0.1,
}


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """`components` are 0..1, 1 being all headroom. `completeness_ratio` is the weight of what was read."""

    score: float
    completeness_ratio: float
    components: Mapping[str, float]


def _clamp(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _unpressed(pressure: Pressure | None) -> float | None:
    return None if pressure is None or pressure.some is None else 1.0 - _clamp(pressure.some.avg10 / 100.0)


def health_of(
    cpu: CpuReading | None, memory: MemoryReading | None, pressure: PressureReading | None
) -> NodeHealth | None:
    """None when nothing at all was read: no score is better than an invented one."""
    signals: dict[str, float | None] = {
        "cpu_utilization": None
        if cpu is None or cpu.utilization_ratio is None
        else _clamp(1.0 - cpu.utilization_ratio),
        "cpu_load": None if cpu is None or cpu.load_1m is None else _clamp(1.0 - cpu.load_1m / cpu.cores),
        "memory": None
        if memory is None or memory.available_bytes is None or memory.total_bytes <= 0
        else _clamp(memory.available_bytes / memory.total_bytes),
        "cpu_pressure": None if pressure is None else _unpressed(pressure.cpu),
        "memory_pressure": None if pressure is None else _unpressed(pressure.memory),
    }
    read = {name: value for name, value in signals.items() if value is not None}
    if not read:
        return None
    weight = sum(_WEIGHTS[name] for name in read)
    blend = sum(_WEIGHTS[name] * value for name, value in read.items())
    return NodeHealth(10.0 * _clamp(blend / weight), min(weight, 1.0), read)
