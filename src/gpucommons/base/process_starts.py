"""In which user and pid namespace each process of this host started, also when it has ended.

The kernel's perf events write a record whenever a process or thread starts, and whenever one enters another namespace
(PERF_RECORD_NAMESPACES, from Linux 4.12 on), before the process goes on. The records lie in one ring for each CPU, the
newest overwrites the oldest, and nothing is read until a process is asked about: a start costs the kernel some
microseconds, and the agent nothing. A ring holds 450 to 1,800 starts, and all of them together at least 1,800.

To open the rings takes CAP_PERFMON (root has it), to read them takes no right: the agent opens them before its first
thread starts, and gives the capability up. Where it is missing, and where seccomp forbids the call, there are no
records.
"""

import ctypes
import logging
import mmap
import os
import platform
import struct
import time
from collections.abc import Iterator
from typing import Final, NamedTuple, Self

log = logging.getLogger(__name__)

_SYSCALLS: Final = {"x86_64": 298, "aarch64": 241}
# linux/perf_event.h
_TYPE_SOFTWARE, _COUNT_DUMMY, _ATTRIBUTES_BYTES = 1, 9, 112
_SAMPLE_TIME: Final = 1 << 2
_EXCLUDE_KERNEL, _SAMPLE_ID_ALL, _USE_CLOCKID, _WRITE_BACKWARD = 1 << 5, 1 << 18, 1 << 25, 1 << 27
# Events of namespaces alone are not delivered for all processes: the event must also watch something system-wide.
# Symbols of the kernel change when a module or a BPF program is loaded, which is rare.
_NAMESPACES, _KERNEL_SYMBOLS = 1 << 28, 1 << 29
_FLAGS: Final = _EXCLUDE_KERNEL | _SAMPLE_ID_ALL | _USE_CLOCKID | _WRITE_BACKWARD | _NAMESPACES | _KERNEL_SYMBOLS
_CLOCK_MONOTONIC: Final = 1
_ATTRIBUTES: Final = struct.Struct("IIQQQQQIIQQQQIi")
_CLOSE_ON_EXEC: Final = 8
_ANY_PROCESS, _NO_GROUP = -1, -1
_RECORD_NAMESPACES: Final = 16
# A record: kind, size, pid, thread, the number of namespaces, device and inode of each (net, uts, ipc, pid, user, mnt,
# cgroup), and the time.
_RECORD: Final = struct.Struct("I2xHII")
_LINKS_AT: Final = 24
_LINK: Final = struct.Struct("QQ")
_LINKS: Final = (3, 4)
_TIME: Final = struct.Struct("Q")
_HEAD_AT: Final = 1024
_MIN_RING_BYTES, _MAX_RING_BYTES, _ALL_RINGS_BYTES = 64 << 10, 256 << 10, 4 << 20
# The oldest bytes of a full ring may be under way to be overwritten.
_UNSETTLED_BYTES: Final = 4096
_MAX_KNOWN: Final = 10_000
_ONLINE: Final = "/sys/devices/system/cpu/online"


class _Start(NamedTuple):
    """A process started, or entered other namespaces."""

    pid: int
    time_ns: int
    namespaces: tuple[int, int]


class _Known(NamedTuple):
    """What is recorded of a pid. `is_local`: in our namespaces all the time since then."""

    since_ns: int
    is_local: bool


class ProcessStarts:
    """The rings of all CPUs, from now on. For one thread at a time."""

    def __init__(self) -> None:
        """Raises OSError where the kernel does not give the records."""
        self._own = _own_namespaces()
        self._online = _online()
        self._rings: list[_Ring] = []
        # What was read from the rings, by pid; the oldest first.
        self._known: dict[int, _Known] = {}
        self._complete_since_ns = 0
        cpus = list(_cpus(self._online))
        try:
            for cpu in cpus:
                self._rings.append(_Ring(cpu, _ring_bytes(len(cpus))))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        for ring in self._rings:
            ring.close()
        self._rings.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def was_local(self, pid: int) -> bool | None:
        """Whether the process was in our user and pid namespace from its start on.

        None where that is not known: it started before the records reach back, or other CPUs are online now. Where the
        pid was used by several processes in that time, all of them must have been.
        """
        if self._online != _online():
            return None
        self._read_rings()
        process = self._known.get(pid)
        if process is None or not process.is_local:
            return None if process is None else False
        # What it did later is known only if no ring has lost a record since it started.
        return True if process.since_ns >= self._complete_since_ns else None

    def _read_rings(self) -> None:
        for ring in self._rings:
            starts, complete_since_ns = ring.read_new()
            self._complete_since_ns = max(self._complete_since_ns, complete_since_ns)
            for start in starts:
                is_local = start.namespaces == self._own
                process = self._known.pop(start.pid, _Known(start.time_ns, is_local))
                since_ns = min(process.since_ns, start.time_ns)
                self._known[start.pid] = _Known(since_ns, process.is_local and is_local)
        while len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]


def recorded_starts() -> ProcessStarts | None:
    """The record from now on; None, with a line in the log, where the agent may not have it."""
    try:
        return ProcessStarts()
    except OSError as error:
        log.info("the namespaces of processes that have ended are not recorded: %s", error.strerror or error)
        return None


class _Ring:
    """The records of one CPU. The kernel writes backwards: the newest record is the first."""

    def __init__(self, cpu: int, size: int) -> None:
        self._size = size
        self._read_until = 0
        self._descriptor = _open_event(cpu)
        try:
            # Without PROT_WRITE the kernel overwrites the oldest records.
            self._map = mmap.mmap(self._descriptor, mmap.PAGESIZE + size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except OSError:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        self._map.close()
        os.close(self._descriptor)

    def read_new(self) -> tuple[list[_Start], int]:
        """The starts since the last call, the oldest first, and since when no record is missing: 0 if none was lost."""
        head = self._head()
        unread = head - self._read_until
        data = self._newest(head, min(unread, self._size))
        # What the kernel wrote meanwhile has replaced the oldest records in our copy.
        end = min(unread, self._size - _UNSETTLED_BYTES - (self._head() - head))
        self._read_until = head
        starts: list[_Start] = []
        at = 0
        while at + _RECORD.size <= end:
            kind, size, pid, thread = _RECORD.unpack_from(data, at)
            if size < _RECORD.size or at + size > end:
                break
            if kind == _RECORD_NAMESPACES and pid == thread:
                starts.append(_start(pid, data[at : at + size]))
            at += size
        starts.reverse()
        if at == unread:
            return starts, 0
        return starts, _TIME.unpack_from(data, at - _TIME.size)[0] if at else time.monotonic_ns()

    def _newest(self, head: int, count: int) -> bytes:
        begin = mmap.PAGESIZE + -head % self._size
        first = self._map[begin : begin + count]
        return first + self._map[mmap.PAGESIZE : mmap.PAGESIZE + count - len(first)]

    def _head(self) -> int:
        """How many bytes were written until now."""
        return int(-_TIME.unpack_from(self._map, _HEAD_AT)[0] % 2**64)


def _ring_bytes(cpus: int) -> int:
    """A power of two. The kernel gives every user 512 KiB for each CPU (perf_event_mlock_kb)."""
    share = 1 << (_ALL_RINGS_BYTES // cpus).bit_length() - 1
    return min(max(share, _MIN_RING_BYTES), _MAX_RING_BYTES)


def _start(pid: int, record: bytes) -> _Start:
    pid_namespace, user_namespace = (_LINK.unpack_from(record, _LINKS_AT + _LINK.size * link)[1] for link in _LINKS)
    return _Start(pid, _TIME.unpack(record[-_TIME.size :])[0], (pid_namespace, user_namespace))


def _open_event(cpu: int) -> int:
    try:
        number = _SYSCALLS[platform.machine()]
    except KeyError as error:
        raise OSError(f"the number of perf_event_open is not known for {platform.machine()}") from error
    attributes = _ATTRIBUTES.pack(
        *(_TYPE_SOFTWARE, _ATTRIBUTES_BYTES, _COUNT_DUMMY, 0, _SAMPLE_TIME, 0, _FLAGS),
        *(0, 0, 0, 0, 0, 0, 0, _CLOCK_MONOTONIC),
    )
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(number, buffer, _ANY_PROCESS, cpu, _NO_GROUP, ctypes.c_ulong(_CLOSE_ON_EXEC))
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(descriptor)


def _own_namespaces() -> tuple[int, int]:
    return os.stat("/proc/self/ns/pid").st_ino, os.stat("/proc/self/ns/user").st_ino


def _online() -> str:
    with open(_ONLINE) as file:
        return file.read().strip()


def _cpus(ranges: str) -> Iterator[int]:
    """ "0-3,8" as 0, 1, 2, 3, 8."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
