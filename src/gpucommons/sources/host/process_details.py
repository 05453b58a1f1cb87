"""Reads the files of one process in procfs: status, cgroup, command line, ancestors. Does not parse the cgroup."""

import os
from collections.abc import Collection
from pathlib import Path

from gpucommons.base.cgroup_paths import trim_to_root_named
from gpucommons.base.processes import MAX_COMMAND_BYTES, ancestors_from, session_id, start_ticks
from gpucommons.base.text import parse_decimal
from gpucommons.base.user_namespace import user_namespace
from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import PidFacts, ProcessDetails, ProcessKey
from gpucommons.sources.host.processes import parse_stat

# Reads the files of one process in procfs. Does not parse the cgroup.
#
# All files of a process are opened relative to a descriptor of its directory. The kernel ties that descriptor to the
# process: if the pid is reused between two reads, the read fails instead of returning another process's file.

_STAT_BYTES = 4 * 1024
_STATUS_BYTES = 16 * 1024
# One byte more than the parser uses, so that truncation can be detected.
_CGROUP_BYTES = 64 * 1024 + 1
# The most descriptors that are held. Processes beyond this number cost one more read each.
_MAX_HELD = 512
_MAX_DESCRIPTORS = 4096
_GPU_DEVICES = ("/dev/nvidia", "/dev/dxg")
_FILE = os.O_RDONLY | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class ProcessDetailsReader:
    """Keeps the directories of known processes open, to check cheaply that they are alive.

    Not thread-safe.
    """

    def __init__(self, procfs: Path) -> None:
        self._procfs = str(procfs)
        self._held: dict[ProcessKey, int] = {}

    def read(self, pid: int, look_for_gpu: bool = False) -> ProcessDetails | Reason:
        """The details of this process, or the reason why they cannot be read. Never raises."""
        try:
            directory = os.open(f"{self._procfs}/{pid}", _DIRECTORY)
        except OSError as error:
            return _reason(error)
        try:
            details = self._details(directory, look_for_gpu)
        except (OSError, ValueError, IndexError) as error:
            os.close(directory)
            return _reason(error)
        if details.key in self._held or len(self._held) >= _MAX_HELD:
            os.close(directory)
        else:
            self._held[details.key] = directory
        return details

    def is_alive(self, key: ProcessKey) -> bool:
        """Whether this process still exists: one system call, no file is read."""
        directory = self._held.get(key)
        if directory is not None:
            return os.access("stat", os.F_OK, dir_fd=directory)
        details = self.read(key.pid)
        return isinstance(details, ProcessDetails) and details.key == key

    def keep(self, keys: Collection[ProcessKey]) -> None:
        """Close the directories of all other processes."""
        for key in [key for key in self._held if key not in keys]:
            os.close(self._held.pop(key))

    def _details(self, process: int, look_for_gpu: bool) -> ProcessDetails:
        stat = read_process_file(process, "stat", _STAT_BYTES)
        row = parse_stat(stat, ticks_per_s=1, page_bytes=1)
        return ProcessDetails(
            row.key,
            row.name,
            status=read_process_file(process, "status", _STATUS_BYTES).decode("utf-8", "replace"),
            cgroup=trim_to_root_named(_cgroup(process)),
            holds_gpu=_holds_gpu(process) if look_for_gpu else None,
            session_id=session_id(stat),
            ancestors=tuple(ProcessKey(*key) for key in ancestors_from(self._procfs, row.parent_pid)),
            user_namespace=user_namespace(process),
        )


def _reason(error: Exception) -> Reason:
    gone = isinstance(error, FileNotFoundError | ProcessLookupError)
    return Reason.PROCESS_GONE if gone else Reason.PROCESS_UNREADABLE


def _cgroup(process: int) -> str:
    try:
        return read_process_file(process, "cgroup", _CGROUP_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        # Either the process has ended, or the kernel has no cgroups: only in the first case `stat` fails as well.
        read_process_file(process, "stat", _STAT_BYTES)
        return ""


def read_process_file(process: int, name: str, max_bytes: int) -> bytes:
    """A file in the directory of a process. Raises OSError if the process has ended: then the file is empty."""
    descriptor = os.open(name, _FILE, dir_fd=process)
    try:
        text = os.read(descriptor, max_bytes)
        while text and len(text) < max_bytes and (more := os.read(descriptor, max_bytes - len(text))):
            text += more
    finally:
        os.close(descriptor)
    if not text:
        raise ProcessLookupError(name)
    return text


def _holds_gpu(process: int) -> bool | None:
    try:
        descriptors = os.open("fd", _DIRECTORY, dir_fd=process)
    except OSError:
        return None
    try:
        for name in os.listdir(descriptors)[:_MAX_DESCRIPTORS]:
            try:
                target = os.readlink(name, dir_fd=descriptors)
            except OSError:
                continue
            if target.startswith(_GPU_DEVICES):
                return True
        return False
    except OSError:
        return None
    finally:
        os.close(descriptors)


# The name and the command line of a process from procfs. Never raises.

# What names a program is at the beginning of its command line.
_NAME_BYTES = 64


class CommandReader:
    def __init__(self, procfs: Path) -> None:
        self._procfs = str(procfs)

    def name(self, pid: int) -> str | None:
        """The kernel's name of the process that has this pid now; None where there is none."""
        try:
            descriptor = os.open(f"{self._procfs}/{pid}/comm", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(descriptor, _NAME_BYTES).decode("utf-8", "replace")
            finally:
                os.close(descriptor)
        except OSError:
            return None

    def command_line(self, key: ProcessKey) -> tuple[str, ...]:
        """Its first 4 KiB; empty where that process has ended, has none, or may not be read."""
        try:
            process = os.open(f"{self._procfs}/{key.pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if start_ticks(read_process_file(process, "stat", _STAT_BYTES)) != key.start_ticks:
                    return ()
                text = read_process_file(process, "cmdline", MAX_COMMAND_BYTES)
            finally:
                os.close(process)
        except (OSError, ValueError, IndexError):
            return ()
        # A program that writes its own title leaves it padded.
        return tuple(text.rstrip(b"\0").decode("utf-8", "replace").split("\0"))


# Reads the facts that show which pids a procfs contains: this process's own entry, and those of pids 1 and 2.


def read_pid_facts(procfs: Path) -> PidFacts:
    reader = ProcessDetailsReader(procfs)
    own_pid = parse_decimal(_link(procfs / "self") or "")
    own = None if own_pid is None else reader.read(own_pid)
    second = reader.read(2)
    return PidFacts(
        procfs=str(procfs),
        own_status=own.status if isinstance(own, ProcessDetails) else None,
        own_namespace=_link(procfs / "self" / "ns" / "pid"),
        first_namespace=_link(procfs / "1" / "ns" / "pid"),
        first_is_there=(procfs / "1").exists(),
        second_name=second.name if isinstance(second, ProcessDetails) else None,
    )


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
