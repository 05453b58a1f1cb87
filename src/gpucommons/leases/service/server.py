"""The lease socket: JSON lines, one request for each connection. The lease lasts as long as its connection.

Connections and requests are limited for each user and container, lines in length; a client that does not read is not
waited for.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from gpucommons.base.peers import Admins, ConnectionCaps, PeerAccount, RequestRate, accounts_of, look_at, process_of
from gpucommons.base.unix_listener import UnixListener, listen, peer_credentials, peer_groups
from gpucommons.leases.policy.values import LeaseBusy, LeaseRefused, LeaseUnknown
from gpucommons.leases.protocol import (
    MAX_LINE_BYTES,
    CancelRequest,
    LeaseLine,
    LeaseMessageError,
    Line,
    QueueRequest,
    ReserveRequest,
    ResumeRequest,
    RunRequest,
    encoded_line,
    is_done,
    parse_request,
)
from gpucommons.leases.service.service import LeaseClient, LeaseService
from gpucommons.model.leases import LeasesReading

_SOCKET_MODE: Final = 0o666
_BACKLOG: Final = 1024
_TIMEOUT_S: Final = 5.0
# For each user, and for each container.
_MAX_CONNECTIONS: Final = 256
_MAX_CONNECTIONS_IN_ALL: Final = 4096
_REQUESTS_PER_S: Final = 20.0
_REQUEST_BURST: Final = 300.0
# What may wait for a client that does not read. Then it gets no further lines about its place.
_MAX_UNREAD_BYTES: Final = 64 * 1024
_TICK_S: Final = 1.0
_REPORT_S: Final = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseAccess:
    """How the server names users and decides what they may do and see. `user_name` may look in a file.

    `sees_names` gets a uid and whether its process is local, not in a container. `document` makes the answer to `queue`
    for the viewer with this uid and name.
    """

    admins: Admins
    user_name: Callable[[int], str]
    sees_names: Callable[[int, bool], bool]
    document: Callable[[LeasesReading, int, str, bool], object]


@dataclass(frozen=True, slots=True)
class _Peer:
    uid: int
    pid: int
    start_ticks: int
    user: str
    is_admin: bool
    is_local: bool
    accounts: tuple[PeerAccount, ...]


class LeaseServer:
    def __init__(self, path: str, service: LeaseService, access: LeaseAccess) -> None:
        self._path = path
        self.service = service
        self._access = access
        self._socket: UnixListener | None = None
        self._listener: asyncio.Server | None = None
        self._caps = ConnectionCaps({"uid": _MAX_CONNECTIONS, "container": _MAX_CONNECTIONS})
        self._rate = RequestRate(_REQUESTS_PER_S, _REQUEST_BURST)
        self._writers: set[asyncio.StreamWriter] = set()
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises ListenError if the socket cannot be served."""
        self._socket = listen(self._path, "leases.socket", _SOCKET_MODE)
        self._listener = await asyncio.start_unix_server(
            self._serve, sock=self._socket, limit=MAX_LINE_BYTES, backlog=_BACKLOG
        )
        self._ticking = asyncio.create_task(self._tick(), name="lease-clock")

    async def stop(self) -> None:
        """Closes the connections. The leases go on: the record keeps them for the next agent."""
        if self._socket is None or self._listener is None or self._ticking is None:
            return
        self._ticking.cancel()
        self._socket.remove_file()
        self._listener.close()
        self.service.close()
        for writer in list(self._writers):
            writer.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            try:
                self.service.tick()
            except Exception:
                log.exception("leases: an error in the queue; it goes on")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = self._peer(writer)
        over = self._caps.add(peer.accounts)
        self._writers.add(writer)
        try:
            if over or (peer.accounts and len(self._writers) > _MAX_CONNECTIONS_IN_ALL):
                _send(writer, _error("too many connections to the lease socket: close some, or try again later"))
            else:
                await self._converse(peer, reader, writer)
            async with asyncio.timeout(_TIMEOUT_S):
                await writer.drain()
        except (TimeoutError, ValueError, OSError):
            log.debug("lease socket: dropped an unresponsive client")
        finally:
            self._caps.remove(peer.accounts)
            self._writers.discard(writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _peer(self, writer: asyncio.StreamWriter) -> _Peer:
        peer = writer.get_extra_info("socket")
        credentials = peer_credentials(peer)
        seen, process = look_at(credentials.pid), process_of(credentials)
        return _Peer(
            credentials.uid,
            0 if process is None else process.pid,
            0 if process is None else process.start_ticks,
            self._access.user_name(credentials.uid),
            self._access.admins.include(credentials, peer_groups(peer), seen.is_local),
            seen.is_local,
            accounts_of(credentials.uid, seen),
        )

    async def _converse(self, peer: _Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_TIMEOUT_S):
            raw = await reader.readline()
        if not raw:
            return
        if not self._rate.take(peer.accounts, monotonic()):
            _send(writer, _error(f"too many requests: at most {_REQUESTS_PER_S:g} a second for each user"))
            return
        try:
            request = parse_request(raw)
            if isinstance(request, RunRequest | ResumeRequest):
                await self._lease(peer, request, reader, writer)
            else:
                _send(writer, {"event": "answer", "answer": self._answer(peer, request)})
        except (LeaseMessageError, LeaseRefused) as error:
            kind = {"busy": isinstance(error, LeaseBusy), "unknown": isinstance(error, LeaseUnknown)}
            _send(writer, {**_error(str(error)), **kind})

    async def _lease(
        self,
        peer: _Peer,
        request: RunRequest | ResumeRequest,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        client = LeaseClient(
            peer.uid,
            peer.user,
            peer.pid,
            peer.start_ticks,
            peer.is_admin or self._access.sees_names(peer.uid, peer.is_local),
            lambda line: _send(writer, line),
            request.updates,
        )
        service = self.service
        id = service.open(client, request) if isinstance(request, RunRequest) else service.resume(client, request)
        try:
            while raw := await reader.readline():
                done, report = is_done(raw)
                if done:
                    service.done(id, report)
                    if report:
                        # The client ends the connection when it has its report.
                        async with asyncio.timeout(_REPORT_S):
                            await reader.readline()
                    return
        finally:
            service.left(id)

    def _answer(self, peer: _Peer, request: LeaseLine) -> object:
        if isinstance(request, QueueRequest):
            return self._access.document(self.service.reading, peer.uid, peer.user, peer.is_local)
        if isinstance(request, ReserveRequest):
            made = self.service.reserve(peer.uid, peer.user, request)
            slots = [self.service.reading.slots.get(uuid, uuid) for uuid in made.slots]
            return {"id": made.id, "from_s": made.from_s, "until_s": made.until_s, "gpus": made.gpus, "slots": slots}
        assert isinstance(request, CancelRequest)
        act = self.service.cancel if request.kind == "cancel" else self.service.unreserve
        return act(request.id, peer.uid, peer.is_admin)


def _error(text: str) -> Line:
    return {"event": "error", "error": text}


def _send(writer: asyncio.StreamWriter, line: Line) -> None:
    """Never waits. A client that does not read gets no further lines about its place, but all others."""
    transport = writer.transport
    if transport.is_closing():
        return
    if line.get("event") == "waiting" and transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
        return
    writer.write(encoded_line(line))
