"""The processes of one GPU: three lists merged, with memory and utilisation.

Each list is requested once, with room to spare; nvidia-ml-py's wrappers request the length first, which doubles the
cost. Impossible pids and sizes are dropped.
"""

import ctypes
from collections.abc import Callable, Iterable
from ctypes import byref, c_uint, c_ulonglong
from struct import Struct

from gpucommons.model.gpu import GpuProcess
from gpucommons.sources.nvml import codes
from gpucommons.sources.nvml.call import Handle
from gpucommons.sources.nvml.library import Function
from gpucommons.sources.nvml.samples import ProcessSample, UsageWindow
from gpucommons.sources.nvml.start_times import StartTimes

_NOT_AVAILABLE_BYTES = 2**64 - 1
_NO_INSTANCE = 2**32 - 1
# The kernel's limit on pids.
_MOST_PID = 2**22
_ROOM = 32

# pid, padding, used memory; newer drivers add the GPU and compute instance.
_ENTRY_V1 = Struct("=I4xQ")
_ENTRY = Struct("=I4xQII")
_SAMPLE = Struct("=I4xQIIII")

LISTS: tuple[tuple[str, str, int], ...] = (
    ("compute_processes", "nvmlDeviceGetComputeRunningProcesses", 1),
    ("graphics_processes", "nvmlDeviceGetGraphicsRunningProcesses", 2),
    ("mps_processes", "nvmlDeviceGetMPSComputeRunningProcesses", 4),
)
# Indexed by the bits of the lists that contain the process.
_KINDS = (
    "",
    "compute",
    "graphics",
    "compute+graphics",
    "mps",
    "compute+mps",
    "graphics+mps",
    "compute+graphics+mps",
)
# The fields of a ProcessSample.
_NO_USAGE = (0, 0, None, None, None, None)

Instance = tuple[Handle, int, int]
# pid, used bytes, GPU instance, compute instance
Entry = tuple[int, int, int | None, int | None]


class ProcessList:
    """One of the lists of one GPU. `invoke`, `store` and `clear` are those of a Call."""

    def __init__(self, function: Function, has_instances: bool, handle: Handle) -> None:
        self._function = function
        self._entry = _ENTRY if has_instances else _ENTRY_V1
        self._handle = handle
        self.entries: list[Entry] | None = None
        self._raw = b""
        self._make_room(_ROOM)

    def _make_room(self, entries: int) -> None:
        self._capacity = entries
        self._buffer = ctypes.create_string_buffer(entries * self._entry.size)
        self._view = memoryview(self._buffer).cast("B")
        self._count = c_uint()
        self._count_reference = byref(self._count)

    def invoke(self) -> int:
        """Also decodes the result: the utilisation call, which runs next, depends on it."""
        self._count.value = self._capacity
        code = self._function(self._handle, self._count_reference, self._buffer)
        if code == codes.INSUFFICIENT_SIZE:
            code = self._request(self._handle)
        if code:
            self.entries = None
            return code
        raw = bytes(self._view[: self._count.value * self._entry.size])
        # Most lists are the same as in the last pass: then they are not decoded again.
        if self.entries is None or raw != self._raw:
            self._raw, self.entries = raw, self._decode(self._count.value)
        return code

    def _request(self, handle: Handle) -> int:
        self._count.value = self._capacity
        code = self._function(handle, self._count_reference, self._buffer)
        while code == codes.INSUFFICIENT_SIZE:
            self._make_room(2 * max(self._count.value, self._capacity))
            self._count.value = self._capacity
            code = self._function(handle, self._count_reference, self._buffer)
        return code

    def _decode(self, count: int, gi: int | None = None, ci: int | None = None) -> list[Entry]:
        """The entries; where the driver names no instance, the instance that was queried."""
        raw = self._entry.iter_unpack(self._view[: count * self._entry.size])
        if self._entry is _ENTRY_V1:
            return [(pid, used, gi, ci) for pid, used in raw]
        return [
            (pid, used, gi if its_gi == _NO_INSTANCE else its_gi, ci if its_ci == _NO_INSTANCE else its_ci)
            for pid, used, its_gi, its_ci in raw
        ]

    def store(self) -> str | None:
        return None

    def clear(self) -> None:
        self.entries = None


class InstanceProcessList(ProcessList):
    """The same list, from each MIG device: for a process without the right to query the whole GPU."""

    def __init__(self, function: Function, has_instances: bool, instances: Callable[[], Iterable[Instance]]) -> None:
        super().__init__(function, has_instances, None)
        self._instances = instances

    def invoke(self) -> int:
        found: list[Entry] = []
        self.entries = None
        for handle, gpu_instance_id, compute_instance_id in self._instances():
            code = self._request(handle)
            if code:
                return code
            found += self._decode(self._count.value, gpu_instance_id, compute_instance_id)
        self.entries = found
        return codes.OK


class ProcessUsage:
    """Utilisation by process. Skipped while the lists are known to be empty: the call is expensive."""

    def __init__(
        self,
        function: Function,
        handle: Handle,
        wall: Callable[[], float],
        lists: list[tuple[int, ProcessList]],
        dropped: Callable[[str], None],
    ) -> None:
        self._function = function
        self._handle = handle
        self._wall = wall
        self._lists = lists
        self._dropped = dropped
        self.window = UsageWindow()
        self._make_room(_ROOM)

    def _make_room(self, samples: int) -> None:
        self._capacity = samples
        self._buffer = ctypes.create_string_buffer(samples * _SAMPLE.size)
        self._view = memoryview(self._buffer).cast("B")
        self._count = c_uint()
        self._count_reference = byref(self._count)

    def _has_no_processes(self) -> bool:
        return not any(one.entries is None or one.entries for _, one in self._lists)

    def invoke(self) -> int:
        if self._has_no_processes():
            self._count.value = 0
            return codes.OK
        self._now_us = round(self._wall() * 1e6)
        since = c_ulonglong(self.window.request_since(self._now_us))
        self._count.value = self._capacity
        code = self._function(self._handle, self._buffer, self._count_reference, since)
        while code == codes.INSUFFICIENT_SIZE:
            self._make_room(2 * max(self._count.value, self._capacity))
            self._count.value = self._capacity
            code = self._function(self._handle, self._buffer, self._count_reference, since)
        if code == codes.NOT_FOUND:
            # There is no newer sample.
            self._count.value = 0
            return codes.OK
        return code

    def store(self) -> str | None:
        count = self._count.value
        if count:
            for fields in _SAMPLE.iter_unpack(self._view[: count * _SAMPLE.size]):
                reason = self.window.add(fields, self._now_us)
                if reason is not None:
                    self._dropped(reason)
        return None

    def clear(self) -> None:
        self.window.clear()


def merge(
    lists: Iterable[tuple[int, ProcessList]],
    usage: Callable[[], dict[int, ProcessSample]],
    most_bytes: float | None,
    keys: StartTimes,
    dropped: Callable[[str], None],
) -> tuple[GpuProcess, ...] | None:
    """One row per process and instance; None if no list could be read.

    Of a process in two lists, the larger memory figure is used, not the sum: both lists hold all of its memory.
    """
    merged: dict[tuple[int, int | None, int | None], tuple[int, int | None]] = {}
    read = False
    for bit, one in lists:
        if one.entries is None:
            continue
        read = True
        for pid, used, gi, ci in one.entries:
            if not 0 < pid <= _MOST_PID:
                dropped("pid")
                continue
            memory: int | None = used
            if used == _NOT_AVAILABLE_BYTES:
                memory = None
            elif most_bytes is not None and used > most_bytes:
                dropped("memory")
                memory = None
            bits, known = merged.get((pid, gi, ci), (0, None))
            if known is not None:
                memory = known if memory is None else max(known, memory)
            merged[(pid, gi, ci)] = (bits | bit, memory)
    if not merged:
        return () if read else None
    rows, samples = [], usage()
    for (pid, gi, ci), (bits, memory) in merged.items():
        sample = samples.get(pid)
        _, _, sm, mem, enc, dec = _NO_USAGE if sample is None else sample
        rows.append(GpuProcess(pid, keys.key_of(pid), _KINDS[bits], memory, sm, mem, enc, dec, gi, ci))
    return tuple(rows)
