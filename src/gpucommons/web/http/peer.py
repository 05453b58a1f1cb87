"""Who is at the other end of a Unix socket, as the kernel tells. Over TCP nobody vouches for it: unknown."""

import asyncio
import pwd
import socket
import struct

from gpucommons.base.threads import in_daemon_thread

_CREDENTIALS = struct.Struct("3i")
_MOST_REMEMBERED = 1024
# A directory server that does not answer must not keep anybody waiting; the name is asked for again later.
_LOOKUP_S = 2.0


def peer_uid(transport: asyncio.BaseTransport | None) -> int | None:
    connected = None if transport is None else transport.get_extra_info("socket")
    if connected is None or connected.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    _, uid, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)


class Peers:
    """uid and name of a connection's other end. Names are looked up off the event loop, once each."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    async def of(self, transport: asyncio.BaseTransport | None) -> tuple[int | None, str | None]:
        uid = peer_uid(transport)
        return uid, None if uid is None else await self._name(uid)

    async def _name(self, uid: int) -> str | None:
        if uid in self._names:
            return self._names[uid]
        try:
            entry = await asyncio.wait_for(in_daemon_thread(lambda: pwd.getpwuid(uid)), _LOOKUP_S)
        except (KeyError, TimeoutError):
            return None
        if len(self._names) < _MOST_REMEMBERED:
            self._names[uid] = entry.pw_name
        return entry.pw_name
