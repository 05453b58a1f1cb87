"""What procfs shows about the process at the other end of a socket."""

import os
import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from gpucommons.base.cgroup_paths import is_of_user_manager, named_by_root
from gpucommons.base.process_stat import start_ticks
from gpucommons.base.unix_listener import PeerCredentials
from gpucommons.base.user_namespace import UserNamespace, user_namespace
from gpucommons.scheduler.policy.state import ClientProcess

_NAMESPACES: Final = ("user", "pid")
_CONTAINER: Final = re.compile(r"[0-9a-f]{64}")
_POD: Final = re.compile(r"[/-]pod[0-9a-f]{8}[-_0-9a-f]{24,28}(?:\.slice)?(?:[:/]|$)", re.MULTILINE)
_MOST_CGROUP_BYTES: Final = 16 * 1024
_PIDS: Final = re.compile(r"^NSpid:(.*)$", re.MULTILINE)


class PeerProcess(NamedTuple):
    """The process at the other end, as it was when it was looked at. `is_local`: in our user and pid namespace.

    `container` is the innermost one that root has named; None in our own container, or in none. `user_namespace` is
    None where it is ours. `in_pod`: its cgroup is that of a pod; None where the process is out of our sight.
    """

    is_local: bool = False
    container: str | None = None
    user_namespace: UserNamespace | None = None
    in_pod: bool | None = False


def look_at(pid: int) -> PeerProcess:
    """All that is known of a process at once. A process that has ended is not local, and in no container."""
    # First: a program that sends one order may be gone at any moment.
    local = is_local(pid)
    cgroup = _named_cgroup(str(pid))
    found = _container_id(cgroup)
    container = None if found is None or found == _container_id(_named_cgroup("self")) else found
    # From another pid namespace than ours or below, the kernel reports 0.
    in_pod = None if pid == 0 else _POD.search(cgroup) is not None
    return PeerProcess(local, container, None if local else _user_namespace(pid), in_pod)


def process_of(peer: PeerCredentials) -> ClientProcess | None:
    """None where the process is in another pid namespace, or has ended."""
    try:
        ticks = start_ticks(Path(f"/proc/{peer.pid}/stat").read_bytes())
    except (OSError, ValueError, IndexError):
        return None
    return ClientProcess(peer.uid, peer.pid, ticks)


def _named_cgroup(process: str) -> str:
    """The paths of its cgroup as far as root has named them; those below a user's own manager are left out."""
    try:
        with open(f"/proc/{process}/cgroup", "rb") as file:
            text = file.read(_MOST_CGROUP_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(line for line in named_by_root(text).split("\n") if not is_of_user_manager(line))


def _container_id(cgroup: str) -> str | None:
    ids = _CONTAINER.findall(cgroup)
    return ids[-1] if ids else None


def _user_namespace(pid: int) -> UserNamespace | None:
    try:
        directory = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return user_namespace(directory)
    finally:
        os.close(directory)


def is_local(pid: int) -> bool:
    """Whether a process is in our own user and pid namespace. False where that cannot be read, or it has ended."""
    try:
        return all(os.stat(f"/proc/{pid}/ns/{name}").st_ino == _own_namespace(name) for name in _NAMESPACES)
    except PermissionError:
        return _appears_local(pid)
    except OSError:
        return False


@cache
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
