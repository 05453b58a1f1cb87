"""The lease socket: JSON lines, one request for each connection. The lease lasts as long as its connection.

A client that does not read is not waited for.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from gpucommons.base.line_server import LineConnection, LineLimits, LinePeer, LineServer
from gpucommons.base.peers import Admins, process_of
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
    encode_line,
    is_done,
    parse_request,
)
from gpucommons.leases.service.service import LeaseClient, LeaseService
from gpucommons.model.leases import LeasesReading

_LIMITS: Final = LineLimits(
    MAX_LINE_BYTES, connections=256, connections_in_all=4096, requests_per_s=20.0, request_burst=300.0
)
# What may wait for a client that does not read. Then it gets no further lines about its place.
_MAX_UNREAD_BYTES: Final = 64 * 1024
_TICK_S: Final = 1.0
_REPORT_S: Final = 5.0

log = logging.getLogger(__name__)


class LeaseAccess(NamedTuple):
    """How the server names users and decides what they may do and see. `user_name` may look in a file.

    `sees_names` gets a uid and whether its process is local, not in a container. `document` makes the answer to `queue`
    for the viewer with this uid and name.
    """

    admins: Admins
    user_name: Callable[[int], str]
    sees_names: Callable[[int, bool], bool]
    document: Callable[[LeasesReading, int, str, bool], object]


class _User(NamedTuple):
    """A client as the service sees it."""

    uid: int
    pid: int
    start_ticks: int
    user: str
    is_admin: bool
    is_local: bool


class LeaseServer:
    def __init__(self, path: str, service: LeaseService, access: LeaseAccess) -> None:
        self._path = path
        self.service = service
        self._access = access
        self.lines = LineServer("the lease socket", _LIMITS, self._converse, lambda reason: encode_line(_error(reason)))
        self._ticking: asyncio.Task[None] | None = None
        self._is_used = asyncio.Event()

    async def start(self) -> None:
        """Raises ListenError if the socket cannot be served."""
        await self.lines.start([self._path], "leases.socket")
        self._ticking = asyncio.create_task(self._keep_ticking(), name="lease-clock")

    async def stop(self) -> None:
        """Closes the connections. The leases go on: the record keeps them for the next agent."""
        if self._ticking is None:
            return
        self._ticking.cancel()
        self.service.close()
        await self.lines.stop()

    def wake(self) -> None:
        """Call before the service is used. The clock rests while there is no request: nothing changes then."""
        if not self._is_used.is_set():
            # The time of day may have been set meanwhile.
            self._tick()
            self._is_used.set()

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._tick()
            if not self.service.has_requests:
                self._is_used.clear()
                await self._is_used.wait()

    def _tick(self) -> None:
        try:
            self.service.tick()
        except Exception:
            log.exception("leases: an error in the queue; it goes on")

    def _user(self, peer: LinePeer) -> _User:
        credentials, process = peer.credentials, process_of(peer.credentials)
        return _User(
            credentials.uid,
            0 if process is None else process.pid,
            0 if process is None else process.start_ticks,
            self._access.user_name(credentials.uid),
            self._access.admins.include(credentials, peer.groups, peer.process.is_local),
            peer.process.is_local,
        )

    async def _converse(self, peer: LinePeer, raw: bytes, connection: LineConnection) -> None:
        self.wake()
        user = self._user(peer)
        try:
            request = parse_request(raw)
            if isinstance(request, RunRequest | ResumeRequest):
                await self._lease(user, request, connection)
            else:
                _send(connection, {"event": "answer", "answer": self._answer(user, request)})
        except (LeaseMessageError, LeaseRefused) as error:
            kind = {"busy": isinstance(error, LeaseBusy), "unknown": isinstance(error, LeaseUnknown)}
            _send(connection, {**_error(str(error)), **kind})

    async def _lease(self, user: _User, request: RunRequest | ResumeRequest, connection: LineConnection) -> None:
        client = LeaseClient(
            user.uid,
            user.user,
            user.pid,
            user.start_ticks,
            user.is_admin or self._access.sees_names(user.uid, user.is_local),
            lambda line: _send(connection, line),
            request.updates,
        )
        service = self.service
        id = service.open(client, request) if isinstance(request, RunRequest) else service.resume(client, request)
        try:
            while raw := await connection.receive():
                done, report = is_done(raw)
                if done:
                    service.finish(id, report)
                    if report:
                        # The client ends the connection when it has its report.
                        async with asyncio.timeout(_REPORT_S):
                            await connection.receive()
                    return
        finally:
            service.disconnect(id)

    def _answer(self, user: _User, request: LeaseLine) -> object:
        if isinstance(request, QueueRequest):
            return self._access.document(self.service.reading, user.uid, user.user, user.is_local)
        if isinstance(request, ReserveRequest):
            made = self.service.reserve(user.uid, user.user, request)
            slots = [self.service.reading.slots.get(uuid, uuid) for uuid in made.slots]
            sees_names = user.is_admin or self._access.sees_names(user.uid, user.is_local)
            held = self.service.find_held_beyond(made)
            return {
                "id": made.id,
                "from_s": made.from_s,
                "until_s": made.until_s,
                "gpus": made.gpus,
                "slots": slots,
                "held_beyond": [(blocker if sees_names else blocker._replace(users=())).sentence for blocker in held],
            }
        assert isinstance(request, CancelRequest)
        act = self.service.cancel if request.kind == "cancel" else self.service.unreserve
        return act(request.id, user.uid, user.is_admin)


def _error(text: str) -> Line:
    return {"event": "error", "error": text}


def _send(connection: LineConnection, line: Line) -> None:
    """A client that does not read gets no further lines about its place, but all others."""
    if line.get("event") != "waiting" or connection.unread_bytes <= _MAX_UNREAD_BYTES:
        connection.send(encode_line(line))
