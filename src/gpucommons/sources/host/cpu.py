"""Load, CPU time, utilisation, memory and pressure from /proc. Utilisation requires two reads."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from gpucommons.model.host import (
    CoreTimes,
    CpuReading,
    MemoryReading,
    Pressure,
    PressureLine,
    PressureReading,
    SystemActivity,
)
from gpucommons.sources.host.procfs import read_file, read_required
from gpucommons.sources.source import SourceAbsent, SourceError

# The time of each core by mode, and system counters, from the lines of /proc/stat. Pure.
#
# A counter of the kernel may go backwards (iowait does, and every counter of a CPU that was offline); a Prometheus
# counter may not. Each counter keeps its highest value until the CPU has been restarted.

_DIGITS: Final = tuple(b"%d" % digit for digit in range(10))
# /proc always counts in USER_HZ, whatever the kernel's own tick is.
_TICKS_PER_S = 100
# Idle time that goes back by this much means that the CPU was offline; less is rounding by the kernel.
_RESTARTED_S = 3.0
_NO_TIME = (b"0",) * len(CoreTimes._fields)


def parse_core_times(lines: Iterable[bytes]) -> dict[str, CoreTimes]:
    """Times by core number. A mode that an older kernel lacks is 0: such a kernel spends no time in it."""
    by_core: dict[str, CoreTimes] = {}
    for line in lines:
        if line.startswith(b"cpu") and line[3:4] in _DIGITS:
            name, *ticks = line.split()
            padded = (*ticks, *_NO_TIME)[: len(_NO_TIME)]
            by_core[name[3:].decode("ascii")] = CoreTimes(*[int(tick) / _TICKS_PER_S for tick in padded])
    return by_core


def without_steps_back(before: Mapping[str, CoreTimes], now: Mapping[str, CoreTimes]) -> dict[str, CoreTimes]:
    return {core: _keep_rising(before.get(core), times) for core, times in now.items()}


def _keep_rising(before: CoreTimes | None, now: CoreTimes) -> CoreTimes:
    if before is None or before.idle - now.idle >= _RESTARTED_S:
        return now
    return CoreTimes(*map(max, before, now))


def parse_activity(lines: Iterable[bytes]) -> SystemActivity:
    values: dict[bytes, int] = {}
    for line in lines:
        # The line of interrupts has thousands of numbers: only the first, their sum, is used.
        name, _, rest = line.partition(b" ")
        if name in (b"intr", b"ctxt", b"btime", b"processes", b"procs_running", b"procs_blocked"):
            values[name] = int(rest.split(None, 1)[0])
    return SystemActivity(
        boot_time_s=values.get(b"btime"),
        interrupts=values.get(b"intr"),
        context_switches=values.get(b"ctxt"),
        forks=values.get(b"processes"),
        processes_running=values.get(b"procs_running"),
        processes_blocked=values.get(b"procs_blocked"),
    )


# Load, CPU time, utilisation and system counters from /proc. Utilisation requires two reads.

# Fields of the "cpu" line of /proc/stat: idle and iowait are not busy; guest time is included in user time.
_IDLE_FIELDS = (3, 4)
_COUNTED_FIELDS = 8


def parse_cpu_line(line: bytes) -> tuple[int, int]:
    """(busy, total) clock ticks since boot of one line of /proc/stat."""
    ticks = [int(field) for field in line.split()[1 : 1 + _COUNTED_FIELDS]]
    if len(ticks) < max(_IDLE_FIELDS):
        raise ValueError("too few fields")
    total = sum(ticks)
    return total - sum(ticks[i] for i in _IDLE_FIELDS if i < len(ticks)), total


def utilization(before: tuple[int, int] | None, after: tuple[int, int]) -> float | None:
    """The busy share of the ticks between two reads; None if there are no ticks between them."""
    if before is None:
        return None
    busy, total = after[0] - before[0], after[1] - before[1]
    # iowait may go backwards by a tick on some kernels, so the busy delta can exceed the total or be < 0.
    return min(max(busy / total, 0.0), 1.0) if total > 0 else None


class CpuReader:
    def __init__(self, procfs: Path) -> None:
        self._procfs = procfs
        self._before: tuple[int, int] | None = None
        self._utilization: float | None = None
        self._core_times: dict[str, CoreTimes] = {}

    def read(self) -> CpuReading:
        lines = read_required(self._procfs, "stat", "CPU counters").splitlines()
        try:
            after = parse_cpu_line(lines[0])
            core_times, activity = parse_core_times(lines), parse_activity(lines)
        except (ValueError, IndexError) as error:
            raise SourceError("garbage", f"{self._procfs / 'stat'} has no CPU counters") from error
        self._core_times = without_steps_back(self._core_times, core_times)
        ratio = utilization(self._before, after)
        if ratio is not None or self._before is None:
            self._before, self._utilization = after, ratio
        load = self._load()
        return CpuReading(max(len(core_times), 1), *load, self._utilization, self._core_times, activity)

    def _load(self) -> tuple[float | None, float | None, float | None]:
        try:
            load_1, load_5, load_15 = map(float, read_file(self._procfs, "loadavg").split()[:3])
        except (OSError, ValueError):
            return None, None, None
        return load_1, load_5, load_15


# Memory of the host from /proc/meminfo.

_MEMORY: Final = re.compile(r"^(.+): +(\d+)( kB)?$", re.MULTILINE | re.ASCII)


def parse_meminfo(text: bytes) -> MemoryReading:
    """Before Linux 3.14 there is no MemAvailable: then it is None, not an estimate."""
    sizes: dict[str, int] = {}
    counts: dict[str, int] = {}
    for name, value, unit in _MEMORY.findall(text.decode("ascii", "replace")):
        # The only unit is kB, of 1024 bytes.
        if unit:
            sizes[name] = int(value) * 1024
        else:
            counts[name] = int(value)
    return MemoryReading(sizes["MemTotal"], sizes.get("MemAvailable"), sizes, counts)


def read_memory(procfs: Path) -> MemoryReading:
    text = read_required(procfs, "meminfo", "memory figures")
    try:
        return parse_meminfo(text)
    except (ValueError, IndexError, KeyError) as error:
        raise SourceError("garbage", f"{procfs / 'meminfo'} has no MemTotal") from error


# Pressure stall information (PSI) of CPU, memory and I/O from /proc/pressure.

_PRESSURE: Final = re.compile(
    rb"^(some|full) avg10=(\d+\.\d+) avg60=(\d+\.\d+) avg300=(\d+\.\d+) total=(\d+)$", re.MULTILINE
)


def parse_pressure(text: bytes) -> Pressure:
    """Unknown lines are left out: a newer kernel may add some."""
    lines = {
        kind: PressureLine(float(avg10), float(avg60), float(avg300), int(total) / 1e6)
        for kind, avg10, avg60, avg300, total in _PRESSURE.findall(text)
    }
    return Pressure(lines.get(b"some"), lines.get(b"full"))


def read_pressure(procfs: Path) -> PressureReading:
    cpu, memory, io = (_read(procfs, name) for name in ("cpu", "memory", "io"))
    if cpu is None and memory is None and io is None:
        raise SourceAbsent(
            f"no pressure stall information under {procfs / 'pressure'}",
            "needs Linux 4.20 or newer with PSI; on some distributions boot with psi=1",
        )
    return PressureReading(cpu, memory, io)


def _read(procfs: Path, name: str) -> Pressure | None:
    try:
        # Reading fails with EOPNOTSUPP if PSI is compiled in but disabled.
        return parse_pressure(read_file(procfs, f"pressure/{name}"))
    except OSError:
        return None
