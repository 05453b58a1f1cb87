"""Requests that fail leave nothing to the garbage collector: request and connection die by reference count."""

import asyncio
import gc
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from fakes.faces import FakeFaces
from gpucommons.faces.web.http.server import WebServer
from peers import Peer, port_of, run, serving, until

HOST = b"Host: localhost\r\n"
TIMES = 20


async def read_to_the_end(peer: Peer) -> None:
    await peer.ended()
    peer.writer.close()


async def reset(peer: Peer) -> None:
    await peer.reader.read(1)
    raw = peer.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.writer.transport.abort()


End = Callable[[Peer], Awaitable[None]]


async def send(server: WebServer, data: bytes, end: End) -> None:
    for _ in range(TIMES):
        peer = await Peer.connect(port_of(server), receive_buffer=2048)
        peer.send(data)
        await end(peer)
    await until(lambda: server.stats().connections_open == 0)
    # The loop frees a closed transport in its next iterations.
    for _ in range(5):
        await asyncio.sleep(0.01)


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"GET / HTTP/9.9\r\n\r\n", read_to_the_end),
        (b"\x16\x03\x01 this is TLS\r\n\r\n", read_to_the_end),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", read_to_the_end),
        (b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\nNONSENSE\r\n\r\n", read_to_the_end),
        (b"GET /healthz HTTP/1.0\r\n" + HOST + b"\r\nafter the last request", read_to_the_end),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\n", read_to_the_end),
        (
            b"POST / HTTP/1.0\r\n" + HOST + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
            read_to_the_end,
        ),
        (b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n", reset),
    ],
    ids=["version", "tls", "long line", "second request", "after the last", "chunk", "encoding", "reset"],
)
def test_a_failed_request_leaves_no_cycles(data: bytes, end: End) -> None:
    async def check() -> Counter[str]:
        async with serving(FakeFaces(padding=4_000_000)) as server:
            await send(server, data, end)
            gc.collect()
            gc.disable()
            try:
                await send(server, data, end)
                gc.set_debug(gc.DEBUG_SAVEALL)
                gc.collect()
                return Counter(type(found).__name__ for found in gc.garbage)
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()

    found = run(check())
    # Few: the test's own peers may leave some; each request left about 26 objects before.
    assert found.total() < TIMES, found.most_common()
