"""Bounds on what a peer may cost: a guard in front of each connection's HTTP protocol, and their sum.

A guard forwards every event unchanged and only keeps time. It never looks into the bytes: the HTTP
protocol behind it parses, and the dispatcher tells the guard when a request begins and ends.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Protocol, cast

from gpucommons.web.access.tls import Tls
from gpucommons.web.http.limits import ConnectionLimits

log = logging.getLogger(__name__)

# A peer that ended in the middle of its request; a whole one would have reached the dispatcher long before.
_HALF_ASKED_S = 0.5


class HttpProtocol(Protocol):
    """The part of aiohttp's request handler that a guard uses; all of it is public there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self, exc: BaseException | None) -> None: ...
    def close(self) -> None:
        """Take no further request; end when the one at work has been answered."""
        ...


class ConnectionPhase(Enum):
    SILENT = "silent"
    HEADER = "header"
    ANSWERING = "answering"
    IDLE = "idle"


def overdue(phase: ConnectionPhase, waited_s: float, limits: ConnectionLimits) -> str | None:
    """Why a connection has outstayed its phase, as a label value; None while it may stay."""
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
    """One connection, from the moment it was accepted, with the TLS settings of that moment."""

    __slots__ = (
        "_connections",
        "_ended_here",
        "_exempt",
        "_http",
        "_http_factory",
        "_loop",
        "_opening",
        "_peer_ended_s",
        "_stalled_since_s",
        "_transport",
        "answered",
        "claimed",
        "phase",
        "since_s",
        "tls",
    )

    def __init__(
        self,
        connections: "Connections",
        http_factory: Callable[[], HttpProtocol],
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
        self._peer_ended_s: float | None = None
        self._ended_here = False
        self._stalled_since_s: float | None = None
        self.tls = tls
        self.claimed = False
        self.phase = ConnectionPhase.SILENT
        self.since_s = self._loop.time()

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._ended_here:
            self._transport.abort()
            return
        if self.tls is not None and not self.tls.admits(transport.get_extra_info("peercert")):
            self.abort("client_certificate")
            return
        self._http = self._http_factory()
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
        """A peer that has said all it will say still gets its answer, if it asked in the clear."""
        self._peer_ended_s = self._loop.time()
        if self._http is None:
            return False
        self._http.eof_received()
        waits = self.phase is ConnectionPhase.HEADER or (self.phase is ConnectionPhase.ANSWERING and not self.answered)
        half_open = self.tls is None and waits
        if half_open:
            self._http.close()
        return half_open

    def pause_writing(self) -> None:
        self._stalled_since_s = self._loop.time()
        if self._http is not None:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        self._stalled_since_s = None
        if self._http is not None:
            self._http.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        # Closed from our side before a request was understood: the parser answered 400 and gave up.
        if self.phase is ConnectionPhase.HEADER and exc is None and self._peer_ended_s is None and not self._ended_here:
            self._connections.refused["malformed"] += 1
        if self._http is not None:
            self._http.connection_lost(exc)
        self._connections.discard(self)

    # What the dispatcher tells.

    def request_began(self) -> None:
        self.phase, self.since_s, self.answered = ConnectionPhase.ANSWERING, self._loop.time(), False

    def request_ended(self) -> None:
        self.answered, self._exempt = True, False
        self._settle(self._loop.time())
        if self._connections.stopping:
            self._end_after_answer()

    def exempt_stream(self) -> None:
        """This answer goes on for as long as it likes; a peer that stops reading it is still ended."""
        self._exempt = True

    # What the listener and the sweeper decide.

    @property
    def connected(self) -> bool:
        return self._transport is not None

    def claim(self) -> "ConnectionGuard":
        """A protocol factory: from this call on the socket belongs to a transport."""
        self.claimed = True
        return self

    def opened_by(self, opening: asyncio.Task[None]) -> None:
        """The task that completes the connection: ending the guard before that cancels it."""
        self._opening = opening

    def check(self, now_s: float) -> None:
        """End the connection if it has outstayed its phase."""
        if self.answered:
            self._settle(now_s)
        if (
            self.phase is ConnectionPhase.HEADER
            and self._peer_ended_s is not None
            and now_s - self._peer_ended_s > _HALF_ASKED_S
        ):
            self.cut()
            return
        since_s = self.since_s
        if self._exempt:
            if self._stalled_since_s is None:
                return
            since_s = self._stalled_since_s
        reason = overdue(self.phase, now_s - since_s, self._connections.limits)
        if reason is not None:
            self.abort(reason)

    def abort(self, reason: str) -> None:
        """End at once. A connection that was merely kept alive is not a refusal, so it is not counted."""
        if reason != "idle" and not self._ended_here:
            self._connections.refused[reason] += 1
        self.cut()

    def finish(self) -> None:
        """The agent stops: end now if nothing is under way, else after the answer."""
        if self._transport is None:
            self.cut()
        elif self.phase in (ConnectionPhase.SILENT, ConnectionPhase.IDLE) or self.answered:
            self._end_after_answer()
            self._transport.close()
        elif self.phase is ConnectionPhase.ANSWERING:
            self._end_after_answer()

    def cut(self) -> None:
        """End at once, whatever is under way, and count nothing."""
        self._ended_here = True
        if self._transport is not None:
            self._transport.abort()
        elif self._opening is not None:
            self._opening.cancel()

    def _end_after_answer(self) -> None:
        self._ended_here = True
        if self._http is not None:
            self._http.close()

    def _settle(self, now_s: float) -> None:
        """The answer is out once the peer has taken all of it; until then the request's clock runs on."""
        transport = self._transport
        if transport is not None and not transport.is_closing() and transport.get_write_buffer_size() == 0:
            self.phase, self.since_s, self.answered = ConnectionPhase.IDLE, now_s, False


class Connections:
    """Every guard of the process: the cap, the sweeper, the counts."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.refused: Counter[str] = Counter()
        self.stopping = False
        # A dict, not a set: the order is that of arrival.
        self._guards: dict[ConnectionGuard, None] = {}
        self._empty: asyncio.Future[None] | None = None

    @property
    def open(self) -> int:
        return len(self._guards)

    @property
    def guards(self) -> tuple[ConnectionGuard, ...]:
        return tuple(self._guards)

    def admit(self, guard: ConnectionGuard) -> bool:
        """Take the guard in if there is room. When full, the longest silent one makes room, but nobody who
        has ever asked for something: so those who say nothing cannot keep out those who do."""
        if self.stopping:
            return False
        if len(self._guards) >= self.limits.connections:
            silent = next((known for known in self._guards if known.phase is ConnectionPhase.SILENT), None)
            if silent is None:
                self.refused["connection_limit"] += 1
                return False
            silent.abort("silent")
            self.discard(silent)
        self._guards[guard] = None
        return True

    def discard(self, guard: ConnectionGuard) -> None:
        self._guards.pop(guard, None)
        if not self._guards and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def sweep(self, now_s: float) -> None:
        for guard in self.guards:
            guard.check(now_s)

    async def sweep_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.limits.sweep_s)
            try:
                self.sweep(loop.time())
            except Exception:
                # Without a sweeper every bound on time would be gone: it outlives its own mistakes.
                log.exception("a sweep of the connections failed; the next one comes as usual")

    async def drain(self) -> None:
        """Let what was begun be finished, within `stop_s`; then cut what is left."""
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


def guard_of(transport: asyncio.BaseTransport | None) -> ConnectionGuard | None:
    """The guard of a request's connection; None once the connection is gone."""
    protocol = transport.get_protocol() if transport is not None else None
    return protocol if isinstance(protocol, ConnectionGuard) else None
