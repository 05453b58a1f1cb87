"""The processes of one GPU: three lists merged, with memory, utilisation and start times.

Pid and start time identify a process. Samples of utilisation are checked for plausibility.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import byref, c_uint, c_ulonglong
from pathlib import Path
from struct import Struct

from gpucommons.base.processes import start_ticks
from gpucommons.model.gpu import GpuProcess
from gpucommons.model.process_identity import ProcessKey
from gpucommons.sources.host.procfs import read_file
from gpucommons.sources.nvml import library
from gpucommons.sources.nvml.calls import Handle
from gpucommons.sources.nvml.library import Function

# Start times of the processes on GPUs: pid and start time identify a process. Read once for each new pid.


class StartTimes:
    """A pid that is not in this /proc, because of another pid namespace or because it has ended, has no key."""

    def __init__(self, procfs: Path) -> None:
        self._procfs = procfs
        self._known: dict[int, ProcessKey | None] = {}
        # Of the pids that were used in this pass.
        self.used: dict[int, ProcessKey | None] = {}

    def key_of(self, pid: int) -> ProcessKey | None:
        if pid in self.used:
            return self.used[pid]
        key = self._known[pid] if pid in self._known else self._read(pid)
        self.used[pid] = key
        return key

    def end_pass(self) -> None:
        """Forget the pids that were not used in this pass: one that comes back later is another process."""
        self._known, self.used = self.used, {}

    def _read(self, pid: int) -> ProcessKey | None:
        try:
            return ProcessKey(pid, start_ticks(read_file(self._procfs, f"{pid}/stat")))
        except (OSError, ValueError, IndexError):
            return None


# Utilisation samples of processes: which are plausible, and the newest of each process. Pure.
#
# The driver keeps a buffer of time-stamped samples and returns those after a given time. Samples from the future, from
# long ago, or above 100 % are dropped, and their time stamps are ignored.
#
# On a GPU that several processes use, the driver has no sample of a process for a time in which it was idle. So a
# process whose newest sample is older than that of another one, by more than the time between two samples, has been
# idle since.

STALE_AFTER_US = 5_000_000
FUTURE_AFTER_US = 2_000_000
# Samples of a busy process are 0.2 to 0.8 s apart (H200, driver 580).
IDLE_AFTER_US = 1_500_000


# Plain tuples: there may be one for each process on each GPU, each second.
# time in microseconds; SM, memory, encoder and decoder time in percent
ProcessSample = tuple[int, int, int, int, int]
# The pid before these, as the driver has it.
SampleRow = tuple[int, int, int, int, int, int]


class UsageWindow:
    """The newest samples of the processes of one GPU, and the time from which to request more."""

    def __init__(self) -> None:
        self._newest: dict[int, ProcessSample] = {}
        # Equal samples of a pass are one object: most processes on a GPU are idle at the same time.
        self._shared: dict[ProcessSample, ProcessSample] = {}
        self._last_seen_us = 0
        self._asked_us = 0
        self._stale_after_us = STALE_AFTER_US

    def request_since(self, now_us: int) -> int:
        """The time after which to request samples. A clock that was set back clears the window."""
        self._shared.clear()
        if self._asked_us:
            # In the slow lane, where it is requested every 15 s, a sample stays the newest for longer.
            self._stale_after_us = max(STALE_AFTER_US, 2 * (now_us - self._asked_us))
        self._asked_us = now_us
        if self._last_seen_us > now_us + FUTURE_AFTER_US:
            self._last_seen_us = 0
            self._newest.clear()
        return max(self._last_seen_us, now_us - self._stale_after_us)

    def add(self, rows: Iterable[SampleRow], now_us: int) -> list[str]:
        """Add the samples that can be right; returns why others were dropped, one reason for each."""
        oldest_us, latest_us = now_us - self._stale_after_us, now_us + FUTURE_AFTER_US
        reasons = []
        for pid, time_us, sm, memory, encoder, decoder in rows:
            if time_us > latest_us:
                reasons.append("future")
            elif time_us < oldest_us:
                reasons.append("stale")
            elif sm > 100 or memory > 100 or encoder > 100 or decoder > 100:
                reasons.append("above_100")
            else:
                newest = self._newest.get(pid)
                if newest is None or time_us >= newest[0]:
                    sample = time_us, sm, memory, encoder, decoder
                    self._newest[pid] = self._shared.setdefault(sample, sample)
                if time_us > self._last_seen_us:
                    self._last_seen_us = time_us
        return reasons

    def current(self, now_us: int) -> dict[int, ProcessSample]:
        """The newest sample of each process, if it is fresh; zeros for one that has been idle since."""
        if not self._newest:
            return self._newest
        oldest_us, idle_us = now_us - self._stale_after_us, self._last_seen_us - IDLE_AFTER_US
        # The time is the first field.
        oldest_sample_us = min(self._newest.values())[0]
        if oldest_sample_us < oldest_us:
            self._newest = {pid: sample for pid, sample in self._newest.items() if sample[0] >= oldest_us}
        if oldest_sample_us < idle_us:
            for pid, sample in self._newest.items():
                if sample[0] < idle_us and any(sample[1:]):
                    self._newest[pid] = (sample[0], 0, 0, 0, 0)
        return self._newest

    def clear(self) -> None:
        self._newest.clear()


# The processes of one GPU: three lists merged, with memory and utilisation.
#
# Each list is requested once, with room to spare; nvidia-ml-py's wrappers request the length first, which doubles the
# cost. Impossible pids and sizes are dropped. There may be tens of thousands of rows: a list is kept as the driver's
# bytes, and a row that has not changed since the last pass is the same object.

_NOT_AVAILABLE_BYTES = 2**64 - 1
_NO_INSTANCE = 2**32 - 1
# The kernel's limit on pids.
_MAX_PID = 2**22
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
        self.listed = None if code else ((self._returned_bytes(), None, None),)
        return code

    def _request(self, handle: Handle) -> int:
        self._count.value = self._capacity
        code = self._function(handle, self._count_reference, self._buffer)
        while code == library.INSUFFICIENT_SIZE:
            self._make_room(_roomier(self._count.value, self._capacity))
            self._count.value = self._capacity
            code = self._function(handle, self._count_reference, self._buffer)
        return code

    def _returned_bytes(self) -> bytes:
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
        rows: list[Listed] = []
        self.listed = None
        for handle, gpu_instance_id, compute_instance_id in self._instances():
            code = self._request(handle)
            if code:
                return code
            rows.append((self._returned_bytes(), gpu_instance_id, compute_instance_id))
        self.listed = tuple(rows)
        return library.OK


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
        return all(process_list.is_empty for _, process_list in self._lists)

    def invoke(self) -> int:
        if self._has_no_processes():
            self._count.value = 0
            return library.OK
        self._now_us = round(self._wall() * 1e6)
        since = c_ulonglong(self.window.request_since(self._now_us))
        self._count.value = self._capacity
        code = self._function(self._handle, self._buffer, self._count_reference, since)
        while code == library.INSUFFICIENT_SIZE:
            self._make_room(_roomier(self._count.value, self._capacity))
            self._count.value = self._capacity
            code = self._function(self._handle, self._buffer, self._count_reference, since)
        if code == library.NOT_FOUND:
            # There is no newer sample.
            self._count.value = 0
            return library.OK
        return code

    def store(self) -> str | None:
        count = self._count.value
        if count:
            rows = _SAMPLE.iter_unpack(self._view[: count * _SAMPLE.size])
            for reason in self.window.add(rows, self._now_us):
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
        max_bytes: float | None,
        dropped: Callable[[str], None],
    ) -> tuple[GpuProcess, ...] | None:
        """One row per process and instance; None if no list could be read."""
        source = max_bytes, [(bit, process_list.listed) for bit, process_list in lists]
        if source != self._source:
            self._drops = []
            self._rows = tuple(_merge(lists, max_bytes, self._drops))
        # Also if it is equal: the bytes then exist once.
        self._source = source
        for reason in self._drops:
            dropped(reason)
        if not self._rows:
            return () if any(process_list.listed is not None for _, process_list in lists) else None
        self._rows = tuple(self._current(usage()))
        return self._rows

    def _current(self, samples: Mapping[int, ProcessSample]) -> list[GpuProcess]:
        """The rows with the keys and the utilisation of this pass."""
        rows = []
        keys = self._keys.used
        for row in self._rows:
            pid, key, kind, memory, sm, mem, enc, dec, gi, ci = row
            # Most processes of a node with many are on several GPUs: a lookup costs less than a call.
            new_key = keys[pid] if pid in keys else self._keys.key_of(pid)
            _, new_sm, new_mem, new_enc, new_dec = samples.get(pid, _NO_USAGE)
            if new_key is not key or new_sm != sm or new_mem != mem or new_enc != enc or new_dec != dec:
                # The key's pid is one object for all GPUs.
                pid = pid if new_key is None else new_key.pid
                row = GpuProcess(pid, new_key, kind, memory, new_sm, new_mem, new_enc, new_dec, gi, ci)
            rows.append(row)
        return rows


def _merge(lists: Iterable[tuple[int, ProcessList]], max_bytes: float | None, drops: list[str]) -> Iterator[GpuProcess]:
    """Of a process in two lists, the larger memory figure is used, not the sum: both lists hold all of its memory."""
    merged: dict[tuple[int, int | None, int | None], tuple[int, int | None]] = {}
    for bit, process_list in lists:
        for pid, used, gi, ci in process_list.entries():
            if not 0 < pid <= _MAX_PID:
                drops.append("pid")
                continue
            memory: int | None = used
            if used == _NOT_AVAILABLE_BYTES:
                memory = None
            elif max_bytes is not None and used > max_bytes:
                drops.append("memory")
                memory = None
            bits, earlier_bytes = merged.get((pid, gi, ci), (0, None))
            if earlier_bytes is not None:
                memory = earlier_bytes if memory is None else max(earlier_bytes, memory)
            merged[(pid, gi, ci)] = (bits | bit, memory)
    for (pid, gi, ci), (bits, memory) in merged.items():
        yield GpuProcess(pid, None, _KINDS[bits], memory, gpu_instance_id=gi, compute_instance_id=ci)
