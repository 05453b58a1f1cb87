"""Every GPU that was ever seen: present, or lost since when and why. Pure; each method is told the time."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpucommons.model.gpu import GpuIdentity


@dataclass(slots=True)
class RosterEntry:
    identity: GpuIdentity
    up: bool
    since_wall_s: float
    reason: str = ""


class Roster:
    def __init__(self) -> None:
        self._entries: dict[str, RosterEntry] = {}
        self._most_enumerated = 0
        self._strangers = 0
        self.present = 0

    def enumerated(self, count: int) -> None:
        """How many GPUs the driver counts, one that cannot be opened included."""
        self._most_enumerated = max(self._most_enumerated, count)

    def unopened(self, count: int) -> bool:
        """How many of those cannot be opened. True when there are more such strangers than before: a GPU
        that was lost while we looked is known already, and so is a stranger that we have told of."""
        strangers = count - len(self._entries) + self.present
        more, self._strangers = strangers > self._strangers, strangers
        return more

    def found(self, identity: GpuIdentity, wall_s: float) -> bool:
        """A GPU answers. True when it was lost before."""
        known = self._entries.get(identity.uuid)
        returned = known is not None and not known.up
        if known is None or returned:
            self._entries[identity.uuid] = RosterEntry(identity, True, wall_s)
            self.present += 1
        else:
            known.identity = identity
        return returned

    def lost(self, uuid: str, reason: str, wall_s: float) -> bool:
        """A GPU no longer answers. True when it did until now."""
        entry = self._entries[uuid]
        if not entry.up:
            return False
        self._entries[uuid] = RosterEntry(entry.identity, False, wall_s, reason)
        self.present -= 1
        return True

    def missing(self, present: set[str], wall_s: float) -> list[RosterEntry]:
        """After an enumeration: those that should be in it and are not, now lost."""
        gone = [uuid for uuid, entry in self._entries.items() if entry.up and uuid not in present]
        for uuid in gone:
            self.lost(uuid, "not_enumerated", wall_s)
        return [self._entries[uuid] for uuid in gone]

    def entry(self, uuid: str) -> RosterEntry:
        return self._entries[uuid]

    def absentees(self) -> Iterator[RosterEntry]:
        return (entry for entry in self._entries.values() if not entry.up)

    @property
    def expected(self) -> int:
        return max(len(self._entries), self._most_enumerated)

    @property
    def complete(self) -> bool:
        return self.present == self.expected
