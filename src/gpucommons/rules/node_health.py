"""The node's health score, 0 (no headroom) to 10 (idle): a weighted mean of its components. Pure.

A component that was not read is left out of the mean; `completeness_ratio` is the weight of the others.
"""

from collections.abc import Mapping
from typing import NamedTuple

from gpucommons.model.host import CpuReading, MemoryReading, Pressure, PressureReading

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


def health_of(
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
