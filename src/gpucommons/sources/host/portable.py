"""CPU, memory and processes through psutil, for systems without /proc such as macOS. The readings are the same."""

import os
import time
from typing import TYPE_CHECKING

from gpucommons.model.host import CpuReading, MemoryReading
from gpucommons.model.process_identity import ProcessKey, ProcessRow, ProcessTable
from gpucommons.sources.host.processes import Busiest
from gpucommons.sources.source import SourceAbsent

if TYPE_CHECKING:
    import psutil
else:
    try:
        import psutil
    except ImportError:
        psutil = None

# psutil reports start times in seconds; the key requires whole ticks.
_TICKS_PER_S = 100


def _require_psutil() -> None:
    if psutil is None:
        raise SourceAbsent("psutil is not installed", "pip install psutil")


class PortableCpuReader:
    def __init__(self) -> None:
        self._is_first = True

    def read(self) -> CpuReading:
        _require_psutil()
        percent = psutil.cpu_percent(interval=None)
        ratio = None if self._is_first else percent / 100
        self._is_first = False
        return CpuReading(psutil.cpu_count() or 1, *os.getloadavg(), ratio)


def read_portable_memory() -> MemoryReading:
    _require_psutil()
    memory = psutil.virtual_memory()
    return MemoryReading(memory.total, memory.available)


class PortableProcessReader:
    def __init__(self, busiest_limit: int) -> None:
        self._busiest = Busiest(busiest_limit)

    def read(self) -> ProcessTable:
        _require_psutil()
        by_pid: dict[int, ProcessRow] = {}
        for process in psutil.process_iter():
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    key = ProcessKey(process.pid, int(process.create_time() * _TICKS_PER_S))
                    row = ProcessRow(key, process.name(), times.user + times.system, process.memory_info().rss)
            except psutil.Error:
                continue
            by_pid[process.pid] = row
        return ProcessTable(by_pid, self._busiest.choose(by_pid, time.monotonic()))
