"""Limits on each connection and on their number: a guard in front of each connection's HTTP protocol.

A peer may be slow, may send half a request, or may not read its response. Each of these costs a bounded time and a
bounded number of bytes, and none of them holds up another peer.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Protocol, cast

from gpucommons.faces.web.access.tls import Tls

# Limits of connections: their number, times, header bytes and unread responses. Values only.


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`header_s` runs from the accept (including the TLS handshake), later from the first byte of a request.
    `request_s` includes the time that the peer takes to read the response."""

    connections: int = 512
    header_s: float = 10.0
    request_s: float = 30.0
    idle_s: float = 300.0
    header_field_bytes: int = 8192
    sweep_s: float = 1.0
    stop_s: float = 1.5
    unread_bytes: int = 64_000_000

    @property
    def per_origin(self) -> int:
        """Three quarters, so that one origin cannot take every connection."""
        return self.connections - self.connections // 4

    @property
    def for_newcomers(self) -> int:
        """One eighth is reserved for origins that have scraped before."""
        return self.connections - self.connections // 8


# The memory of responses that peers have not read yet: a body counts once, however many connections send it.
#
# Above the limit, the connections that have held their body for longest are closed.


class Holder(Protocol):
    """A connection."""

    def abort(self, reason: str) -> None: ...


@dataclass(slots=True)
class _Body:
    data: bytes
    holders: int = 0


class UnreadBodies:
    def __init__(self, max_bytes: int) -> None:
        self.total_bytes = 0
        self._max_bytes = max_bytes
        # By the identity of the object, which a holder keeps alive.
        self._bodies: dict[int, _Body] = {}
        # In the order in which they began.
        self._held: dict[Holder, bytes] = {}

    def hold(self, holder: Holder, data: bytes) -> None:
        """From now on the connection sends these bytes. The newest connection is never closed."""
        self.release(holder)
        body = self._bodies.get(id(data))
        if body is None:
            body = self._bodies[id(data)] = _Body(data)
            self.total_bytes += len(data)
        body.holders += 1
        self._held[holder] = data
        while self.total_bytes > self._max_bytes and len(self._held) > 1:
            oldest = next(iter(self._held))
            self.release(oldest)
            oldest.abort("unread_memory")

    def release(self, holder: Holder) -> None:
        data = self._held.pop(holder, None)
        if data is None:
            return
        body = self._bodies[id(data)]
        body.holders -= 1
        if not body.holders:
            del self._bodies[id(data)]
            self.total_bytes -= len(data)


# Limits on each connection and on their number: a guard in front of each connection's HTTP protocol.
#
# A guard forwards every event unchanged and keeps time. It does not parse: the HTTP protocol behind it does, and calls
# the guard when a request begins and ends.

log = logging.getLogger(__name__)

_MAX_SCRAPERS = 256


class HttpProtocol(Protocol):
    """HTTP on one connection; protocol.py has it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool:
        """Whether the connection stays open for a response."""
        ...

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self, exc: BaseException | None) -> None: ...
    def close(self) -> None:
        """Take no further request; close after the response to the current one."""
        ...


class ConnectionPhase(Enum):
    SILENT = "silent"
    HEADER = "header"
    ANSWERING = "answering"
    IDLE = "idle"


class Expendable(IntEnum):
    """The connections that are closed when there are too many, in this order. CHECKED: its password is, which takes
    long; credentials that were accepted before are known at once."""

    SILENT = 0
    NEVER_SERVED = 1
    CHECKED = 2
    IDLE = 3
    STREAM = 4


def overdue(phase: ConnectionPhase, waited_s: float, limits: ConnectionLimits) -> str | None:
    """The reason to close a connection that exceeds the limit of its phase, as a label value; None within the limit."""
    if phase is ConnectionPhase.SILENT and waited_s > limits.header_s:
        return "silent"
    if phase is ConnectionPhase.HEADER and waited_s > limits.header_s:
        return "slow_request"
    if phase is ConnectionPhase.ANSWERING and waited_s > limits.request_s:
        return "slow_reader"
    if phase is ConnectionPhase.IDLE and waited_s > limits.idle_s:
        return "idle"
    return None


class ConnectionGuard(asyncio.Protocol):
    """One connection from its accept on, with the TLS settings of that moment."""

    __slots__ = (
        "_connections",
        "_ended_here",
        "_exempt",
        "_http",
        "_http_factory",
        "_loop",
        "_opening",
        "_stalled_since_s",
        "_transport",
        "answered",
        "claimed",
        "origin",
        "phase",
        "served",
        "since_s",
        "tls",
    )

    def __init__(
        self,
        connections: "Connections",
        http_factory: Callable[["ConnectionGuard"], HttpProtocol],
        origin: str,
        tls: Tls | None = None,
    ) -> None:
        self._connections = connections
        self._http_factory = http_factory
        self._loop = asyncio.get_running_loop()
        self._http: HttpProtocol | None = None
        self._transport: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self.answered = False
        self._exempt = False
        self._ended_here = False
        self._stalled_since_s: float | None = None
        self.origin = origin
        self.tls = tls
        self.claimed = False
        # Whether a request of this connection passed the access checks.
        self.served = False
        self.phase = ConnectionPhase.SILENT
        self.since_s = self._loop.time()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._ended_here:
            self._transport.abort()
            return
        if self.tls is not None and not self.tls.admits(transport.get_extra_info("peercert")):
            self.abort("client_certificate")
            return
        self._http = self._http_factory(self)
        self._http.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        now_s = self._loop.time()
        if self.answered:
            self._settle(now_s)
        if self.phase is ConnectionPhase.SILENT:
            self.phase = ConnectionPhase.HEADER
        elif self.phase is ConnectionPhase.IDLE:
            self.phase, self.since_s = ConnectionPhase.HEADER, now_s
        if self._http is not None:
            self._http.data_received(data)

    def eof_received(self) -> bool:
        """A peer that closed its sending side still gets its response, if the connection is not TLS."""
        has_response = self._http is not None and self._http.eof_received()
        return has_response and self.tls is None

    def pause_writing(self) -> None:
        self._stalled_since_s = self._loop.time()
        if self._http is not None:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        self._stalled_since_s = None
        if self._http is not None:
            self._http.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._http is not None:
            self._http.connection_lost(exc)
            # They refer to each other, and must not wait for the garbage collector.
            self._http = None
        self._connections.discard(self)

    # Called by the HTTP protocol and its handler.

    def request_began(self) -> None:
        self.phase, self.since_s, self.answered = ConnectionPhase.ANSWERING, self._loop.time(), False

    def request_ended(self) -> None:
        self.answered, self._exempt = True, False
        self._settle(self._loop.time())
        if self._connections.stopping:
            self._close_after_response()

    def count_refusal(self, reason: str) -> None:
        self._connections.refused[reason] += 1

    def sends(self, body: bytes) -> None:
        """The body counts as unread until the peer has read all of it."""
        self._connections.unread.hold(self, body)

    def exempt_stream(self) -> None:
        """This response has no time limit; a peer that stops reading it is still closed."""
        self._exempt = True

    # Called by the listener and the sweeper.

    @property
    def expendable(self) -> Expendable | None:
        """None while a request with access runs, and while the next request of a connection with access arrives."""
        if self.phase is ConnectionPhase.SILENT:
            return Expendable.SILENT
        if self._exempt:
            return Expendable.STREAM
        runs = self.phase is ConnectionPhase.ANSWERING and not self.answered
        if not self.served:
            return Expendable.CHECKED if runs else Expendable.NEVER_SERVED
        return Expendable.IDLE if self.phase is ConnectionPhase.IDLE else None

    @property
    def transport(self) -> asyncio.Transport | None:
        """None until the connection is complete."""
        return self._transport

    def claim(self) -> "ConnectionGuard":
        """A protocol factory: from this call on the socket belongs to a transport."""
        self.claimed = True
        return self

    def opened_by(self, opening: asyncio.Task[None]) -> None:
        """The task that completes the connection; `cut` cancels it while it runs."""
        self._opening = opening

    def check(self, now_s: float) -> None:
        """Close the connection if it exceeds the limit of its phase."""
        if self.answered:
            self._settle(now_s)
        since_s = self.since_s
        if self._exempt:
            if self._stalled_since_s is None:
                return
            since_s = self._stalled_since_s
        reason = overdue(self.phase, now_s - since_s, self._connections.limits)
        if reason is not None:
            self.abort(reason)

    def abort(self, reason: str) -> None:
        """Close at once and count the reason. The end of an idle connection is not a refusal and is not counted."""
        if reason != "idle" and not self._ended_here:
            self.count_refusal(reason)
        self.cut()

    def finish(self) -> None:
        """The agent stops: close now if no request runs, otherwise after the response."""
        if self._transport is None:
            self.cut()
        elif self.phase in (ConnectionPhase.SILENT, ConnectionPhase.IDLE) or self.answered:
            self._close_after_response()
            self._transport.close()
        elif self.phase is ConnectionPhase.ANSWERING:
            self._close_after_response()

    def cut(self) -> None:
        """Close at once, even during a request, and count nothing."""
        self._ended_here = True
        if self._transport is not None:
            self._transport.abort()
        elif self._opening is not None:
            self._opening.cancel()

    def _close_after_response(self) -> None:
        self._ended_here = True
        if self._http is not None:
            self._http.close()

    def _settle(self, now_s: float) -> None:
        """The response is complete once the peer has read all of it; until then the request's clock runs."""
        transport = self._transport
        if transport is not None and not transport.is_closing() and transport.get_write_buffer_size() == 0:
            self.phase, self.since_s, self.answered = ConnectionPhase.IDLE, now_s, False
            self._connections.unread.release(self)


class Connections:
    """Every guard of the process: the maximum number, the sweeper, the counts."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.refused: Counter[str] = Counter()
        self.unread = UnreadBodies(limits.unread_bytes)
        self.stopping = False
        # A dict, not a set: the order is that of arrival.
        self._guards: dict[ConnectionGuard, None] = {}
        self._of_origin: Counter[str] = Counter()
        self._scrapers: OrderedDict[str, None] = OrderedDict()
        self._empty: asyncio.Future[None] | None = None
        self._is_used = asyncio.Event()

    @property
    def open(self) -> int:
        return len(self._guards)

    @property
    def guards(self) -> tuple[ConnectionGuard, ...]:
        return tuple(self._guards)

    def admit(self, guard: ConnectionGuard) -> bool:
        """Admit the guard below the maximum of its origin and of all. At a maximum, close the most expendable
        connection; only running requests can keep out others, and those have a time limit."""
        if self.stopping:
            return False
        most = self.limits.connections if guard.origin in self._scrapers else self.limits.for_newcomers
        if self._of_origin[guard.origin] >= self.limits.per_origin:
            has_room = self._close_one(guard.origin) or self._refuse("origin_limit")
        elif len(self._guards) >= most:
            # A newcomer takes the place of no origin that has scraped before.
            has_room = self._close_one(None, guard.origin in self._scrapers) or self._refuse("connection_limit")
        else:
            has_room = True
        if has_room:
            self._guards[guard] = None
            self._of_origin[guard.origin] += 1
            self._is_used.set()
        return has_room

    def scraped(self, origin: str) -> None:
        """A scrape of this origin succeeded: from now on it may use the reserved connections."""
        self._scrapers[origin] = None
        self._scrapers.move_to_end(origin)
        if len(self._scrapers) > _MAX_SCRAPERS:
            self._scrapers.popitem(last=False)

    def _refuse(self, reason: str) -> bool:
        self.refused[reason] += 1
        return False

    def _close_one(self, origin: str | None, of_scrapers: bool = True) -> bool:
        """Close the most expendable connection, of this origin if one is given; otherwise the origin with the most
        connections loses one first. False if every connection is needed. Those of scrapers only with `of_scrapers`."""
        first: tuple[Expendable, int, float, ConnectionGuard] | None = None
        for guard in self._guards:
            expendable = guard.expendable
            if expendable is None or (origin is not None and guard.origin != origin):
                continue
            if guard.origin in self._scrapers and not of_scrapers:
                continue
            rank = (expendable, -self._of_origin[guard.origin], guard.since_s)
            if first is None or rank < first[:3]:
                first = (*rank, guard)
        if first is None:
            return False
        expendable, _, _, guard = first
        guard.abort("silent" if expendable is Expendable.SILENT else "evicted")
        self.discard(guard)
        return True

    def discard(self, guard: ConnectionGuard) -> None:
        self.unread.release(guard)
        if guard in self._guards:
            del self._guards[guard]
            self._of_origin[guard.origin] -= 1
            if not self._of_origin[guard.origin]:
                del self._of_origin[guard.origin]
        if not self._guards and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def sweep(self, now_s: float) -> None:
        for guard in self.guards:
            guard.check(now_s)

    async def sweep_forever(self) -> None:
        """Rests while there is no connection."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._guards:
                self._is_used.clear()
                await self._is_used.wait()
            await asyncio.sleep(self.limits.sweep_s)
            try:
                self.sweep(loop.time())
            except Exception:
                # Without the sweeper no time limit would be enforced, so it survives an error.
                log.exception("checking the connections for their time limits failed; the next check follows")

    async def drain(self) -> None:
        """Finish running requests within `stop_s`; then close the rest."""
        self.stopping = True
        for guard in self.guards:
            guard.finish()
        await self._until_empty(self.limits.stop_s)
        for guard in self.guards:
            guard.cut()
        await self._until_empty(0.1)

    async def _until_empty(self, timeout_s: float) -> None:
        if self._guards:
            self._empty = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._empty], timeout=timeout_s)
