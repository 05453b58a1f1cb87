"""Whether a peer that has ended was root of this host.

nvsharectl and xpusharectl send one frame and exit: often they are gone before a file of theirs in procfs can be read,
and what showed their namespaces is gone with them. Two ways are left.

An agent that had CAP_PERFMON at its start has a record of the namespaces in which processes started
(process_starts.py). It decides as procfs would have: root in our user and pid namespace is obeyed, and no other. A
process that is not in the record is refused: it started before the record reaches back, unlike a command that a shell
just ran.

An agent without the record decides by what the kernel keeps with the connection:

- its uid in our user namespace. Root of a user namespace that a user made has the uid of that user, and is refused;
- the network namespace in which it connected (SO_NETNS_COOKIE). One in another is refused: most containers;
- the cgroup in which it ended (SO_PEERPIDFD and PIDFD_GET_INFO, from Linux 6.15 on; SO_PEERPIDFD of a process that
  ended from 6.16 on). A container has a cgroup of its own (cgroup v2) and cannot leave it. The cgroup must have a
  living process of root in our namespaces, such as the shell from which the order was given, and none of root in
  other namespaces; and no root of other namespaces connected from it lately. On hosts with cgroup v1 all processes
  may be in the top cgroup: there, no container engine may run.

Whatever cannot be shown is refused. What remains, without the record, is a process that root of this host has put into
other pid or user namespaces without a cgroup of their own: before it is gone it is refused, too, and with it what comes
after it.
"""

import errno
import fcntl
import os
import signal
import socket
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from gpucommons.base.peers import is_local
from gpucommons.base.process_starts import ProcessStarts
from gpucommons.base.unix_listener import PeerCredentials

_SO_NETNS_COOKIE: Final = 71
_SO_PEERPIDFD: Final = 77
_COOKIE_BYTES: Final = 8
_DESCRIPTOR: Final = struct.Struct("i")
# Of SO_PEERPIDFD: EINVAL until Linux 6.14.
_PROCESS_HAS_ENDED: Final = (errno.ESRCH, errno.EINVAL)
# linux/pidfd.h: PIDFD_GET_INFO, its first 64 bytes, and the bits that request the cgroup, also of a process that ended.
_GET_INFO: Final = 0xC040FF0B
_INFO: Final = struct.Struct("QQ48x")
_CGROUP, _EXIT = 1 << 2, 1 << 3

_CGROUPFS: Final = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_TOP_CGROUP: Final = 1
_MAX_DIRECTORIES: Final = 20_000
_MAX_PROCESSES: Final = 20_000
_REMEMBERED_S: Final = 600.0
_VERDICT_S: Final = 0.5
_MAX_REMEMBERED: Final = 1000
_ENGINES: Final = ("dockerd", "containerd", "crio", "conmon", "podman", "lxc", "kubelet", "systemd-nspawn")


class PeerTrace(NamedTuple):
    """What the kernel keeps of a peer with its connection. `cgroup` is None where the kernel does not report it."""

    has_ended: bool
    same_network: bool = False
    cgroup: int | None = None


def trace_of(peer: socket.socket, pid: int) -> PeerTrace:
    """Reads it. Where the kernel has no SO_PEERPIDFD (before Linux 6.5), a process that procfs lists has not ended."""
    try:
        descriptor = _DESCRIPTOR.unpack(peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, _DESCRIPTOR.size))[0]
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            return PeerTrace(has_ended=not os.path.exists(f"/proc/{pid}"))
        return PeerTrace(has_ended=error.errno in _PROCESS_HAS_ENDED)
    try:
        return PeerTrace(_has_ended(descriptor), _same_network(peer), _cgroup_of(descriptor))
    finally:
        os.close(descriptor)


def _has_ended(descriptor: int) -> bool:
    try:
        signal.pidfd_send_signal(descriptor, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _same_network(peer: socket.socket) -> bool:
    """The socket of an accepted connection belongs to the network namespace of the peer."""
    try:
        return _network(peer) == _own_network()
    except OSError:
        return False


@cache
def _own_network() -> bytes:
    with socket.socket(socket.AF_UNIX) as own:
        return _network(own)


def _network(peer: socket.socket) -> bytes:
    return peer.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE_BYTES)


def _cgroup_of(descriptor: int) -> int | None:
    info = bytearray(_INFO.pack(_CGROUP | _EXIT, 0))
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:
        return None
    mask, cgroup = _INFO.unpack(info)
    return cgroup if mask & _CGROUP else None


class GonePeers:
    """Judges peers that have ended. `is_local` is whether a process is in our namespaces.

    `starts` is the record of starts, None where the agent may not have it. It is closed with this.
    """

    def __init__(
        self,
        starts: ProcessStarts | None = None,
        cgroupfs: tuple[Path, ...] = _CGROUPFS,
        procfs: Path = Path("/proc"),
        is_local: Callable[[int], bool] = is_local,
    ) -> None:
        self.starts = starts
        self._cgroupfs = cgroupfs
        self._procfs = procfs
        self._is_local = is_local
        # The cgroups from which root of other namespaces connected, and when it did last.
        self._foreign: dict[int, float] = {}
        # Verdicts by cgroup, and until when they hold: many orders may come at once.
        self._verdicts: dict[int, tuple[bool, float]] = {}

    def note_foreign(self, trace: PeerTrace, now: float) -> None:
        """A living peer with uid 0 is in other namespaces."""
        if trace.cgroup is not None:
            self._foreign.pop(trace.cgroup, None)
            self._foreign[trace.cgroup] = now
            if len(self._foreign) > _MAX_REMEMBERED:
                del self._foreign[next(iter(self._foreign))]

    def was_local_root(self, peer: PeerCredentials, trace: PeerTrace, now: float) -> bool:
        """Whether a peer that has ended was root in our namespaces. Reads many files: not for the loop."""
        if peer.uid != 0 or not trace.has_ended:
            return False
        if self.starts is not None:
            return self.starts.was_local(peer.pid) is True
        return self._had_local_cgroup(trace, now)

    def _had_local_cgroup(self, trace: PeerTrace, now: float) -> bool:
        if not trace.same_network or trace.cgroup is None:
            return False
        if now - self._foreign.get(trace.cgroup, -_REMEMBERED_S) < _REMEMBERED_S:
            return False
        verdict, until_s = self._verdicts.get(trace.cgroup, (False, now))
        if now >= until_s:
            verdict = self._is_ours(trace.cgroup)
            self._verdicts = {trace.cgroup: (verdict, now + _VERDICT_S)}
        # Again: one may have connected meanwhile.
        return verdict and now - self._foreign.get(trace.cgroup, -_REMEMBERED_S) >= _REMEMBERED_S

    def close_record(self) -> None:
        if self.starts is not None:
            self.starts.close()
            self.starts = None

    def _is_ours(self, cgroup: int) -> bool:
        """Whether root has processes in this cgroup, and all of them are in our namespaces."""
        pids = self._pids_of(cgroup)
        if pids is None or len(pids) > _MAX_PROCESSES:
            return False
        if cgroup == _TOP_CGROUP and any(map(self._is_engine, pids)):
            return False
        roots = [pid for pid in pids if self._is_of_root(pid)]
        local = [pid for pid in roots if self._is_local(pid)]
        # One that has ended since then says nothing.
        foreign = any(self._is_of_root(pid) for pid in set(roots).difference(local))
        return bool(local) and not foreign

    def _pids_of(self, cgroup: int) -> list[int] | None:
        """The processes of the cgroup with this inode number; None where there is none."""
        for mount in self._cgroupfs:
            if not (mount / "cgroup.controllers").exists():
                continue
            for count, (directory, _, _) in enumerate(os.walk(mount)):
                if count > _MAX_DIRECTORIES:
                    return None
                try:
                    if os.stat(directory).st_ino == cgroup:
                        return [int(pid) for pid in Path(directory, "cgroup.procs").read_text().split()]
                except OSError:
                    # It was removed meanwhile, or has threads of several processes.
                    continue
        return None

    def _is_of_root(self, pid: int) -> bool:
        """False where it has ended."""
        try:
            return (self._procfs / str(pid)).stat().st_uid == 0
        except OSError:
            return False

    def _is_engine(self, pid: int) -> bool:
        try:
            return (self._procfs / str(pid) / "comm").read_text(errors="replace").startswith(_ENGINES)
        except OSError:
            return False
