"""In which user and pid namespace each process of this host started, also when it has ended.

The kernel's perf events write a record whenever a process or thread starts, and whenever one enters another namespace
(PERF_RECORD_NAMESPACES, from Linux 4.12 on), before the process goes on. The records lie in one ring for each CPU, the
newest overwrites the oldest, and nothing is read until a process is asked about: a start costs the kernel some
microseconds, and the agent nothing. A ring holds about 400 starts.

This needs CAP_PERFMON (root has it). Where it is missing, and where seccomp forbids the call, there are no records.
"""

import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, Self

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
_RING_BYTES: Final = 64 * 1024
_ONLINE: Final = "/sys/devices/system/cpu/online"


class _Start(NamedTuple):
    """A process started, or entered other namespaces."""

    time_ns: int
    namespaces: tuple[int, int]


class ProcessStarts:
    """The rings of all CPUs, from now on."""

    def __init__(self) -> None:
        """Raises OSError where the kernel does not give the records."""
        self._own = _own_namespaces()
        self._online = _online()
        self._rings: list[_Ring] = []
        try:
            self._rings += map(_Ring, _cpus(self._online))
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
        reads = [ring.starts_of(pid) for ring in self._rings]
        starts = [start for starts, _ in reads for start in starts]
        if not starts:
            return None
        if any(start.namespaces != self._own for start in starts):
            return False
        # What it did later is known only if no ring has lost a record since it started.
        reach_back_to_ns = max(oldest_ns for _, oldest_ns in reads)
        return True if min(starts).time_ns >= reach_back_to_ns else None


class _Ring:
    """The records of one CPU. The kernel writes backwards: the newest record is the first."""

    def __init__(self, cpu: int) -> None:
        self._descriptor = _open_event(cpu)
        try:
            # Without PROT_WRITE the kernel overwrites the oldest records.
            self._map = mmap.mmap(
                self._descriptor, mmap.PAGESIZE + _RING_BYTES, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ
            )
        except OSError:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        self._map.close()
        os.close(self._descriptor)

    def starts_of(self, pid: int) -> tuple[list[_Start], int]:
        """What is recorded of the process, and since when no record is missing: 0 where the ring was never full."""
        head = self._head()
        newest = -head % _RING_BYTES
        data = self._map[mmap.PAGESIZE :]
        data = data[newest:] + data[:newest]
        # What the kernel wrote meanwhile has replaced the oldest records in our copy.
        written = self._head()
        is_full = written > _RING_BYTES
        end = _RING_BYTES - (written - head) if is_full else head
        starts: list[_Start] = []
        at = 0
        while at + _RECORD.size <= end:
            kind, size, record_pid, thread = _RECORD.unpack_from(data, at)
            if size < _RECORD.size or at + size > end:
                break
            if record_pid == pid == thread and kind == _RECORD_NAMESPACES:
                starts.append(_start(data[at : at + size]))
            at += size
        oldest_ns = _TIME.unpack_from(data, at - _TIME.size)[0] if is_full and at else 0
        return starts, oldest_ns

    def _head(self) -> int:
        """How many bytes were written until now."""
        return int(-_TIME.unpack_from(self._map, _HEAD_AT)[0] % 2**64)


def _start(record: bytes) -> _Start:
    pid_namespace, user_namespace = (_LINK.unpack_from(record, _LINKS_AT + _LINK.size * link)[1] for link in _LINKS)
    return _Start(_TIME.unpack(record[-_TIME.size :])[0], (pid_namespace, user_namespace))


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
