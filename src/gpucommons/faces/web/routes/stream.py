"""Server-sent events for viewers: the whole document once, then one delta per snapshot.

A delta is made once for all viewers that see the same; without viewers nothing is made. A viewer that reads too slowly
gets a whole document again, and the connection's guard closes one that does not read at all. The events are
`snapshot`, `delta`, and `beat` when nothing else is sent.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping

from gpucommons.faces.documents.delta import delta
from gpucommons.faces.documents.values import Json, encode
from gpucommons.model.viewer import Viewer

BEAT_S = 15.0
MAX_WAITING = 8
# How long a browser waits before it reconnects.
_RETRY_MS = 2000
_WOKEN_AT_ONCE = 8
_BEAT = b"event: beat\ndata: {}\n\n"

Document = Mapping[str, Json]


class _Audience:
    """The connections that see the same document. `document` is the state after the last event."""

    def __init__(self, document: Document | None) -> None:
        self.document = document
        self.connections: set[_Connection] = set()
        self._whole: bytes | None = None

    def advance(self, document: Document) -> None:
        before, self.document, self._whole = self.document, document, None
        event = b"" if before is None else _event("delta", document["sequence"], delta(before, document))
        for connection in self.connections:
            connection.offer(event)
        _wake(list(self.connections))

    def whole(self) -> bytes:
        """The document as an event, encoded once for all connections that begin between two snapshots."""
        if self._whole is None and self.document is not None:
            self._whole = _event("snapshot", self.document["sequence"], self.document)
        return self._whole or b""


class _Connection:
    """The events that wait for one connection. A full queue is dropped, and a whole document follows instead."""

    __slots__ = ("_events", "_wake", "closed", "needs_whole")

    def __init__(self) -> None:
        self._events: deque[bytes] = deque()
        self._wake: asyncio.Future[bool] | None = None
        self.needs_whole = True
        self.closed = False

    def offer(self, event: bytes) -> None:
        if not self.needs_whole:
            self._events.append(event)
            if len(self._events) > MAX_WAITING:
                self._events.clear()
                self.needs_whole = True

    def close(self) -> None:
        self.closed = True
        self.wake()

    def wake(self) -> None:
        if self._wake is not None:
            _settle(self._wake, True)

    def take(self) -> bytes:
        """The next event, or nothing. The same bytes are sent to the whole audience: joined they would be a copy."""
        return self._events.popleft() if self._events else b""

    async def wait(self, timeout_s: float) -> bool:
        """Waits for an event or the timeout. False after a timeout."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        self._wake = woken
        timer = loop.call_later(timeout_s, _settle, woken, False)
        try:
            return await woken
        finally:
            timer.cancel()
            self._wake = None


def _wake(connections: list[_Connection]) -> None:
    """Wakes a few in each iteration of the event loop, so that a scrape in between does not wait for all."""
    for connection in connections[:_WOKEN_AT_ONCE]:
        connection.wake()
    if len(connections) > _WOKEN_AT_ONCE:
        asyncio.get_running_loop().call_soon(_wake, connections[_WOKEN_AT_ONCE:])


def _settle(woken: "asyncio.Future[bool]", came: bool) -> None:
    if not woken.done():
        woken.set_result(came)


class Broadcaster:
    """`document_of` returns the current document of one viewer; None before the first snapshot."""

    def __init__(self, document_of: Callable[[Viewer], Document | None], beat_s: float = BEAT_S) -> None:
        self._document_of = document_of
        self._beat_s = beat_s
        self._audiences: dict[Viewer, _Audience] = {}
        self._closed = False

    def publish(self) -> None:
        """Sends a new snapshot: one delta per audience, whatever its size."""
        for viewer, audience in self._audiences.items():
            document = self._document_of(viewer)
            if document is not None:
                audience.advance(document)

    def close(self) -> None:
        """Ends every stream after its last complete event."""
        self._closed = True
        for audience in self._audiences.values():
            for connection in audience.connections:
                connection.close()

    async def events(self, viewer: Viewer) -> AsyncGenerator[bytes, None]:
        """The events of one connection, until it ends or the agent stops."""
        connection = _Connection()
        audience = self._join(viewer, connection)
        try:
            yield b"retry: %d\n\n" % _RETRY_MS
            while not (connection.closed or self._closed):
                if connection.needs_whole and audience.document is not None:
                    connection.needs_whole = False
                    yield audience.whole()
                elif waiting := connection.take():
                    yield waiting
                elif not await connection.wait(self._beat_s):
                    yield _BEAT
        finally:
            self._leave(viewer, audience, connection)

    def _join(self, viewer: Viewer, connection: _Connection) -> _Audience:
        audience = self._audiences.get(viewer)
        if audience is None:
            audience = self._audiences[viewer] = _Audience(self._document_of(viewer))
        audience.connections.add(connection)
        return audience

    def _leave(self, viewer: Viewer, audience: _Audience, connection: _Connection) -> None:
        audience.connections.discard(connection)
        if not audience.connections and self._audiences.get(viewer) is audience:
            del self._audiences[viewer]


def _event(name: str, sequence: Json, data: Json) -> bytes:
    # JSON escapes line breaks, so the data is one line whatever names it contains.
    return b"event: %s\nid: %s\ndata: %s\n\n" % (name.encode(), str(sequence).encode(), encode(data))
