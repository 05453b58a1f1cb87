"""The time of each core by mode, and system counters, from the lines of /proc/stat. Pure.

A counter of the kernel may go backwards (iowait does, and every counter of a CPU that was offline); a Prometheus
counter may not. Each counter keeps its highest value until the CPU has been restarted.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gpucommons.model.host import CoreTimes, SystemActivity

_DIGITS: Final = tuple(b"%d" % digit for digit in range(10))
# /proc always counts in USER_HZ, whatever the kernel's own tick is.
_TICKS_PER_S = 100
# Idle time that goes back by this much means that the CPU was offline; less is rounding by the kernel.
_RESTARTED_S = 3.0
_NO_TIME = (b"0",) * len(CoreTimes._fields)


def parse_core_times(lines: Iterable[bytes]) -> dict[str, CoreTimes]:
    """Times by core number. A mode that an older kernel lacks is 0: such a kernel spends no time in it."""
    found: dict[str, CoreTimes] = {}
    for line in lines:
        if line.startswith(b"cpu") and line[3:4] in _DIGITS:
            name, *ticks = line.split()
            padded = (*ticks, *_NO_TIME)[: len(_NO_TIME)]
            found[name[3:].decode("ascii")] = CoreTimes(*[int(tick) / _TICKS_PER_S for tick in padded])
    return found


def without_steps_back(before: Mapping[str, CoreTimes], now: Mapping[str, CoreTimes]) -> dict[str, CoreTimes]:
    return {core: _kept(before.get(core), times) for core, times in now.items()}


def _kept(before: CoreTimes | None, now: CoreTimes) -> CoreTimes:
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
