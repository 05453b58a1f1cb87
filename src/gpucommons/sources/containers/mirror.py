"""The containers of one runtime, kept current by its events. Pure: it says which container to inspect next.

An event only marks its container as due for inspection, so repeated, replayed and late events do no harm. Once no
container is due, the mirror equals what the runtime has.
"""

from collections.abc import Iterable
from types import MappingProxyType

from gpucommons.model.workloads import Container, ContainerReading


class Mirror:
    """`take` an id, inspect it, then `put` or `fail`. Holds at most `most` containers."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[str, Container] = {}
        self._uninspected: set[str] = set()
        self._due: dict[str, None] = {}
        self._in_flight: set[str] = set()
        self._touched_in_flight: set[str] = set()
        self._failed: set[str] = set()
        self._left_out: set[str] = set()
        self._reading: ContainerReading | None = None

    def ids(self) -> frozenset[str]:
        return frozenset(self._known.keys() | self._uninspected | self._left_out)

    def listed(self, known_before: frozenset[str], ids: Iterable[str]) -> None:
        """Take over a list of all containers. `known_before` is `ids()` from before the list was requested.

        An event that arrived after the request is newer than the list and takes precedence.
        """
        present = list(ids)
        gone_since = known_before - self.ids()
        for id in known_before.difference(present):
            self.forget(id)
        for id in present:
            if id not in gone_since:
                self.touch(id)

    def touch(self, id: str) -> None:
        """Mark a container as due: what is known of it may be out of date."""
        if id not in self._known and id not in self._uninspected:
            if len(self._known) + len(self._uninspected) >= self._most:
                self._left_out.add(id)
                return
            self._uninspected.add(id)
        if id in self._in_flight:
            self._touched_in_flight.add(id)
        else:
            self._due[id] = None

    def forget(self, id: str) -> None:
        """Remove a container. An inspection of it that is still under way will be ignored."""
        self._known.pop(id, None)
        self._due.pop(id, None)
        self._uninspected.discard(id)
        self._touched_in_flight.discard(id)
        self._failed.discard(id)
        self._left_out.discard(id)
        self._reading = None
        if self._left_out:
            self.touch(self._left_out.pop())

    def take(self) -> str | None:
        """The next container to inspect. It is not returned again before `put` or `fail`."""
        for id in self._due:
            del self._due[id]
            self._in_flight.add(id)
            return id
        return None

    def put(self, id: str, container: Container | None) -> None:
        """The result of an inspection. None means that the container does not exist."""
        self._finish(id)
        if container is None:
            # A container that was created again under the same id in the meantime is due, and so comes back.
            if id not in self._due:
                self.forget(id)
        elif id in self._known or id in self._uninspected:
            self._uninspected.discard(id)
            self._failed.discard(id)
            if self._known.get(id) != container:
                self._known[id] = container
                self._reading = None

    def fail(self, id: str) -> None:
        """The inspection failed. What was known stays: the labels of an id do not change."""
        self._finish(id)
        if id in self._known or id in self._uninspected:
            self._failed.add(id)

    def retry_failed(self) -> None:
        for id in tuple(self._failed):
            self.touch(id)

    @property
    def is_complete(self) -> bool:
        """Whether every container was inspected at least once, successfully or not."""
        return self._uninspected <= self._failed

    def reading(self) -> ContainerReading:
        if self._reading is None:
            self._reading = ContainerReading(MappingProxyType(dict(self._known)))
        return self._reading

    def _finish(self, id: str) -> None:
        self._in_flight.discard(id)
        if id in self._touched_in_flight:
            self._touched_in_flight.discard(id)
            self._due[id] = None
