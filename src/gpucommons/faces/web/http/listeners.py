"""Listening sockets, the accept loop, and the other end of each connection."""

import asyncio
import errno
import ipaddress
import logging
import math
import pwd
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, cast

from gpucommons.base.address import Address, UnixAddress
from gpucommons.base.peers import is_local, look_at, owner_of
from gpucommons.base.processes import port_owner
from gpucommons.base.threads import in_daemon_thread
from gpucommons.base.unix_listener import ListenError, listen, peer_credentials
from gpucommons.faces.web.access.tls import Tls
from gpucommons.faces.web.http.connections import ConnectionGuard, Connections, HttpProtocol
from gpucommons.model.snapshot import Snapshot

# The other end of a connection: its origin, and on a Unix socket its user, as the kernel reports it. The user of a TCP
# connection is unknown.

_MAX_REMEMBERED = 1024
# A directory server that does not answer must not delay a request; the name is looked up again later.
_LOOKUP_S = 2.0
_RETRY_S = 60.0
_MAX_LOOKUPS = 8


def origin_of(connected: socket.socket, sockaddr: object) -> str:
    """What is counted as one origin: an IPv4 address, the /64 network of an IPv6 address, the owner of a Unix socket's
    peer: its container, the maker of its user namespace, or its user."""
    if not isinstance(sockaddr, tuple):
        if not hasattr(socket, "SO_PEERCRED"):
            return "unix"
        peer = peer_credentials(connected)
        return owner_of(peer.uid, look_at(peer.pid))
    address = ipaddress.ip_address(str(sockaddr[0]).partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    # One machine can have every address of its network.
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))


class WebPeer(NamedTuple):
    """`uid` and `user` are None where the connection does not identify a user. `is_local`: not in a container."""

    uid: int | None = None
    user: str | None = None
    is_local: bool = False


class Peers:
    """The user of a Unix connection's peer. The name is that of the snapshot, under which the user is billed: an agent
    in a container does not know the host's users by itself. A name that the snapshot does not have is looked up off the
    event loop. A name service may hang: there is one lookup for a uid at a time, few in all, and a failure is
    remembered for a while."""

    def __init__(self, latest: Callable[[], Snapshot | None]) -> None:
        self._latest = latest
        self._names: dict[int, str] = {}
        self._lookups: dict[int, asyncio.Task[str | None]] = {}
        self._failed_s: dict[int, float] = {}

    async def of(self, transport: asyncio.BaseTransport | None) -> WebPeer:
        connected = None if transport is None else transport.get_extra_info("socket")
        if connected is None or connected.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
            return WebPeer()
        credentials = peer_credentials(connected)
        return WebPeer(credentials.uid, await self._name(credentials.uid), is_local(credentials.pid))

    async def _name(self, uid: int) -> str | None:
        snapshot = self._latest()
        users = None if snapshot is None else snapshot.readings.users
        if users is not None and uid in users.names:
            return users.names[uid]
        if uid in self._names:
            return self._names[uid]
        now_s = time.monotonic()
        if now_s - self._failed_s.get(uid, -math.inf) < _RETRY_S:
            return None
        lookup = self._lookups.get(uid)
        if lookup is None:
            if len(self._lookups) >= _MAX_LOOKUPS:
                return None
            lookup = self._lookups[uid] = asyncio.create_task(self._look_up(uid), name="user-name")
        await asyncio.wait([lookup], timeout=_LOOKUP_S)
        if lookup.done():
            return lookup.result()
        self._remember_failure(uid, now_s)
        return None

    async def _look_up(self, uid: int) -> str | None:
        """A lookup that hangs stays among `_lookups`: it has a thread."""
        try:
            name = (await in_daemon_thread(lambda: pwd.getpwuid(uid))).pw_name
        except (KeyError, OSError):
            self._remember_failure(uid, time.monotonic())
            return None
        finally:
            self._lookups.pop(uid, None)
        if len(self._names) < _MAX_REMEMBERED:
            self._names[uid] = name
        return name

    def _remember_failure(self, uid: int, now_s: float) -> None:
        self._failed_s.pop(uid, None)
        self._failed_s[uid] = now_s
        if len(self._failed_s) > _MAX_REMEMBERED:
            del self._failed_s[next(iter(self._failed_s))]


# Listening sockets and the accept loop.
#
# A socket that cannot be opened is an error of one line. Every connection is counted from its accept on, and gets the
# TLS settings of that moment.

_BACKLOG = 512
# Every user may connect: the kernel reports which one did.
_UNIX_MODE = 0o666
# By default the kernel buffers megabytes for each peer that does not read.
_SEND_BUFFER_BYTES = 256 * 1024
_ACCEPTS_PER_WAKE = 64
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPT_PAUSE_S = 1.0
_TLS_SHUTDOWN_S = 1.0
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 10\r\n"
    b"Connection: close\r\nContent-Length: 21\r\n\r\ntoo many connections\n"
)

log = logging.getLogger(__name__)

SocketAddress = tuple[str | int, ...]


async def open_sockets(address: Address | UnixAddress, setting: str) -> list[socket.socket]:
    """Listening sockets for every address of the host. `setting` names the address, for messages."""
    if isinstance(address, UnixAddress):
        path = address.path
        return await in_daemon_thread(lambda: [listen(path, setting, _UNIX_MODE)])
    tcp = address
    return await in_daemon_thread(lambda: _open_sockets(tcp, setting))


def _open_sockets(address: Address, setting: str) -> list[socket.socket]:
    opened: list[socket.socket] = []
    refusals: list[OSError] = []
    port = address.port
    try:
        for family, sockaddr in _resolve(address, setting):
            try:
                opened.append(_listen(family, (sockaddr[0], port, *sockaddr[2:])))
            except OSError as error:
                # A name can resolve to a family that this machine has disabled; one working address is enough.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                refusals.append(error)
            else:
                port = opened[0].getsockname()[1]
        if not opened:
            raise refusals[0]
    except OSError as error:
        for listening in opened:
            listening.close()
        if isinstance(error, ListenError):
            raise
        raise ListenError(_explain(address, setting, error)) from error
    return opened


def _resolve(address: Address, setting: str) -> list[tuple[int, SocketAddress]]:
    if not address.host:
        # One socket for both families where IPv6 works, otherwise IPv4 only.
        both, ipv4 = (socket.AF_INET6, ("::", address.port)), (socket.AF_INET, ("", address.port))
        return [both if _has_ipv6() else ipv4]
    try:
        rows = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ListenError(
            f"cannot listen on {address}: the host {address.host!r} does not resolve; change {setting}"
        ) from error
    return list(dict.fromkeys((int(row[0]), cast(SocketAddress, row[4])) for row in rows))


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _listen(family: int, sockaddr: SocketAddress) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit it.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(sockaddr[0] != "::"))
        listening.bind(sockaddr)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def _explain(address: Address, setting: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        owner = port_owner(address.port)
        held = f" by {owner}; stop it" if owner else "; stop the process that uses it"
        return f"cannot listen on {address}: port {address.port} is in use{held}, or change {setting}"
    if error.errno == errno.EACCES:
        return (
            f"cannot listen on {address}: no permission for port {address.port}; "
            f"ports below 1024 need root or CAP_NET_BIND_SERVICE; change {setting}"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"cannot listen on {address}: this machine has no address {address.host}; change {setting}"
    return f"cannot listen on {address}: {error.strerror or error}; change {setting}"


class Listener:
    """Accepts on one listening socket, for one HTTP protocol factory."""

    def __init__(
        self,
        listening: socket.socket,
        connections: Connections,
        http_factory: Callable[[ConnectionGuard], HttpProtocol],
        current_tls: Callable[[], Tls | None],
    ) -> None:
        self._socket = listening
        self._connections = connections
        self._http_factory = http_factory
        self._current_tls = current_tls
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        self._exhausted = False
        self._loop.add_reader(self._socket, self._accept_some)

    def close(self) -> None:
        """Accept no more connections. Open connections are not closed."""
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _accept_some(self) -> None:
        for _ in range(_ACCEPTS_PER_WAKE):
            try:
                accepted, sockaddr = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    raise
                self._pause(error)
                return
            self._exhausted = False
            self._open(accepted, origin_of(accepted, sockaddr))

    def _pause(self, error: OSError) -> None:
        """The waiting connection stays in the kernel's queue; without a pause the loop would spin."""
        self._connections.refused["descriptors"] += 1
        if not self._exhausted:
            log.warning("cannot accept connections: %s; raise the limit of open files", error.strerror)
        self._exhausted = True
        self._loop.remove_reader(self._socket)
        self._resume = self._loop.call_later(_ACCEPT_PAUSE_S, self._loop.add_reader, self._socket, self._accept_some)

    def _open(self, accepted: socket.socket, origin: str) -> None:
        tls = self._current_tls()
        guard = ConnectionGuard(self._connections, self._http_factory, origin, tls)
        accepted.setblocking(False)
        if not self._connections.admit(guard):
            if tls is None:
                with suppress(OSError):
                    accepted.send(_FULL)
            accepted.close()
            return
        opening = self._loop.create_task(self._complete(accepted, guard, tls))
        guard.opened_by(opening)
        self._opening.add(opening)
        opening.add_done_callback(partial(self._opened, accepted, guard))

    async def _complete(self, accepted: socket.socket, guard: ConnectionGuard, tls: Tls | None) -> None:
        """Makes the transport and, with TLS, the handshake. After a failure the HTTP protocol is not reached.

        The sweeper ends a handshake that takes too long.
        """
        try:
            await self._loop.connect_accepted_socket(
                guard.claim,
                accepted,
                ssl=tls.context if tls is not None else None,
                ssl_shutdown_timeout=_TLS_SHUTDOWN_S if tls is not None else None,
            )
        except OSError:
            self._connections.refused["tls_handshake"] += 1

    def _opened(self, accepted: socket.socket, guard: ConnectionGuard, opening: asyncio.Task[None]) -> None:
        self._opening.discard(opening)
        if guard.transport is None:
            self._connections.discard(guard)
        if not guard.claimed:
            accepted.close()
