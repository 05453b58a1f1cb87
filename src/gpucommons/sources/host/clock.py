"""The system's time zone, and the kernel's clock sources from sysfs."""

import time
from pathlib import Path

from gpucommons.model.kernel import Clock, ClockSource
from gpucommons.sources.host.procfs import read_file


def read_clock(sysfs: Path) -> Clock:
    directory = sysfs / "devices/system/clocksource"
    sources = tuple(_clock_source(path) for path in sorted(directory.glob("clocksource[0-9]*")))
    local = time.localtime()
    return Clock(local.tm_zone, local.tm_gmtoff, sources)


def _clock_source(path: Path) -> ClockSource:
    available = read_file(path, "available_clocksource").decode("ascii", "replace")
    return ClockSource(
        tuple(available.split()), read_file(path, "current_clocksource").decode("ascii", "replace").strip()
    )
