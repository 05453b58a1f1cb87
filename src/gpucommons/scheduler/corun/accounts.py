"""Time served to owners on one GPU, and within an owner to its clients: the one that has had least is next.

An account outlives the clients of its owner: an owner that ends a program and starts another one has not had less.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Final, Generic, TypeVar

# How far an owner that got less than its share is behind at most. More would let it keep others away for as long.
_MAX_BEHIND_S: Final = 2.0
# How long, and of how many owners, accounts are remembered.
_REMEMBERED_S: Final = 600.0
_MAX_REMEMBERED: Final = 1024

Client = TypeVar("Client", bound=Hashable)


class OwnerAccounts(Generic[Client]):
    def __init__(self) -> None:
        self._owners_s: dict[str, float] = {}
        self._clients_s: dict[Client, float] = {}
        self._owner_of: Mapping[Client, str] = {}
        # When the last client of an owner that has none now was seen.
        self._left_s: dict[str, float] = {}
        # An owner of weight 2 has twice as much as one of weight 1; those that are not in it have weight 1.
        self.weights: Mapping[str, float] = {}
        self._last: Client | None = None

    @property
    def owners(self) -> frozenset[str]:
        """Those that compete."""
        return frozenset(self._owner_of.values())

    def enter(self, owner_of: Mapping[Client, str], now_s: float) -> None:
        """These clients compete from now on. One that did not has no claim to the time that it did not use."""
        before, owners = set(self._owner_of.values()), set(owner_of.values())
        least_s = min((self._owners_s[owner] for owner in before & owners), default=0.0)
        for owner in owners - before:
            self._owners_s[owner] = max(least_s, self._owners_s.get(owner, least_s))
            self._left_s.pop(owner, None)
        for client in owner_of.keys() - self._owner_of.keys():
            siblings = [self._clients_s.get(sibling, 0.0) for sibling in self._siblings(client, owner_of)]
            self._clients_s[client] = max(min(siblings, default=0.0), self._clients_s.get(client, 0.0))
        self._left_s |= dict.fromkeys(before - owners, now_s)
        self._owner_of = dict(owner_of)
        self._prune(now_s)

    def charge(self, owner: str, seconds: float, clients: Iterable[Client] = ()) -> None:
        """The owner had the GPU for this long, with these clients."""
        self._owners_s[owner] = self._owners_s.get(owner, 0.0) + seconds / self.weights.get(owner, 1.0)
        for client in clients:
            self._last = client
            if client in self._clients_s:
                self._clients_s[client] += seconds
        ahead_s = max(self._owners_s[other] for other in {owner, *self._owner_of.values()} & self._owners_s.keys())
        for other in set(self._owner_of.values()):
            self._owners_s[other] = max(self._owners_s[other], ahead_s - _MAX_BEHIND_S)

    def transfer(self, owner: str, seconds: float) -> None:
        """The owner used the GPU for this long without a turn: the others have had that much less of theirs."""
        others = set(self._owner_of.values()) - {owner}
        for other in others:
            self._owners_s[other] -= seconds / len(others)
        self.charge(owner, seconds)

    def part_of(self, owner: str, owners: Iterable[str]) -> float:
        """Its part of the time while these owners compete for it, 0 to 1."""
        weights = {competitor: self.weights.get(competitor, 1.0) for competitor in {owner, *owners}}
        return weights[owner] / sum(weights.values())

    def next_owner(self, owners: Iterable[str], slack_s: float) -> str:
        """Not the last one again for a small lead: the time that it takes to stop is counted once it has stopped."""
        last = self._owner_of.get(self._last) if self._last is not None else None
        return min(owners, key=lambda owner: self._owners_s[owner] + (slack_s if owner == last else 0.0))

    def next_client(self, clients: Iterable[Client], slack_s: float) -> Client:
        return min(
            clients, key=lambda client: self._clients_s.get(client, 0.0) + (slack_s if client == self._last else 0.0)
        )

    def forget(self, client: Client) -> None:
        self._clients_s.pop(client, None)

    def _siblings(self, client: Client, owner_of: Mapping[Client, str]) -> list[Client]:
        """The clients of its owner that competed before it."""
        owner = owner_of[client]
        return [other for other, of in owner_of.items() if of == owner and other in self._owner_of]

    def _prune(self, now_s: float) -> None:
        gone = [owner for owner, left_s in self._left_s.items() if left_s < now_s - _REMEMBERED_S]
        gone += list(self._left_s)[: max(0, len(self._left_s) - _MAX_REMEMBERED)]
        for owner in gone:
            self._left_s.pop(owner, None)
            self._owners_s.pop(owner, None)
