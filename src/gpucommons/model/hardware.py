"""What sysfs holds of the host's hardware: sensors (hwmon), thermal throttling of the CPUs, isolated CPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sensor:
    """`properties` are the sensor's files by the end of their names (in small letters, digits, : and _), in the
    driver's units; "" is the bare name."""

    name: str
    kind: str
    label: str | None
    properties: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Chip:
    """`id` is derived from the device's path and is stable; `name` is the driver's name for the chip."""

    id: str
    name: str | None
    sensors: tuple[Sensor, ...]


@dataclass(frozen=True, slots=True)
class CpuThrottles:
    """How often each core (by package and core number) and each package was throttled since boot."""

    cores: Mapping[tuple[str, str], int] = field(default_factory=dict)
    packages: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HardwareReading:
    """`chips` is None where the kernel has no hwmon; `chips_failed` counts those that could not be read."""

    chips: tuple[Chip, ...] | None
    chips_failed: int
    throttles: CpuThrottles
    isolated_cpus: tuple[int, ...]
