"""Notices programs that begin to use a GPU, and holds them before their first large allocation.

A program initialises CUDA, often long before it needs a GPU, or only to ask whether there is one. Memory can be
allocated once it has made a context, which takes 0.1 s and opens the file of its GPU sixteen times more, first in the
middle of that time. A lock that is asked for then holds when the context is made, before the first allocation. A GPU
may be too full for the context itself: there a program is held as it initialises CUDA.

The kernel reports each open of a GPU's device files (inotify). The report names no process: those whose open files
include a GPU are candidates once they have opened more than ever before, those that were seen before first, then the
youngest; except for programs that had a context before and forks of programs with CUDA. A container may have device
files of its own: with root, the kernel's process events (netlink connector) show each program that is executed, and the
device files that it sees are watched as well.

The files of a candidate are looked at for some seconds. Most candidates only look (nvidia-smi). The agent decides
whether a program that is held waits for room.

Nothing is watched unless the agent asks for it: while no GPU is short of room, no program is touched. While
nothing starts, the thread sleeps.
"""

import ctypes
import errno
import os
import re
import select
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from gpucommons.base import processes
from gpucommons.base.peers import look_at, owner_of
from gpucommons.base.text import parse_decimal
from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.calls import CallThreads

DEVICE_FILES: Final = Path("/dev")
# For so long the files of a process are looked at after it opened one; less if the first time led to nothing, and it
# makes no context now.
FIRST_TRY_S: Final = 4.0
LATER_TRY_S: Final = 1.0
# A process that opens device files so often without CUDA is a monitor.
_MAX_TRIES: Final = 20
_MAX_CANDIDATES: Final = 64
# Of one owner: one that starts hundreds of programs does not hide those of others.
_MAX_OF_OWNER: Final = 32
_MAX_REMEMBERED: Final = 1024
_SCAN_S: Final = 0.05
_SCAN_AGAIN_S: Final = (0.005, 0.02)
_MAX_FILES: Final = 4096
_MAX_COUNTED: Final = 30_000
# The kernel keeps events for us meanwhile.
_EXECS_PER_ROUND: Final = 64
_EXEC_REST_S: Final = 0.05
# File systems that do not answer, at once.
_MAX_HUNG_LOOKS: Final = 16
_MAX_PENDING: Final = 4096

_CONTROL: Final = "nvidiactl"
_UVM: Final = "nvidia-uvm"
_GPU: Final = "nvidia"
_CUDA_LIBRARY: Final = b"/libcuda.so"
_NVML_LIBRARY: Final = b"/libnvidia-ml.so"
_VISIBLE_DEVICES: Final = re.compile(rb"(?:\A|\0)CUDA_VISIBLE_DEVICES=([^\0]*)")
# How often NVML opens the file of unified memory, and that of each GPU. CUDA opens the first one twice more as it is
# initialised, the others so often (driver 580).
_NVML_UVM_FILES: Final = 2
_NVML_GPU_FILES: Final = 3
_CUDA_GPU_FILES: Final = 4
# A thread that CUDA starts with a context, shortly before it is ready.
_CONTEXT_THREAD: Final = b"cuda-EvtHandlr"


class ArrivalTerms(NamedTuple):
    """`gpus` are all GPUs, the UUID by the number of the device file; programs on those of `short` are held. Those of
    `full`, some of these, have no room for a context.

    `uid`: only this user's programs; None: all.
    """

    gpus: Mapping[int, str]
    short: frozenset[int]
    uid: int | None = None
    full: frozenset[int] = frozenset()


class Opened(NamedTuple):
    """How often a process has each device file open; those of GPUs by their number."""

    control: int = 0
    uvm: int = 0
    gpus: Mapping[int, int] = MappingProxyType({})

    def joined(self, other: "Opened") -> "Opened":
        """The most that was open of each."""
        numbers = self.gpus.keys() | other.gpus.keys()
        gpus = {number: max(self.gpus.get(number, 0), other.gpus.get(number, 0)) for number in numbers}
        return Opened(max(self.control, other.control), max(self.uvm, other.uvm), gpus)


@dataclass(slots=True)
class _Tried:
    """`opened` is the most that it had open, `times` how often that was more than before. `now`: a thread tries to lock
    it; `again`: it has opened more since that began. `done`: it was held, or has a context."""

    owner: str
    opened: Opened
    times: int = 0
    again: bool = False
    now: bool = True
    done: bool = False


# Locks the process once its GPU is known, within so many seconds. Returns whether it is done with. Blocks.
Hold = Callable[[ProcessKey, float, Callable[[], str | None]], bool]


class ArrivalWatch:
    """`hold` locks a candidate. Its last argument is a function that names the process's GPU: empty while it is not to
    be held yet, None where it is not to be held at all."""

    def __init__(self, hold: Hold, device_files: Path = DEVICE_FILES, procfs: Path = Path("/proc")) -> None:
        self._hold = hold
        self._directory = device_files
        self._procfs = procfs
        self._terms: ArrivalTerms | None = None
        self._own: frozenset[int] = frozenset()
        self._asked: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread: threading.Thread | None = None
        # Of the thread alone; the values of `_tried` are those of the threads that try. `_begun` belong to the terms
        # that it has seen, those in `_asked` to later ones.
        self._begun: list[Callable[[], None]] = []
        self._had_cuda: frozenset[int] = frozenset()
        self._tried: dict[ProcessKey, _Tried] = {}
        # How many files processes without one of a GPU had open. We have some.
        self._counts: dict[int, int] = {}
        self._files_are_counted = os.stat("/proc/self/fd").st_size > 0

    def watch(
        self, terms: ArrivalTerms | None, own: frozenset[int] = frozenset(), begun: Callable[[], None] = lambda: None
    ) -> None:
        """Watches for these; None: for nothing. `own` are pids that are never held. `begun` is called once that is so,
        by another thread. Called from one thread."""
        with self._lock:
            self._terms, self._own = terms, own
            self._asked.append(begun)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="arrivals", daemon=True)
            self._thread.start()
        with suppress(BlockingIOError):
            os.write(self._wake_write, b".")

    # -- the thread

    def _run(self) -> None:
        while True:
            select.select([self._wake_read], [], [])
            if self._take_terms():
                # Without inotify (its limits are reached) nothing is noticed until the agent's next terms.
                with suppress(OSError):
                    self._watch_events()
            self._report_begun()

    def _take_terms(self) -> bool:
        """Whether anything is to be watched."""
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        with self._lock:
            self._begun += self._asked
            self._asked = []
            return self._terms is not None

    def _report_begun(self) -> None:
        begun, self._begun = self._begun, []
        for report in begun:
            report()

    def _watch_events(self) -> None:
        """Until the agent asks for nothing any more."""
        with _DeviceEvents() as opens, _ExecEvents() as execs:
            self._add_all(opens)
            # Since the last watch a process may have closed as many files as it opened, and its pid may be another's.
            self._counts.clear()
            # Programs that have CUDA now are not new, unless they open more; those with a context are at work, whatever
            # they open. One that begins in this moment is noticed by its next open.
            self._tried = {
                key: _Tried(self._owner(key.pid), opened, now=False, done=self._has_context(key.pid, opened))
                for key, opened in self._scan(_pids(self._procfs), float("inf"))
                if opened.uvm and self._has_cuda(key.pid, opened)
            }
            self._had_cuda = frozenset(key.pid for key in self._tried)
            self._report_begun()
            sources = [self._wake_read, opens.descriptor, *([] if execs.descriptor is None else [execs.descriptor])]
            while True:
                ready, _, _ = select.select(sources, [], [])
                if self._wake_read in ready:
                    if not self._take_terms():
                        return
                    self._report_begun()
                if opens.descriptor in ready and opens.drain():
                    self._look_for_candidates()
                if execs.descriptor in ready:
                    for pid in execs.pids():
                        opens.add_soon(self._files_seen_by(pid))
                    # Bounds the work while a build runs thousands of programs.
                    time.sleep(_EXEC_REST_S)

    # -- device files

    def _add_all(self, opens: "_DeviceEvents") -> None:
        opens.add(self._files_in(self._directory))
        namespaces = set()
        for pid in _pids(self._procfs):
            with suppress(OSError):
                namespace = os.stat(self._procfs / str(pid) / "ns" / "mnt").st_ino
                if namespace not in namespaces:
                    namespaces.add(namespace)
                    opens.add_soon(self._files_seen_by(pid))

    def _files_in(self, directory: Path) -> Iterator[Path]:
        """The control file is opened first and by all; the others show a second program of a process that has it."""
        with suppress(OSError):
            for name in os.listdir(directory):
                if name in (_CONTROL, _UVM) or _gpu_number(name) is not None:
                    yield directory / name

    def _files_seen_by(self, pid: int) -> Iterator[Path]:
        """By their names: a directory of its user need not answer."""
        directory = self._procfs / str(pid) / "root" / str(self._directory).lstrip("/")
        gpus = () if self._terms is None else self._terms.gpus
        return (directory / name for name in (_CONTROL, _UVM, *(f"{_GPU}{number}" for number in gpus)))

    # -- candidates

    def _look_for_candidates(self) -> None:
        """Looks twice more a moment later: the process may just have been about to open the file."""
        if len(self._tried) > _MAX_REMEMBERED:
            self._tried = {key: row for key, row in self._tried.items() if row.now or self._parent(key.pid) is not None}
        for rest_s in (0.0, *_SCAN_AGAIN_S):
            time.sleep(rest_s)
            for pids in (self._prepared(), _pids(self._procfs)):
                for key, opened in self._scan(pids, _SCAN_S):
                    if self._is_candidate(key, opened):
                        self._try(key, opened)

    def _prepared(self) -> list[int]:
        """Those that were seen before and may be about to make a context: there is little time until it is ready."""
        pids: list[int] = []
        owners: Counter[str] = Counter()
        for key, row in self._tried.items():
            if not row.done and owners[row.owner] < _MAX_OF_OWNER:
                owners[row.owner] += 1
                pids.append(key.pid)
        return pids

    def _is_candidate(self, key: ProcessKey, opened: Opened) -> bool:
        """Opens by others say nothing of it: a program may prepare its data for minutes between NVML and CUDA. What is
        opened for a moment, again and again, is counted once."""
        tried = self._tried.get(key)
        if tried is not None and (tried.done or tried.times >= _MAX_TRIES):
            return False
        before = Opened() if tried is None else tried.opened
        if before.joined(opened) == before:
            return False
        if tried is not None and tried.now:
            tried.opened, tried.again = before.joined(opened), True
            return False
        users = self._had_cuda | {process.pid for process, row in self._tried.items() if row.done}
        parent = self._parent(key.pid)
        if parent in users and self._is_fork(key.pid, parent):
            return False
        tries = [row.owner for row in self._tried.values() if row.now]
        return len(tries) < _MAX_CANDIDATES and tries.count(self._owner(key.pid)) < _MAX_OF_OWNER

    def _try(self, key: ProcessKey, opened: Opened) -> None:
        tried = self._tried.setdefault(key, _Tried(self._owner(key.pid), Opened()))
        tried.opened, tried.now, tried.again = tried.opened.joined(opened), True, True

        def hold() -> None:
            try:
                while tried.again and not tried.done:
                    within_s = LATER_TRY_S if tried.times and not _gpus_in_use(tried.opened) else FIRST_TRY_S
                    tried.again, tried.times = False, tried.times + 1
                    if self._hold(key, within_s, lambda: self._gpu_of(key, tried)):
                        tried.done = True
            finally:
                tried.now = False

        try:
            threading.Thread(target=hold, name="arrival", daemon=True).start()
        except RuntimeError:
            tried.now = False

    def _gpu_of(self, key: ProcessKey, tried: _Tried) -> str | None:
        """The GPU on which it makes a context; empty: not yet; None: programs on that one are not held."""
        terms, opened = self._terms, opened_files(key.pid, self._directory, self._procfs)
        if terms is None or opened is None:
            return None
        has_context = self._has_context(key.pid, opened)
        if not (has_context or opened.gpus.keys() & terms.full) or not self._has_cuda(key.pid, opened):
            return ""
        in_use = _gpus_in_use(opened)
        gpus = in_use if len(in_use) == 1 else opened.gpus
        number = choose_gpu(gpus, read_visible_devices(key.pid, self._procfs), terms.gpus)
        if not has_context and number not in terms.full:
            return ""
        if number is None or number not in terms.short:
            # What begins while its GPU has room is at work, and not new, when that GPU is short later.
            tried.done = has_context and number is not None
            return None
        return terms.gpus[number]

    # -- processes

    def _scan(self, pids: Iterable[int], within_s: float) -> Iterator[tuple[ProcessKey, Opened]]:
        """Those of them that have a GPU open, as far as the time allows. A monitor may start every second, and to read
        which files a process has open takes 30 us, how many 2 us: where that is as it was without a GPU, no more is
        read."""
        until_s = time.monotonic() + within_s
        terms = self._terms
        if len(self._counts) > _MAX_COUNTED:
            self._counts.clear()
        for pid in pids:
            if time.monotonic() >= until_s:
                return
            if pid in self._own or terms is None:
                continue
            count = self._count_files(pid)
            if count is not None and self._counts.get(pid) == count:
                continue
            opened = opened_files(pid, self._directory, self._procfs)
            if opened is None or not (opened.control or opened.gpus):
                if count is not None:
                    self._counts[pid] = count
                continue
            self._counts.pop(pid, None)
            with suppress(OSError, ValueError, IndexError):
                if terms.uid is not None and self._uid(pid) != terms.uid:
                    continue
                stat = (self._procfs / str(pid) / "stat").read_bytes()
                yield ProcessKey(pid, processes.start_ticks(stat)), opened

    def _count_files(self, pid: int) -> int | None:
        """None before Linux 6.2, and where it has ended."""
        try:
            return os.stat(f"{self._procfs}/{pid}/fd").st_size if self._files_are_counted else None
        except OSError:
            return None

    def _uid(self, pid: int) -> int:
        """-1 for a process that has ended."""
        try:
            return os.stat(self._procfs / str(pid)).st_uid
        except OSError:
            return -1

    def _owner(self, pid: int) -> str:
        """All uids of a user's namespace are one owner."""
        return owner_of(self._uid(pid), look_at(pid))

    def _has_cuda(self, pid: int, opened: Opened) -> bool:
        """Whether a process that has a GPU's files open has initialised CUDA, or only NVML. NVML opens the same files,
        maps the library of CUDA (r580), and the driver locks its process, too: nvidia-smi and other monitors need no
        room, and are not to be held."""
        try:
            maps = processes.read_beginning(self._procfs / str(pid) / "maps", processes.MAX_MAPS_BYTES)
        except OSError:
            return True
        if _CUDA_LIBRARY not in maps:
            return False
        return _NVML_LIBRARY not in maps or opened.uvm > _NVML_UVM_FILES or self._has_context_thread(pid)

    def _has_context(self, pid: int, opened: Opened) -> bool:
        """Whether a process, if it has CUDA, has a context or is making one."""
        return bool(_gpus_in_use(opened)) or (opened.uvm > 0 and self._has_context_thread(pid))

    def _has_context_thread(self, pid: int) -> bool:
        tasks = self._procfs / str(pid) / "task"
        try:
            names = ((tasks / thread / "comm").read_bytes() for thread in os.listdir(tasks))
            return any(name.strip() == _CONTEXT_THREAD for name in names)
        except OSError:
            # A thread that has ended, or the process: the next look shows it.
            return False

    def _is_fork(self, pid: int, parent: int) -> bool:
        """Whether it runs what its parent runs: then it has its open files, and cannot use CUDA. A program that is
        executed has none of these files."""
        try:
            return read_command(pid, self._procfs) == read_command(parent, self._procfs)
        except OSError:
            return True

    def _parent(self, pid: int) -> int | None:
        try:
            return processes.parent_pid((self._procfs / str(pid) / "stat").read_bytes())
        except (OSError, ValueError, IndexError):
            return None


def read_visible_devices(pid: int, procfs: Path) -> str | None:
    """CUDA_VISIBLE_DEVICES of a process; None where it is not set, or cannot be seen."""
    try:
        variables = processes.read_beginning(procfs / str(pid) / "environ", processes.MAX_ARGUMENTS_BYTES)
    except OSError:
        return None
    found = _VISIBLE_DEVICES.search(variables)
    return None if found is None else found[1].decode(errors="replace")


def read_command(pid: int, procfs: Path) -> tuple[str, bytes]:
    """Its program, and the beginning of its command line. Raises OSError."""
    directory = procfs / str(pid)
    arguments = processes.read_beginning(directory / "cmdline", processes.MAX_ARGUMENTS_BYTES)
    return os.readlink(directory / "exe"), arguments


def opened_files(pid: int, device_files: Path, procfs: Path) -> Opened | None:
    """None where its open files cannot be seen: another user's, or it has ended."""
    directory = f"{procfs}/{pid}/fd"
    prefix = f"{device_files}/{_GPU}"
    names = []
    try:
        for file in os.listdir(directory)[:_MAX_FILES]:
            with suppress(OSError):
                target = os.readlink(f"{directory}/{file}")
                if target.startswith(prefix):
                    names.append(target[len(str(device_files)) + 1 :])
    except OSError:
        return None
    gpus = Counter(number for name in names if (number := _gpu_number(name)) is not None)
    return Opened(names.count(_CONTROL), names.count(_UVM), gpus)


def _gpus_in_use(opened: Opened) -> set[int]:
    """Those for which a process with CUDA has a context, or is making one."""
    with_nvml = opened.uvm > _NVML_UVM_FILES
    without_context = _CUDA_GPU_FILES + (_NVML_GPU_FILES if with_nvml else 0)
    return {number for number, times in opened.gpus.items() if times > without_context}


def cuda_users(device_files: Path = DEVICE_FILES, procfs: Path = Path("/proc")) -> Iterator[int]:
    """The pids of processes that have initialised CUDA, as far as their open files can be seen."""
    for pid in _pids(procfs):
        opened = opened_files(pid, device_files, procfs)
        if opened is not None and opened.uvm and pid != os.getpid():
            yield pid


def _pids(procfs: Path) -> list[int]:
    """New pids are higher, until they wrap around."""
    with suppress(OSError):
        return sorted((pid for name in os.listdir(procfs) if (pid := parse_decimal(name))), reverse=True)
    return []


def _gpu_number(name: str) -> int | None:
    return parse_decimal(name.removeprefix(_GPU)) if name.startswith(_GPU) else None


def choose_gpu(opened: Iterable[int], visible: str | None, gpus: Mapping[int, str]) -> int | None:
    """The GPU that a program uses first, by the numbers of device files; None: not known, or none.

    CUDA opens the files of all GPUs that it may use. Among several, the first of CUDA_VISIBLE_DEVICES is its default,
    or the first of all. A number there is one of the node's GPUs, or in a container of those that the container has.
    """
    there = sorted(set(opened) & gpus.keys())
    if len(there) <= 1 or not visible:
        return there[0] if there else None
    first = visible.split(",")[0].strip()
    if (index := parse_decimal(first)) is not None:
        ordered = sorted(gpus)
        number = ordered[index] if index < len(ordered) else None
        return there[index] if number not in there and index < len(there) else number
    return next((number for number, uuid in gpus.items() if uuid.startswith(first)), None)


# Opens of files, from the kernel.

_IN_OPEN: Final = 0x20
_IN_OVERFLOW: Final = 0x4000
# struct inotify_event: the watch, what happened, a cookie, the length of a name.
_FILE_EVENT: Final = struct.Struct("=iIII")
_READ_BYTES: Final = 1 << 16


class _DeviceEvents:
    """Raises OSError where the kernel gives no more inotify instances.

    The files of a container may be on a file system of its user, which need not answer: they are looked at by threads
    of their own. One that hangs keeps its thread until the file system is gone, and the others go on with the rest.
    """

    _threads: Final = CallThreads("device files", _MAX_HUNG_LOOKS)

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        self._pending: deque[Path] = deque(maxlen=_MAX_PENDING)
        self._lock = threading.Lock()
        self._is_open = True

    def __enter__(self) -> "_DeviceEvents":
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_open = False
            os.close(self.descriptor)

    def add(self, paths: Iterable[Path]) -> None:
        """The kernel watches each file once, however often it is added, and by whichever name."""
        for path in paths:
            with suppress(OSError):
                with self._lock:
                    if not self._is_open:
                        return
                    # The kernel asks the file system: without the lock, and with a descriptor of our own.
                    events = os.dup(self.descriptor)
                try:
                    self._libc.inotify_add_watch(events, os.fsencode(path), _IN_OPEN)
                finally:
                    os.close(events)

    def add_soon(self, paths: Iterable[Path]) -> None:
        """As `add`, by another thread. Where all are busy, those take them next."""
        self._pending.extend(paths)
        self._threads.submit(self._add_pending)

    def _add_pending(self) -> None:
        with suppress(IndexError):
            while True:
                self.add((self._pending.popleft(),))

    def drain(self) -> bool:
        """Whether a file was opened."""
        has_open = False
        with suppress(BlockingIOError):
            while data := os.read(self.descriptor, _READ_BYTES):
                at = 0
                while at < len(data):
                    _, what, _, name_bytes = _FILE_EVENT.unpack_from(data, at)
                    at += _FILE_EVENT.size + name_bytes
                    has_open = has_open or bool(what & (_IN_OPEN | _IN_OVERFLOW))
        return has_open


# Programs that are executed, from the kernel (linux/cn_proc.h). Before Linux 6.6 only root hears of them.

_NETLINK_CONNECTOR: Final = 11
_CN_IDX_PROC: Final = 1
_LISTEN: Final = 1
_EXEC: Final = 2
_SO_ATTACH_FILTER: Final = 26
# struct nlmsghdr, struct cn_msg, and the beginning of struct proc_event: what, cpu, timestamp, pid, tgid.
_HEADER: Final = struct.Struct("=IHHII")
_MESSAGE: Final = struct.Struct("=IIIIHH")
_EVENT: Final = struct.Struct("=IIQII")
_EVENT_AT: Final = _HEADER.size + _MESSAGE.size


class _ExecEvents:
    """`descriptor` is None where the kernel does not report them to us."""

    def __init__(self) -> None:
        self.descriptor: int | None = None
        self._socket: socket.socket | None = None
        self._filter: ctypes.Array[ctypes.c_char] | None = None
        try:
            made = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_CONNECTOR)
        except OSError:
            return
        try:
            made.setblocking(False)
            self._attach_filter(made)
            made.bind((0, _CN_IDX_PROC))
            request = struct.pack("=I", _LISTEN)
            message = _MESSAGE.pack(_CN_IDX_PROC, 1, 0, 0, len(request), 0) + request
            made.send(_HEADER.pack(_HEADER.size + len(message), 3, 0, 0, os.getpid()) + message)
        except OSError:
            made.close()
            return
        self._socket, self.descriptor = made, made.fileno()

    def __enter__(self) -> "_ExecEvents":
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()

    def _attach_filter(self, made: socket.socket) -> None:
        """The kernel drops all but executions: forks and ends of processes wake nothing here."""
        what = int.from_bytes(struct.pack("=I", _EXEC), "big")
        program = b"".join(
            struct.pack("=HBBI", *row)
            for row in ((0x20, 0, 0, _EVENT_AT), (0x15, 0, 1, what), (0x06, 0, 0, 0xFFFFFFFF), (0x06, 0, 0, 0))
        )
        self._filter = ctypes.create_string_buffer(program)
        made.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(program) // 8, ctypes.addressof(self._filter))
        )

    def pids(self) -> Iterator[int]:
        if self._socket is None:
            return
        for _ in range(_EXECS_PER_ROUND):
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    return
                continue
            if len(data) >= _EVENT_AT + _EVENT.size:
                what, _, _, _, process = _EVENT.unpack_from(data, _EVENT_AT)
                if what == _EXEC:
                    yield process
