"""What parking asks the machine: the host's memory, the memory limit of a process, and its CPU time.

A simulation answers by itself, through the same protocol.
"""

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from gpucommons.base.cgroup_paths import CgroupDirectory, find_cgroup, read_cgroups
from gpucommons.base.processes import MAX_COMMAND_BYTES, cpu_ticks, read_beginning, session_id
from gpucommons.base.text import lines_of, parse_decimal
from gpucommons.model.host import HostMemory
from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser import release
from gpucommons.pauser.stopped import why_stopped

_PROC: Final = Path("/proc")
_FILES_1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_FILES_2: Final = ("memory.max", "memory.current")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# The call by which the kernel continues a sleep that a signal interrupted, on x86-64: it does not say which one.
_RESTARTED: Final = 219
# Version 1 has no word for "no limit": it shows the largest number of pages.
_NO_LIMIT_BYTES: Final = 1 << 60


def host_memory(procfs: Path = _PROC) -> HostMemory | None:
    """None where the kernel does not say."""
    try:
        rows = dict(line.split(":", 1) for line in lines_of((procfs / "meminfo").read_text()) if ":" in line)
        return HostMemory(_kib(rows["MemTotal"]), _kib(rows["MemAvailable"]))
    except (OSError, ValueError, KeyError, IndexError):
        return None


def container_room_bytes(pids: Iterable[int], procfs: Path = _PROC) -> float | None:
    """The least that the memory limits above any of these processes leave: infinite where there is no limit.

    None where that is not known: in a container, the agent sees the cgroups of others only by a mount of the host's.
    """
    rooms = [_room_bytes(pid, str(procfs)) for pid in pids]
    known = [room for room in rooms if room is not None]
    return min(known, default=math.inf) if len(known) == len(rooms) else None


def _room_bytes(pid: int, procfs: str) -> float | None:
    try:
        lines = read_cgroups(pid, procfs, "surrogateescape")
    except OSError:
        # It has ended, or the kernel has no cgroups.
        return math.inf
    # One hierarchy has this controller: version 2 where none of version 1 has it.
    version_1 = next((line for line in lines if "memory" in line.controllers.split(",")), None)
    line = version_1 or next((line for line in lines if not line.controllers), None)
    if line is None:
        return math.inf
    cgroup = find_cgroup(line, procfs)
    names = _FILES_1 if version_1 else _FILES_2
    return None if cgroup is None else min(_left_by_limits(cgroup, *names), default=math.inf)


def _left_by_limits(cgroup: CgroupDirectory, limit_name: str, used_name: str) -> Iterable[int]:
    """What each limit from this cgroup up leaves. Pages of files count as free: they can be dropped."""
    directory = cgroup.path
    while directory.is_relative_to(cgroup.mount):
        limit, used = _number(directory / limit_name), _number(directory / used_name)
        if limit is not None and used is not None and limit < _NO_LIMIT_BYTES:
            yield max(0, limit - max(0, used - _file_bytes(directory)))
        directory = directory.parent


def _file_bytes(cgroup: Path) -> int:
    try:
        lines = lines_of((cgroup / "memory.stat").read_text())
    except OSError:
        return 0
    fields = dict(line.split(" ", 1) for line in lines if " " in line)
    value = fields.get("total_inactive_file", fields.get("inactive_file", "0"))
    return parse_decimal(value) or 0


def _number(path: Path) -> int | None:
    """None where there is no such file, or it says `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def thread_seconds(pids: Iterable[int]) -> Mapping[int, float] | None:
    """The CPU time of each thread of these processes so far; None where one process cannot be read.

    The kernel counts each thread in nanoseconds, but the sum of a process, which includes ended threads, in hundredths
    of a second: that is too coarse to notice the start of a cell, and used only where threads are not counted.
    """
    times: dict[int, float] = {}
    for pid in pids:
        try:
            whole_s = cpu_ticks((_PROC / str(pid) / "stat").read_bytes()) / _TICKS_PER_S
            threads = _threads(_PROC / str(pid) / "task")
        except (OSError, ValueError, IndexError):
            return None
        times |= threads if any(threads.values()) else {pid: whole_s}
    return times


def _threads(tasks: Path) -> Mapping[int, float]:
    times = {}
    for thread in os.listdir(tasks):
        try:
            times[int(thread)] = int((tasks / thread / "schedstat").read_bytes().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            # It has ended, or the kernel does not count.
            continue
    return times


def waits_in(pids: Iterable[int]) -> tuple[int, ...] | None:
    """The system call in which the first thread of each process sleeps; None where one does not sleep or is not shown.

    An idle program sleeps in the same call for hours; one that was begun to be used again and is paused, in another.
    """
    calls = []
    for pid in pids:
        try:
            number = int((_PROC / str(pid) / "syscall").read_bytes().split()[0])
        except (OSError, ValueError, IndexError):
            return None
        if number < 0 or number == _RESTARTED:
            return None
        calls.append(number)
    return tuple(calls)


def resident_bytes(pids: Iterable[int], procfs: Path = _PROC) -> int:
    """What these processes hold in host memory; those that have ended count as nothing."""
    total = 0
    for pid in pids:
        try:
            total += int((procfs / str(pid) / "statm").read_bytes().split()[1]) * _PAGE_BYTES
        except (OSError, ValueError, IndexError):
            continue
    return total


def _kib(text: str) -> int:
    return int(text.split()[0]) * 1024


# What /proc says of a program that no reading has listed yet.


class NewcomerFacts(NamedTuple):
    """`marks` are what other processes of its job have, too: its POSIX session, and its cgroup unless that is the
    root."""

    uid: int | None
    command_line: tuple[str, ...]
    process_name: str
    marks: frozenset[str]


def newcomer_facts(pid: int) -> NewcomerFacts:
    directory = _PROC / str(pid)
    try:
        uid = os.stat(directory).st_uid
        arguments = read_beginning(directory / "cmdline", MAX_COMMAND_BYTES).split(b"\0")
        command_line = tuple(part.decode(errors="replace") for part in arguments if part)
        name = (directory / "comm").read_text(errors="replace").strip()
    except OSError:
        return NewcomerFacts(None, (), "", frozenset())
    return NewcomerFacts(uid, command_line, name, job_marks(pid))


def job_marks(pid: int) -> frozenset[str]:
    directory = _PROC / str(pid)
    marks = set()
    try:
        if session := session_id((directory / "stat").read_bytes()):
            marks.add(f"session:{session}")
        marks |= {f"cgroup:{path}" for _, path in read_cgroups(pid) if path.strip("/.")}
    except (OSError, ValueError, IndexError):
        pass
    return frozenset(marks)


class ParkHost(Protocol):
    """Each as the function of that name in scheduler/parking/host.py, pauser/release.py and pauser/stopped.py."""

    def host_memory(self) -> HostMemory | None: ...
    def container_room_bytes(self, pids: Iterable[int]) -> float | None: ...
    def thread_seconds(self, pids: Iterable[int]) -> Mapping[int, float] | None: ...
    def waits_in(self, pids: Iterable[int]) -> tuple[int, ...] | None: ...
    def resident_bytes(self, pids: Iterable[int]) -> int: ...
    def has_ended(self, process: ProcessKey) -> bool: ...
    def why_stopped(self, pids: Iterable[int]) -> str: ...


class ThisHost:
    """The machine that the agent runs on."""

    def host_memory(self) -> HostMemory | None:
        return host_memory()

    def container_room_bytes(self, pids: Iterable[int]) -> float | None:
        return container_room_bytes(pids)

    def thread_seconds(self, pids: Iterable[int]) -> Mapping[int, float] | None:
        return thread_seconds(pids)

    def waits_in(self, pids: Iterable[int]) -> tuple[int, ...] | None:
        return waits_in(pids)

    def resident_bytes(self, pids: Iterable[int]) -> int:
        return resident_bytes(pids)

    def has_ended(self, process: ProcessKey) -> bool:
        return release.has_ended(process)

    def why_stopped(self, pids: Iterable[int]) -> str:
        return next((why for pid in pids if (why := why_stopped(pid, every_thread=False))), "")


THIS_HOST = ThisHost()
