"""The processes of one GPU: three lists merged, with memory and utilisation.

Each list is requested once, with room to spare; nvidia-ml-py's wrappers request the length first, which doubles the
cost. Impossible pids and sizes are dropped. There may be tens of thousands of rows: a list is kept as the driver's
bytes, and a row that has not changed since the last pass is the same object.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
_NO_USAGE: tuple[int, None, None, None, None] = (0, None, None, None, None)

Instance = tuple[Handle, int, int]
# pid, used bytes, GPU instance, compute instance
Entry = tuple[int, int, int | None, int | None]
# Entries as the driver wrote them, and the GPU and compute instance that was queried.
Listed = tuple[bytes, int | None, int | None]


def _roomier(needed: int, capacity: int) -> int:
    """With room for a few more processes; the driver may not say how many it needs."""
    return max(needed, capacity) * 5 // 4


class ProcessList:
    """One of the lists of one GPU. `invoke`, `store` and `clear` are those of a Call.

    `listed` is what the driver returned; None if the list was not read.
    """

    def __init__(self, function: Function, has_instances: bool, handle: Handle) -> None:
        self._function = function
        self._entry = _ENTRY if has_instances else _ENTRY_V1
        self._handle = handle
        self.listed: tuple[Listed, ...] | None = None
        self._make_room(_ROOM)

    def _make_room(self, entries: int) -> None:
        self._capacity = entries
        self._buffer = ctypes.create_string_buffer(entries * self._entry.size)
        self._view = memoryview(self._buffer).cast("B")
        self._count = c_uint()
        self._count_reference = byref(self._count)

    def invoke(self) -> int:
        """Also takes over the result: the utilisation call, which runs next, depends on it."""
        code = self._request(self._handle)
        self.listed = None if code else ((self._returned(), None, None),)
        return code

    def _request(self, handle: Handle) -> int:
        self._count.value = self._capacity
        code = self._function(handle, self._count_reference, self._buffer)
        while code == codes.INSUFFICIENT_SIZE:
            self._make_room(_roomier(self._count.value, self._capacity))
            self._count.value = self._capacity
            code = self._function(handle, self._count_reference, self._buffer)
        return code

    def _returned(self) -> bytes:
        return bytes(self._view[: self._count.value * self._entry.size])

    def entries(self) -> Iterator[Entry]:
        """The decoded entries; where the driver names no instance, the instance that was queried."""
        for raw, gi, ci in self.listed or ():
            if self._entry is _ENTRY_V1:
                for pid, used in self._entry.iter_unpack(raw):
                    yield pid, used, gi, ci
            else:
                for pid, used, its_gi, its_ci in self._entry.iter_unpack(raw):
                    yield pid, used, gi if its_gi == _NO_INSTANCE else its_gi, ci if its_ci == _NO_INSTANCE else its_ci

    @property
    def is_empty(self) -> bool:
        """False where the list was not read: it may have entries."""
        return self.listed is not None and not any(raw for raw, _, _ in self.listed)

    def store(self) -> str | None:
        return None

    def clear(self) -> None:
        self.listed = None


class InstanceProcessList(ProcessList):
    """The same list, from each MIG device: for a process without the right to query the whole GPU."""

    def __init__(self, function: Function, has_instances: bool, instances: Callable[[], Iterable[Instance]]) -> None:
        super().__init__(function, has_instances, None)
        self._instances = instances

    def invoke(self) -> int:
        found: list[Listed] = []
        self.listed = None
        for handle, gpu_instance_id, compute_instance_id in self._instances():
            code = self._request(handle)
            if code:
                return code
            found.append((self._returned(), gpu_instance_id, compute_instance_id))
        self.listed = tuple(found)
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
        return all(one.is_empty for _, one in self._lists)

    def invoke(self) -> int:
        if self._has_no_processes():
            self._count.value = 0
            return codes.OK
        self._now_us = round(self._wall() * 1e6)
        since = c_ulonglong(self.window.request_since(self._now_us))
        self._count.value = self._capacity
        code = self._function(self._handle, self._buffer, self._count_reference, since)
        while code == codes.INSUFFICIENT_SIZE:
            self._make_room(_roomier(self._count.value, self._capacity))
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
            for pid, time_us, sm, memory, encoder, decoder in _SAMPLE.iter_unpack(self._view[: count * _SAMPLE.size]):
                reason = self.window.add(pid, (time_us, sm, memory, encoder, decoder), self._now_us)
                if reason is not None:
                    self._dropped(reason)
        return None

    def clear(self) -> None:
        self.window.clear()


class ProcessRows:
    """The rows of one GPU, from pass to pass."""

    def __init__(self, keys: StartTimes) -> None:
        self._keys = keys
        self._source: object = None
        self._rows: tuple[GpuProcess, ...] = ()
        # The reasons why parts of these lists were dropped; counted in each pass.
        self._drops: list[str] = []

    def read(
        self,
        lists: Sequence[tuple[int, ProcessList]],
        usage: Callable[[], Mapping[int, ProcessSample]],
        most_bytes: float | None,
        dropped: Callable[[str], None],
    ) -> tuple[GpuProcess, ...] | None:
        """One row per process and instance; None if no list could be read."""
        source = most_bytes, [(bit, one.listed) for bit, one in lists]
        if source != self._source:
            self._drops = []
            self._rows = tuple(_merged(lists, most_bytes, self._drops))
        # Also if it is equal: the bytes then exist once.
        self._source = source
        for reason in self._drops:
            dropped(reason)
        if not self._rows:
            return () if any(one.listed is not None for _, one in lists) else None
        self._rows = tuple(self._current(usage()))
        return self._rows

    def _current(self, samples: Mapping[int, ProcessSample]) -> list[GpuProcess]:
        """The rows with the keys and the utilisation of this pass."""
        rows = []
        for row in self._rows:
            pid, key, kind, memory, sm, mem, enc, dec, gi, ci = row
            new_key = self._keys.key_of(pid)
            _, new_sm, new_mem, new_enc, new_dec = samples.get(pid, _NO_USAGE)
            if new_key is not key or new_sm != sm or new_mem != mem or new_enc != enc or new_dec != dec:
                # The key's pid is one object for all GPUs.
                pid = pid if new_key is None else new_key.pid
                row = GpuProcess(pid, new_key, kind, memory, new_sm, new_mem, new_enc, new_dec, gi, ci)
            rows.append(row)
        return rows


def _merged(
    lists: Iterable[tuple[int, ProcessList]], most_bytes: float | None, drops: list[str]
) -> Iterator[GpuProcess]:
    """Of a process in two lists, the larger memory figure is used, not the sum: both lists hold all of its memory."""
    merged: dict[tuple[int, int | None, int | None], tuple[int, int | None]] = {}
    for bit, one in lists:
        for pid, used, gi, ci in one.entries():
            if not 0 < pid <= _MOST_PID:
                drops.append("pid")
                continue
            memory: int | None = used
            if used == _NOT_AVAILABLE_BYTES:
                memory = None
            elif most_bytes is not None and used > most_bytes:
                drops.append("memory")
                memory = None
            bits, known = merged.get((pid, gi, ci), (0, None))
            if known is not None:
                memory = known if memory is None else max(known, memory)
            merged[(pid, gi, ci)] = (bits | bit, memory)
    for (pid, gi, ci), (bits, memory) in merged.items():
        yield GpuProcess(pid, None, _KINDS[bits], memory, gpu_instance_id=gi, compute_instance_id=ci)
