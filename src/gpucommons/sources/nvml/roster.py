"""Every GPU that was ever seen: present, or lost, since when and why. Pure: the time is passed in."""

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
        self._unidentified = 0
        self.present = 0

    def enumerated(self, count: int) -> None:
        """The number of GPUs that the driver counts, including those that cannot be opened."""
        self._most_enumerated = max(self._most_enumerated, count)

    def unopened(self, count: int) -> bool:
        """Takes the number that cannot be opened. True if more of them than before have never been identified: those
        that are known, or were reported already, are not news."""
        unidentified = count - len(self._entries) + self.present
        more, self._unidentified = unidentified > self._unidentified, unidentified
        return more

    def found(self, identity: GpuIdentity, wall_s: float) -> bool:
        """Records a GPU that answers. True if it was lost before."""
        known = self._entries.get(identity.uuid)
        returned = known is not None and not known.up
        if known is None or returned:
            self._entries[identity.uuid] = RosterEntry(identity, True, wall_s)
            self.present += 1
        else:
            known.identity = identity
        return returned

    def lost(self, uuid: str, reason: str, wall_s: float) -> bool:
        """Records a GPU that no longer answers. True if it did until now."""
        entry = self._entries[uuid]
        if not entry.up:
            return False
        self._entries[uuid] = RosterEntry(entry.identity, False, wall_s, reason)
        self.present -= 1
        return True

    def missing(self, present: set[str], wall_s: float) -> list[RosterEntry]:
        """After an enumeration: marks those that are not in it as lost, and returns them."""
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
