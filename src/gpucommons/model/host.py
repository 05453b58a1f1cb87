"""The host's CPU, memory and pressure at an instant. A signal that was not read is None, never 0."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpuReading:
    """`utilization_ratio` is None until two reads of the counters exist."""

    cores: int
    load_1m: float | None
    load_5m: float | None
    load_15m: float | None
    utilization_ratio: float | None


@dataclass(frozen=True, slots=True)
class MemoryReading:
    total_bytes: int
    available_bytes: int | None


@dataclass(frozen=True, slots=True)
class PressureLine:
    """One line of /proc/pressure: the share of time that tasks stalled, in percent, and the total."""

    avg10: float
    avg60: float
    avg300: float
    stalled_seconds_total: float


@dataclass(frozen=True, slots=True)
class Pressure:
    """Stalls on one resource: `some` tasks were held up, or all (`full`) at once."""

    some: PressureLine | None
    full: PressureLine | None


@dataclass(frozen=True, slots=True)
class PressureReading:
    cpu: Pressure | None
    memory: Pressure | None
    io: Pressure | None
