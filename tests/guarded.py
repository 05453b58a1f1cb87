"""A test's handlers behind real guards and a real listener."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gpucommons.faces.web.http.connections import ConnectionGuard, ConnectionLimits, Connections, HttpProtocol
from gpucommons.faces.web.http.listeners import Listener
from gpucommons.faces.web.http.protocol import Handler, HttpConnection, OutgoingResponse
from gpucommons.faces.web.http.request_head import RequestHead

Wrap = Callable[[HttpProtocol, Connections], HttpProtocol]
# More than the kernel buffers for a peer that does not read.
LARGE_BODY = b"x" * 1_000_000


@asynccontextmanager
async def guarded(
    handler: Handler, limits: ConnectionLimits, wrap: Wrap = lambda http, _: http
) -> AsyncIterator[tuple[int, Connections]]:
    """The port and the connections. `wrap` can put a layer between a guard and its HTTP protocol."""
    connections = Connections(limits)
    tasks: set[asyncio.Task[None]] = set()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
    listening.setblocking(False)

    def connection(guard: ConnectionGuard) -> HttpProtocol:
        return wrap(HttpConnection(handler, tasks, {}, limits.header_field_bytes, guard), connections)

    listener = Listener(listening, connections, connection, lambda: None)
    sweeper = asyncio.create_task(connections.sweep_forever())
    try:
        yield listening.getsockname()[1], connections
    finally:
        sweeper.cancel()
        listener.close()
        await connections.drain()


def answer_that_stays_in_our_buffer(head: RequestHead, guard: ConnectionGuard) -> OutgoingResponse:
    """The transport buffers all of it: the response does not wait for its peer."""
    assert guard.transport is not None
    guard.transport.set_write_buffer_limits(high=2 * len(LARGE_BODY))
    return OutgoingResponse(200, b"", LARGE_BODY)


def small_answer(head: RequestHead, guard: ConnectionGuard) -> OutgoingResponse:
    return OutgoingResponse(200, b"", b"OK")
