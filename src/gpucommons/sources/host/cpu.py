"""Load, CPU time, utilisation and system counters from /proc. Utilisation requires two reads."""

from pathlib import Path

from gpucommons.model.host import CoreTimes, CpuReading
from gpucommons.sources.host.core_times import parse_activity, parse_core_times, without_steps_back
from gpucommons.sources.host.procfs import read_file, read_required
from gpucommons.sources.source import SourceError

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
            one, five, fifteen = map(float, read_file(self._procfs, "loadavg").split()[:3])
        except (OSError, ValueError):
            return None, None, None
        return one, five, fifteen
