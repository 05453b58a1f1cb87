"""The host's CPU, memory and pressure at an instant. A value that was not read is None, never 0."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple


class CoreTimes(NamedTuple):
    """Seconds that one core spent in each mode since boot. Guest time is also included in user and nice."""

    user: float
    nice: float
    system: float
    idle: float
    iowait: float
    irq: float
    softirq: float
    steal: float
    guest: float
    guest_nice: float


class SystemActivity(NamedTuple):
    """System-wide counters of the kernel; None if it does not have them."""

    boot_time_s: int | None
    interrupts: int | None
    context_switches: int | None
    forks: int | None
    processes_running: int | None
    processes_blocked: int | None


@dataclass(frozen=True, slots=True)
class CpuReading:
    """`utilization_ratio` is None until two reads of the counters exist. `core_times` is by the core's number."""

    cores: int
    load_1m: float | None
    load_5m: float | None
    load_15m: float | None
    utilization_ratio: float | None
    core_times: Mapping[str, CoreTimes] = field(default_factory=dict)
    activity: SystemActivity | None = None


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """`sizes` and `counts` hold every field by the kernel's name: those in bytes, and those without a unit."""

    total_bytes: int
    available_bytes: int | None
    sizes: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


class PressureLine(NamedTuple):
    """One line of /proc/pressure: the share of time that tasks stalled, in percent, and the total."""

    avg10: float
    avg60: float
    avg300: float
    stalled_seconds_total: float


class Pressure(NamedTuple):
    """Stalls on one resource: of `some` tasks, or of all (`full`) at the same time."""

    some: PressureLine | None
    full: PressureLine | None


class PressureReading(NamedTuple):
    cpu: Pressure | None
    memory: Pressure | None
    io: Pressure | None


GIB: Final = 1 << 30
LEAST_HOST_RESERVE_BYTES: Final = 4 * GIB


class HostMemory(NamedTuple):
    total_bytes: int
    available_bytes: int

    def budget_bytes(self, reserve_percent: float) -> int:
        """What may be parked: what is available less the reserve."""
        reserve = max(LEAST_HOST_RESERVE_BYTES, int(self.total_bytes * reserve_percent / 100))
        return max(0, self.available_bytes - reserve)
