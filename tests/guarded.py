"""A test's handlers behind real guards and a real listener."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from gpucommons.faces.web.http.connections import ConnectionLimits, Connections, HttpProtocol, guard_of
from gpucommons.faces.web.http.listeners import Listener

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Wrap = Callable[[HttpProtocol, Connections], HttpProtocol]


@asynccontextmanager
async def guarded(
    handler: Handler, limits: ConnectionLimits, wrap: Wrap = lambda http, _: http
) -> AsyncIterator[tuple[int, Connections]]:
    """The port and the connections. `wrap` can put a layer between a guard and its HTTP protocol."""
    connections = Connections(limits)
    http = web.Server(handler, access_log=None)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
    listening.setblocking(False)
    listener = Listener(listening, connections, lambda: wrap(http(), connections), lambda: None)
    sweeper = asyncio.create_task(connections.sweep_forever())
    try:
        yield listening.getsockname()[1], connections
    finally:
        sweeper.cancel()
        listener.close()
        await connections.drain()


async def answer_that_stays_in_our_buffer(request: web.BaseRequest) -> web.StreamResponse:
    """Ends with a few bytes that the kernel does not buffer any more, too few to block the handler."""
    transport = request.transport
    guard = guard_of(transport)
    assert guard is not None
    assert transport is not None
    guard.request_began()
    response = web.StreamResponse()
    await response.prepare(request)
    stays = False
    while not stays:
        await response.write(b"x" * 2000 + b"\n")
        await asyncio.sleep(0.001)  # some loops hand bytes to the kernel only now
        stays = transport.get_write_buffer_size() > 0
    await response.write_eof()
    guard.request_ended()
    return response


async def small_answer(request: web.BaseRequest) -> web.StreamResponse:
    guard = guard_of(request.transport)
    assert guard is not None
    guard.request_began()
    response = web.Response(text="OK")
    await response.prepare(request)
    await response.write_eof()
    guard.request_ended()
    return response
