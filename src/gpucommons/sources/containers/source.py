"""The containers of Docker or Podman: one list and one inspection each at the start, then only what changes.

The mirror is pure: it says which container to inspect after an event.
"""

import asyncio
import time
from collections.abc import Iterable
from types import MappingProxyType

from gpucommons.base.backoff import Backoff
from gpucommons.model.workloads import Container, ContainerReading
from gpucommons.sources.containers.engine import DOCKER, ContainerEngine, EngineKind
from gpucommons.sources.source import Latest, SourceAbsent, SourceError, keep_following

# The containers of one runtime, kept current by its events. Pure: it says which container to inspect next.
#
# An event only marks its container as due for inspection, so repeated, replayed and late events do no harm. Once no
# container is due, the mirror equals what the runtime has.


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

    def take_list(self, known_before: frozenset[str], ids: Iterable[str]) -> None:
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


# The containers of Docker or Podman: one list and one inspection each at the start, then one event stream.
#
# A background task keeps the mirror; `read` returns its reading. Does not poll for changes and starts no program.

_MAX_CONTAINERS = 4096
_INSPECTS_AT_ONCE = 4
_TIMEOUT_S = 10.0
# Without a ping, a stream without events looks like a hung daemon.
_HEARTBEAT_S = 30.0
# Daemons drop events for slow readers, and Podman drops them when its log rotates: a new list repairs that.
_RELIST_S = 300.0
# The daemon's time stamp of an event may be slightly earlier than the start of the stream.
_OVERLAP_S = 1.0


class ContainerFollower:
    """`run` must be running. `newest` is what `read` last returned, for other threads; None while it fails."""

    def __init__(
        self,
        kind: EngineKind = DOCKER,
        socket: str | None = None,
        *,
        timeout_s: float = _TIMEOUT_S,
        heartbeat_s: float = _HEARTBEAT_S,
        relist_s: float = _RELIST_S,
        backoff: Backoff | None = None,
    ) -> None:
        self.newest: ContainerReading | None = None
        self._kind = kind
        self._socket = socket or kind.default_socket
        self._timeout_s = timeout_s
        self._heartbeat_s = heartbeat_s
        self._relist_s = relist_s
        self._backoff = backoff or Backoff()
        self._latest: Latest[Mirror] = Latest(f"listing the containers of {kind.title}")

    def read(self) -> ContainerReading:
        try:
            self.newest = self._latest.read().reading()
        except (SourceError, SourceAbsent):
            self.newest = None
            raise
        return self.newest

    async def run(self) -> None:
        """Keep the mirror current until cancelled, across restarts of the daemon."""
        await keep_following(self._follow, self._latest.fail_by, self._backoff)

    async def _follow(self) -> None:
        """One connection to the daemon, until it is lost: always ends with an exception."""
        engine = ContainerEngine(self._kind, self._socket, self._timeout_s)
        await engine.connect()
        session = _Session(engine, time.time() - _OVERLAP_S)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(session.follow_events())
            for _ in range(_INSPECTS_AT_ONCE):
                tasks.create_task(session.inspect_due())
            await session.relist()
            await session.complete.wait()
            self._backoff.reset()
            self._latest.succeed(session.mirror)
            await session.check_periodically(self._heartbeat_s, self._relist_s)


class _Session:
    """The concurrent tasks that follow one daemon."""

    def __init__(self, engine: ContainerEngine, since_s: float) -> None:
        self.mirror = Mirror(_MAX_CONTAINERS)
        self.complete = asyncio.Event()
        self._engine = engine
        self._since_s = since_s
        self._due = asyncio.Event()
        self._listed = False

    async def follow_events(self) -> None:
        async for event in self._engine.events(self._since_s):
            if event.is_gone:
                self.mirror.forget(event.container_id)
            else:
                self.mirror.touch(event.container_id)
            self._advance()

    async def inspect_due(self) -> None:
        while True:
            id = self.mirror.take()
            if id is None:
                self._due.clear()
                await self._due.wait()
                continue
            try:
                self.mirror.put(id, await self._engine.inspect(id))
            except SourceError:
                # One container that cannot be inspected (Docker may hold its lock) does not end the session.
                self.mirror.fail(id)
            self._advance()

    async def relist(self) -> None:
        known_before = self.mirror.ids()
        self.mirror.take_list(known_before, await self._engine.container_ids())
        self._listed = True
        self._advance()

    async def check_periodically(self, heartbeat_s: float, relist_s: float) -> None:
        since_list_s = 0.0
        while True:
            await asyncio.sleep(heartbeat_s)
            await self._engine.ping()
            self.mirror.retry_failed()
            since_list_s += heartbeat_s
            if since_list_s >= relist_s:
                await self.relist()
                since_list_s = 0.0
            self._advance()

    def _advance(self) -> None:
        self._due.set()
        if self._listed and self.mirror.is_complete:
            self.complete.set()
