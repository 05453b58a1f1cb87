"""The system's time zone, the kernel's clock sources from sysfs, and how the clock is kept, by adjtimex(2)."""

import ctypes
import os
import time
from pathlib import Path

from gpucommons.model.host import Clock, ClockDiscipline, ClockSource
from gpucommons.sources.host.procfs import read_file

# From linux/timex.h: the clock is not synchronised; the offset is in nanoseconds.
_TIME_ERROR = 5
_STA_NANO = 0x2000


class _Timex(ctypes.Structure):
    """struct timex of linux/timex.h."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", ctypes.c_long * 2),
        ("tick", ctypes.c_long),
        ("ppsfreq", ctypes.c_long),
        ("jitter", ctypes.c_long),
        ("shift", ctypes.c_int),
        ("stabil", ctypes.c_long),
        ("jitcnt", ctypes.c_long),
        ("calcnt", ctypes.c_long),
        ("errcnt", ctypes.c_long),
        ("stbcnt", ctypes.c_long),
        ("tai", ctypes.c_int),
        ("reserved", ctypes.c_int * 11),
    )


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


def read_clock_discipline() -> ClockDiscipline:
    """With `modes` 0 the call changes nothing and needs no privilege; a sandbox may refuse it nevertheless.

    The C library makes it with clock_adjtime(2) where that exists.
    """
    state = _Timex()
    result = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"adjtimex: {os.strerror(code)}")
    return ClockDiscipline(
        synchronised=result != _TIME_ERROR,
        in_nanoseconds=bool(state.status & _STA_NANO),
        offset=state.offset,
        frequency=state.freq,
        max_error_us=state.maxerror,
        estimated_error_us=state.esterror,
        status=state.status,
        time_constant=state.constant,
        tick_us=state.tick,
        pps_frequency=state.ppsfreq,
        pps_jitter=state.jitter,
        pps_shift=state.shift,
        pps_stability=state.stabil,
        pps_jitter_exceeded=state.jitcnt,
        pps_calibrations=state.calcnt,
        pps_errors=state.errcnt,
        pps_stability_exceeded=state.stbcnt,
        tai_offset_s=state.tai,
    )
