"""What procfs shows about the process at the other end of a socket."""

import os
import re
from pathlib import Path
from typing import Final

from gpucommons.base.process_stat import start_ticks
from gpucommons.base.unix_listener import PeerCredentials
from gpucommons.scheduler.policy.state import ClientProcess

_NAMESPACES: Final = ("user", "pid")
_CONTAINER: Final = re.compile(rb"[0-9a-f]{64}")
_MOST_CGROUP_BYTES: Final = 16 * 1024
_PIDS: Final = re.compile(r"^NSpid:(.*)$", re.MULTILINE)


def process_of(peer: PeerCredentials) -> ClientProcess | None:
    """None where the process is in another pid namespace, or has ended."""
    try:
        ticks = start_ticks(Path(f"/proc/{peer.pid}/stat").read_bytes())
    except (OSError, ValueError, IndexError):
        return None
    return ClientProcess(peer.uid, peer.pid, ticks)


def container_of(pid: int) -> str | None:
    """The id of the innermost container in the process's cgroup path; None in our own container, or in none."""
    found = _container_id(str(pid))
    return None if found is None or found == _container_id("self") else found


def _container_id(process: str) -> str | None:
    try:
        with open(f"/proc/{process}/cgroup", "rb") as file:
            ids = _CONTAINER.findall(file.read(_MOST_CGROUP_BYTES))
    except OSError:
        return None
    return ids[-1].decode() if ids else None


def is_local(pid: int) -> bool:
    """Whether a process is in our own user and pid namespace. False where that cannot be read, or it has ended."""
    try:
        return all(os.stat(f"/proc/{pid}/ns/{name}").st_ino == _own_namespace(name) for name in _NAMESPACES)
    except PermissionError:
        return _appears_local(pid)
    except OSError:
        return False


def _own_namespace(name: str) -> int:
    return os.stat(f"/proc/self/ns/{name}").st_ino


def _appears_local(pid: int) -> bool:
    """The same from files that every user may read: without SYS_PTRACE the namespaces of root's processes are hidden.

    A process of a nested pid namespace has several pids; one of another user namespace has another uid map.
    """
    try:
        pids = _PIDS.search(Path(f"/proc/{pid}/status").read_text(errors="replace"))
        same_users = Path(f"/proc/{pid}/uid_map").read_bytes() == Path("/proc/self/uid_map").read_bytes()
    except OSError:
        return False
    return same_users and pids is not None and pids[1].split() == [str(pid)]
