"""The other end of a connection: its origin, and on a Unix socket its user, as the kernel reports it. The user of a TCP
connection is unknown."""

import asyncio
import ipaddress
import pwd
import socket
from collections.abc import Callable

from gpucommons.base.threads import in_daemon_thread
from gpucommons.base.unix_listener import peer_credentials
from gpucommons.model.snapshot import Snapshot

_MOST_REMEMBERED = 1024
# A directory server that does not answer must not delay a request; the name is looked up again later.
_LOOKUP_S = 2.0


def origin_of(connected: socket.socket, sockaddr: object) -> str:
    """What is counted as one origin: an IPv4 address, the /64 network of an IPv6 address, the user of a Unix socket."""
    if not isinstance(sockaddr, tuple):
        return f"uid {peer_credentials(connected).uid}" if hasattr(socket, "SO_PEERCRED") else "unix"
    address = ipaddress.ip_address(str(sockaddr[0]).partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    # One machine can have every address of its network.
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))


def peer_uid(transport: asyncio.BaseTransport | None) -> int | None:
    connected = None if transport is None else transport.get_extra_info("socket")
    if connected is None or connected.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    return peer_credentials(connected).uid


class Peers:
    """uid and name of a connection's peer. The name is that of the snapshot, under which the user is billed: an agent
    in a container does not know the host's users by itself. A name that the snapshot does not have is looked up once,
    off the event loop."""

    def __init__(self, latest: Callable[[], Snapshot | None]) -> None:
        self._latest = latest
        self._names: dict[int, str] = {}

    async def of(self, transport: asyncio.BaseTransport | None) -> tuple[int | None, str | None]:
        uid = peer_uid(transport)
        return uid, None if uid is None else await self._name(uid)

    async def _name(self, uid: int) -> str | None:
        snapshot = self._latest()
        users = None if snapshot is None else snapshot.readings.users
        if users is not None and uid in users.names:
            return users.names[uid]
        if uid in self._names:
            return self._names[uid]
        try:
            entry = await asyncio.wait_for(in_daemon_thread(lambda: pwd.getpwuid(uid)), _LOOKUP_S)
        except (KeyError, TimeoutError):
            return None
        if len(self._names) < _MOST_REMEMBERED:
            self._names[uid] = entry.pw_name
        return entry.pw_name
