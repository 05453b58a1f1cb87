"""The processes of one GPU: three lists merged, with memory and utilisation.

Each list is asked for once with room to spare; nvidia-ml-py's wrappers ask for the length first, which
doubles the cost. Never trusts a pid or a size that cannot be.
"""

import ctypes
from collections.abc import Callable, Iterable
from ctypes import byref, c_uint, c_ulonglong
from struct import Struct

from gpucommons.model.gpu import GpuProcess
from gpucommons.sources.nvml import codes
from gpucommons.sources.nvml.call import Handle
from gpucommons.sources.nvml.library import Function
from gpucommons.sources.nvml.samples import UsageSample, UsageWindow
from gpucommons.sources.nvml.start_times import StartTimes

_NOT_AVAILABLE_BYTES = 2**64 - 1
_NO_INSTANCE = 2**32 - 1
# The kernel's own bound on pids.
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
# By the bits of the lists that a process is in.
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
# Shaped like a UsageSample.
_NO_USAGE = (0, 0, None, None, None, None)

Instance = tuple[Handle, int | None, int | None]


class ProcessList:
    """One list of one GPU, or of its MIG devices one after the other. `invoke` and `store` are a Call's."""

    def __init__(self, function: Function, has_instances: bool, targets: Callable[[], Iterable[Instance]]) -> None:
        self._function = function
        self._entry = _ENTRY if has_instances else _ENTRY_V1
        self._targets = targets
        self._found: list[tuple[int, int, int | None, int | None]] = []
        self.entries: list[tuple[int, int, int | None, int | None]] | None = None
        self._make_room(_ROOM)

    def _make_room(self, entries: int) -> None:
        self._capacity = entries
        self._buffer = ctypes.create_string_buffer(entries * self._entry.size)
        self._view = memoryview(self._buffer).cast("B")
        self._count = c_uint()
        self._count_reference = byref(self._count)

    def invoke(self) -> int:
        self._found = []
        for handle, gpu_instance_id, compute_instance_id in self._targets():
            code = self._ask(handle)
            if code:
                return code
            count = self._count.value
            if count:
                self._decode(count, gpu_instance_id, compute_instance_id)
        return codes.OK

    def _ask(self, handle: Handle) -> int:
        self._count.value = self._capacity
        code = self._function(handle, self._count_reference, self._buffer)
        while code == codes.INSUFFICIENT_SIZE:
            self._make_room(2 * max(self._count.value, self._capacity))
            self._count.value = self._capacity
            code = self._function(handle, self._count_reference, self._buffer)
        return code

    def _decode(self, count: int, gpu_instance_id: int | None, compute_instance_id: int | None) -> None:
        raw = self._entry.iter_unpack(self._view[: count * self._entry.size])
        if self._entry is _ENTRY_V1:
            self._found += [(pid, used, gpu_instance_id, compute_instance_id) for pid, used in raw]
            return
        self._found += [
            (
                pid,
                used,
                gpu_instance_id if gi == _NO_INSTANCE else gi,
                compute_instance_id if ci == _NO_INSTANCE else ci,
            )
            for pid, used, gi, ci in raw
        ]

    def store(self) -> str | None:
        self.entries = self._found
        return None

    def clear(self) -> None:
        self.entries = None


class ProcessUsage:
    """Utilisation by process. Not asked for while the GPU surely has none: the call is among the dearest."""

    def __init__(
        self,
        function: Function,
        handle: Handle,
        wall: Callable[[], float],
        wanted: Callable[[], bool],
        dropped: Callable[[str], None],
    ) -> None:
        self._function = function
        self._handle = handle
        self._wall = wall
        self._wanted = wanted
        self._dropped = dropped
        self.window = UsageWindow()
        self._make_room(_ROOM)

    def _make_room(self, samples: int) -> None:
        self._capacity = samples
        self._buffer = ctypes.create_string_buffer(samples * _SAMPLE.size)
        self._view = memoryview(self._buffer).cast("B")
        self._count = c_uint()
        self._count_reference = byref(self._count)

    def invoke(self) -> int:
        if not self._wanted():
            self._count.value = 0
            return codes.OK
        self._now_us = round(self._wall() * 1e6)
        since = c_ulonglong(self.window.ask_since(self._now_us))
        self._count.value = self._capacity
        code = self._function(self._handle, self._buffer, self._count_reference, since)
        while code == codes.INSUFFICIENT_SIZE:
            self._make_room(2 * max(self._count.value, self._capacity))
            self._count.value = self._capacity
            code = self._function(self._handle, self._buffer, self._count_reference, since)
        if code == codes.NOT_FOUND:
            # No sample is newer than the last that we have.
            self._count.value = 0
            return codes.OK
        return code

    def store(self) -> str | None:
        count = self._count.value
        if count:
            for fields in _SAMPLE.iter_unpack(self._view[: count * _SAMPLE.size]):
                reason = self.window.add(UsageSample._make(fields), self._now_us)
                if reason is not None:
                    self._dropped(reason)
        return None

    def clear(self) -> None:
        self.window.clear()


def merge(
    lists: Iterable[tuple[int, ProcessList]],
    usage: dict[int, UsageSample],
    most_bytes: int | None,
    keys: StartTimes,
    dropped: Callable[[str], None],
) -> tuple[GpuProcess, ...] | None:
    """One row per process and instance; None when no list could be read.

    A process in two lists has its memory in both: the larger figure, not the sum.
    """
    merged: dict[tuple[int, int | None, int | None], tuple[int, int | None]] = {}
    read = False
    for bit, one in lists:
        entries = one.entries
        if entries is None:
            continue
        read = True
        for pid, used, gi, ci in entries:
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
    rows = []
    for (pid, gi, ci), (bits, memory) in merged.items():
        sample = usage.get(pid)
        _, _, sm, mem, enc, dec = _NO_USAGE if sample is None else sample
        rows.append(GpuProcess(pid, keys.key_of(pid), _KINDS[bits], memory, sm, mem, enc, dec, gi, ci))
    return tuple(rows)
