"""The peers of Unix sockets: which process one is, whether it may give orders, and how much it may ask for.

The kernel gives pid, uid and gid of a peer. Root in a container has uid 0, too, so that procfs is asked for its
namespaces and its container.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from gpucommons.base.cgroup_paths import is_of_user_manager, trim_to_root_named
from gpucommons.base.processes import start_ticks
from gpucommons.base.unix_listener import PeerCredentials
from gpucommons.base.user_namespace import UserNamespace, user_namespace

# What procfs shows about the process at the other end of a socket.


class ClientProcess(NamedTuple):
    """The process behind a connection. Its start time in clock ticks distinguishes it from a reused pid."""

    uid: int
    pid: int
    start_ticks: int


_NAMESPACES: Final = ("user", "pid")
_CONTAINER: Final = re.compile(r"[0-9a-f]{64}")
_POD: Final = re.compile(r"[/-]pod[0-9a-f]{8}[-_0-9a-f]{24,28}(?:\.slice)?(?:[:/]|$)", re.MULTILINE)
_MAX_CGROUP_BYTES: Final = 16 * 1024
_PIDS: Final = re.compile(rb"^NSpid:(.*)$", re.MULTILINE)


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
    container_id = _container_id(cgroup)
    container = None if container_id is None or container_id == _container_id(_named_cgroup("self")) else container_id
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
            text = file.read(_MAX_CGROUP_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(line for line in trim_to_root_named(text).split("\n") if not is_of_user_manager(line))


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
        # As bytes: text would end a line at a carriage return, too, which the name of a process may have.
        pids = _PIDS.search(Path(f"/proc/{pid}/status").read_bytes())
        same_users = Path(f"/proc/{pid}/uid_map").read_bytes() == Path("/proc/self/uid_map").read_bytes()
    except OSError:
        return False
    return same_users and pids is not None and pids[1].split() == [str(pid).encode()]


# Which peers may change the scheduler: one rule for the client sockets and the control socket. Pure.


class Admins(NamedTuple):
    """`own_uid` is the agent's user; `gid` is that of `admin_group`, None where it is not set.

    The group is looked up once, at the start: a lookup may block, and every user can connect.
    """

    own_uid: int
    gid: int | None = None

    def include(self, peer: PeerCredentials, groups: frozenset[int], is_local: bool) -> bool:
        """Root, the agent's user, and members of the group, if they are in the agent's user and pid namespace.

        Root in a container has uid 0, too, and can take any group. `groups` are the supplementary groups of the peer.
        """
        is_member = self.gid is not None and self.gid in (peer.gid, *groups)
        return is_local and (peer.uid in (0, self.own_uid) or is_member)


# How much of the scheduler's sockets one user or container may take. Pure.
#
# A budget is charged to a container where one is known, because root of all containers is one uid, and to the user: in
# a user namespace, to its maker. Root outside of containers has no limit: an operator must always get through.

_MAX_BUCKETS: Final = 4096
_RESERVED_PART: Final = 16
# An owner with at most so many connections may use the slots that are reserved for new owners.
_FEW: Final = 4


class PeerAccount(NamedTuple):
    """Which budget is charged: `kind` is uid or container."""

    kind: str
    id: str


def accounts_of(uid: int, process: PeerProcess) -> tuple[PeerAccount, ...]:
    """The budgets of one connection: none for root outside of containers."""
    in_container = (PeerAccount("container", process.container),) if process.container is not None else ()
    if uid == 0 and (in_container or process.is_local):
        return in_container
    return (PeerAccount("uid", _user(uid, process).removeprefix("uid:")), *in_container)


def owner_of(uid: int, process: PeerProcess) -> str:
    """Which owner a client counts for, by what the kernel says of who has started it.

    The first that it has: a container that root has named, the maker of its user namespace, its user. So all uids of a
    user's namespace are that user, and cgroups that a user has named like containers count for nothing.
    """
    return _user(uid, process) if process.container is None else f"container:{process.container}"


def _user(uid: int, process: PeerProcess) -> str:
    return f"uid:{uid}" if process.user_namespace is None else process.user_namespace.owner


class Slots:
    """Which connections a table of `total` slots takes. A sixteenth is reserved: half of it for owners with few
    connections, half for root outside of containers. Clients never register in the latter: an order gets through
    however many there are. All counts include the connection in question, `of_owner` those of its owner."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._for_root = max(1, total // _RESERVED_PART // 2)

    def takes(self, open_count: int, of_owner: int, is_root: bool) -> bool:
        return open_count <= (self._total if is_root else self._for_clients(of_owner))

    def registers(self, registered: int, of_owner: int) -> bool:
        return registered <= self._for_clients(of_owner)

    def is_few(self, of_owner: int) -> bool:
        return of_owner <= _FEW

    def _for_clients(self, of_owner: int) -> int:
        return self._total - (1 if self.is_few(of_owner) else 2) * self._for_root


class ConnectionCaps:
    """Counts open connections. `limits` are by kind of account."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = limits
        self._open: Counter[PeerAccount] = Counter()

    def add(self, accounts: tuple[PeerAccount, ...]) -> str:
        """Counts a connection; returns the kind of the account that is over its limit now, or nothing."""
        self._open.update(accounts)
        return next((account.kind for account in accounts if self._open[account] > self._limits[account.kind]), "")

    def remove(self, accounts: tuple[PeerAccount, ...]) -> None:
        for account in accounts:
            self._open[account] -= 1
            if not self._open[account]:
                del self._open[account]


class RequestRate:
    """A bucket of requests for each account, refilled at `per_s` up to `burst`."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        # What was left, and when.
        self._left: dict[PeerAccount, tuple[float, float]] = {}

    def take(self, accounts: tuple[PeerAccount, ...], now: float) -> bool:
        """Whether a request is within the rate of all its accounts."""
        if len(self._left) > _MAX_BUCKETS:
            self._left = {
                account: entry for account, entry in self._left.items() if self._now(entry, now) < self._burst
            }
        left = {account: self._now(self._left.get(account, (self._burst, now)), now) for account in accounts}
        allowed = all(amount >= 1 for amount in left.values())
        self._left |= {account: (amount - allowed, now) for account, amount in left.items()}
        return allowed

    def _now(self, entry: tuple[float, float], now: float) -> float:
        left, since_s = entry
        return min(self._burst, left + (now - since_s) * self._per_s)
