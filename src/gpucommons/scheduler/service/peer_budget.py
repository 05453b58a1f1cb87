"""How much of the scheduler's sockets one user or container may take. Pure.

A budget is charged to a container where one is known, because root of all containers is one uid, and to the user: in
a user namespace, to its maker. Root outside of containers has no limit: an operator must always get through.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from gpucommons.scheduler.service.peer_process import PeerProcess

_MOST_BUCKETS: Final = 4096
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

    def _for_clients(self, of_owner: int) -> int:
        return self._total - (1 if of_owner <= _FEW else 2) * self._for_root


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
        if len(self._left) > _MOST_BUCKETS:
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
