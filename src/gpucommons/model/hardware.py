"""The host's hardware from sysfs: sensors (hwmon), thermal throttling of the CPUs, isolated CPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Sensor(NamedTuple):
    """`properties` are the sensor's files by the suffix of their names, in the driver's units; "" is the name without
    a suffix."""

    name: str
    kind: str
    label: str | None
    properties: Mapping[str, float]


class Chip(NamedTuple):
    """`id` is derived from the device's path and is stable; `name` is the driver's name for the chip."""

    id: str
    name: str | None
    sensors: tuple[Sensor, ...]


@dataclass(frozen=True, slots=True)
class CpuThrottles:
    """Throttling events of each core (by package and core number) and of each package since boot."""

    cores: Mapping[tuple[str, str], int] = field(default_factory=dict)
    packages: Mapping[str, int] = field(default_factory=dict)


class HardwareReading(NamedTuple):
    """`chips` is None if the kernel has no hwmon; `chips_failed` counts those that could not be read."""

    chips: tuple[Chip, ...] | None
    chips_failed: int
    throttles: CpuThrottles
    isolated_cpus: tuple[int, ...]
