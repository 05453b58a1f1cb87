"""A server of JSON lines on a Unix socket: for leases and for the control socket.

Every user of the machine may connect, so that each has a budget: connections and requests of an owner (a container, the
maker of a user namespace, a user), connections in all with some kept for root and for owners that have few, the length
of a line, and the time in which it has to come. Root outside of containers has no limit: an operator always gets
through. What a request means is the caller's; a refusal is a line that the caller makes.

A client sends one request first; whether more lines follow is the caller's. Each connection is a task of the server:
`stop` ends and awaits them all.
"""

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from typing import Final, NamedTuple

from gpucommons.base.peers import ConnectionCaps, PeerAccount, PeerProcess, RequestRate, Slots, accounts_of, look_at
from gpucommons.base.peers import owner_of as owner_of_peer
from gpucommons.base.unix_listener import ListenError, PeerCredentials, UnixListener, listen, peer_credentials
from gpucommons.base.unix_listener import peer_groups as groups_of_peer

_SOCKET_MODE: Final = 0o666
_BACKLOG: Final = 1024
# For the first line, and for the last ones to be read.
_TIMEOUT_S: Final = 5.0

log = logging.getLogger(__name__)


class LineLimits(NamedTuple):
    """`connections` and the rate are for each owner, `connections_in_all` is for all of them."""

    line_bytes: int
    connections: int
    connections_in_all: int
    requests_per_s: float
    request_burst: float


class LinePeer(NamedTuple):
    """The other end of a connection, as it was when it connected."""

    socket: socket.socket
    credentials: PeerCredentials
    groups: frozenset[int]
    process: PeerProcess

    @property
    def accounts(self) -> tuple[PeerAccount, ...]:
        return accounts_of(self.credentials.uid, self.process)

    @property
    def owner(self) -> str:
        return owner_of_peer(self.credentials.uid, self.process)


class LineConnection:
    """The lines of one client. `send` never waits."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes:
        """The next line; empty at the end. Raises ValueError for a line that is too long."""
        return await self._reader.readline()

    def send(self, line: bytes) -> None:
        if not self._writer.transport.is_closing():
            self._writer.write(line)

    @property
    def unread_bytes(self) -> int:
        """What was sent and waits here for the client to read."""
        return self._writer.transport.get_write_buffer_size()

    async def drain(self) -> None:
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


# Answers the first line of a client, and converses further where the protocol does.
Converse = Callable[[LinePeer, bytes, LineConnection], Awaitable[None]]


class LineServer:
    """`name` is that of the socket in messages. `refuse` makes the line that refuses a client, from the reason."""

    def __init__(self, name: str, limits: LineLimits, converse: Converse, refuse: Callable[[str], bytes]) -> None:
        self._name = name
        self._limits = limits
        self._converse = converse
        self._refuse = refuse
        self._caps = ConnectionCaps({"uid": limits.connections, "container": limits.connections})
        self._rate = RequestRate(limits.requests_per_s, limits.request_burst)
        self._slots = Slots(limits.connections_in_all)
        self._open: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket: UnixListener | None = None
        self._listener: asyncio.Server | None = None
        self.connections: set[LineConnection] = set()

    async def start(self, paths: Iterable[str], setting: str) -> None:
        """Serves the first of the paths that can be. Raises ListenError if none can; `setting` names it there."""
        failed = ListenError(f"{self._name}: no path to listen on")
        for path in paths:
            try:
                self._socket = listen(path, setting, _SOCKET_MODE)
                break
            except ListenError as error:
                failed = error
        if self._socket is None:
            raise failed
        self._listener = await asyncio.start_unix_server(
            self._accept, sock=self._socket, limit=self._limits.line_bytes, backlog=_BACKLOG
        )

    async def stop(self) -> None:
        """Takes no further client, and ends the connections that are left."""
        if self._socket is None or self._listener is None:
            return
        self._socket.remove_file()
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket = self._listener = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Our own task: one of asyncio's streams logs a traceback if it is cancelled."""
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = LineConnection(reader, writer)
        counted: LinePeer | None = None
        try:
            counted = peer = self._peer(writer)
            is_over = bool(self._caps.add(peer.accounts))
            self._open[peer.owner] += 1
            self.connections.add(connection)
            if peer.accounts and (is_over or not self._has_slot(peer)):
                connection.send(self._refuse(f"too many connections to {self._name}: close some, or try again later"))
            else:
                await self._answer(peer, connection)
            async with asyncio.timeout(_TIMEOUT_S):
                await connection.drain()
        except (TimeoutError, ValueError, OSError):
            log.debug("%s: dropped an unresponsive client", self._name)
        except Exception:
            log.exception("%s: an error while a client was served; others are", self._name)
        finally:
            if counted is not None:
                self._open -= Counter((counted.owner,))
                self._caps.remove(counted.accounts)
            self.connections.discard(connection)
            await connection.close()

    def _peer(self, writer: asyncio.StreamWriter) -> LinePeer:
        connected = writer.get_extra_info("socket")
        credentials = peer_credentials(connected)
        return LinePeer(connected, credentials, groups_of_peer(connected), look_at(credentials.pid))

    def _has_slot(self, peer: LinePeer) -> bool:
        return self._slots.takes(self._open.total(), self._open[peer.owner], False)

    async def _answer(self, peer: LinePeer, connection: LineConnection) -> None:
        async with asyncio.timeout(_TIMEOUT_S):
            line = await connection.receive()
        if not line:
            return
        if self._rate.take(peer.accounts, monotonic()):
            await self._converse(peer, line, connection)
        else:
            rate = f"{self._limits.requests_per_s:g}"
            connection.send(self._refuse(f"too many requests: at most {rate} a second for each user"))
