"""Which containers there are, kept true by events. Pure: it says whom to ask about, and is told.

An event only marks its container as due to be asked about anew, so that repeated, replayed and late
events do no harm. Once nothing is due, the mirror shows what the runtime has.
"""

from collections.abc import Iterable
from types import MappingProxyType

from gpucommons.model.containers import Container, ContainerReading


class Mirror:
    """`take` an id, ask the runtime about it, then `tell` or `fail`. `most` bounds how many are held."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._told: dict[str, Container] = {}
        self._untold: set[str] = set()
        self._due: dict[str, None] = {}
        self._in_flight: set[str] = set()
        self._touched_in_flight: set[str] = set()
        self._failed: set[str] = set()
        self._left_out: set[str] = set()
        self._reading: ContainerReading | None = None

    def ids(self) -> frozenset[str]:
        return frozenset(self._told.keys() | self._untold | self._left_out)

    def listed(self, known_before: frozenset[str], ids: Iterable[str]) -> None:
        """A list of all containers has come. `known_before` is `ids()` from before it was asked for.

        What an event brought or took while the list was on its way is newer than the list, and stays so.
        """
        present = list(ids)
        gone_since = known_before - self.ids()
        for id in known_before.difference(present):
            self.forget(id)
        for id in present:
            if id not in gone_since:
                self.touch(id)

    def touch(self, id: str) -> None:
        """Something happened to this container: what is known of it may be out of date."""
        if id not in self._told and id not in self._untold:
            if len(self._told) + len(self._untold) >= self._most:
                self._left_out.add(id)
                self._reading = None
                return
            self._untold.add(id)
        if id in self._in_flight:
            self._touched_in_flight.add(id)
        else:
            self._due[id] = None

    def forget(self, id: str) -> None:
        """The container is gone. An answer about it that is still on its way is ignored."""
        self._told.pop(id, None)
        self._due.pop(id, None)
        self._untold.discard(id)
        self._touched_in_flight.discard(id)
        self._failed.discard(id)
        self._left_out.discard(id)
        self._reading = None
        if self._left_out:
            self.touch(self._left_out.pop())

    def take(self) -> str | None:
        """The next container to ask about; nobody else is given it before `tell` or `fail`."""
        for id in self._due:
            del self._due[id]
            self._in_flight.add(id)
            return id
        return None

    def tell(self, id: str, container: Container | None) -> None:
        """The runtime's answer. None: it has no such container (any more)."""
        self._answered(id)
        if container is None:
            # One that was made anew under the same id in the meantime is due, and so comes back.
            if id not in self._due:
                self.forget(id)
        elif id in self._told or id in self._untold:
            if id in self._failed or self._told.get(id) != container:
                self._reading = None
            self._untold.discard(id)
            self._failed.discard(id)
            self._told[id] = container

    def fail(self, id: str) -> None:
        """It could not be asked. What was known stays (an id's labels do not change), counted as unread."""
        self._answered(id)
        if id in self._told or id in self._untold:
            self._failed.add(id)
            self._reading = None

    def retry_failed(self) -> None:
        for id in tuple(self._failed):
            self.touch(id)

    @property
    def is_complete(self) -> bool:
        """Whether each container was asked about at least once."""
        return self._untold <= self._failed

    @property
    def is_idle(self) -> bool:
        return not self._due and not self._in_flight

    def reading(self) -> ContainerReading:
        if self._reading is None:
            unread = len(self._failed) + len(self._left_out)
            self._reading = ContainerReading(MappingProxyType(dict(self._told)), unread)
        return self._reading

    def _answered(self, id: str) -> None:
        self._in_flight.discard(id)
        if id in self._touched_in_flight:
            self._touched_in_flight.discard(id)
            self._due[id] = None
