"""The order of requests and responses on one connection, chunks, and the end of a connection."""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable

import pytest

from fakes.faces import FakeFaces
from gpucommons.faces.web.http.connections import ConnectionGuard, ConnectionLimits
from gpucommons.faces.web.http.protocol import OutgoingResponse
from gpucommons.faces.web.http.request_head import RequestHead
from guarded import guarded
from peers import Peer, port_of, run, serving, until

REQUEST = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
PIPELINED = b"".join(REQUEST % b"/%d" % number for number in range(100))


class Slow:
    """Every third request waits for the test."""

    def __init__(self) -> None:
        self.proceed = asyncio.Event()
        self.paths: list[str] = []

    def __call__(self, head: RequestHead, guard: ConnectionGuard) -> OutgoingResponse | Awaitable[OutgoingResponse]:
        self.paths.append(head.path)
        return self._later(head) if len(self.paths) % 3 == 0 else _echo(head)

    async def _later(self, head: RequestHead) -> OutgoingResponse:
        await self.proceed.wait()
        return _echo(head)


def _echo(head: RequestHead) -> OutgoingResponse:
    return OutgoingResponse(200, b"", head.path.encode())


@pytest.mark.parametrize("half_closes", [False, True])
def test_requests_that_wait_and_those_that_do_not_are_answered_in_order(half_closes: bool) -> None:
    async def check() -> None:
        slow = Slow()
        async with (
            guarded(slow, ConnectionLimits()) as (port, _),
            await Peer.connect(port) as peer,
        ):
            peer.send(PIPELINED)
            if half_closes:
                peer.writer.write_eof()
            await until(lambda: len(slow.paths) == 3)
            await asyncio.sleep(0.02)
            assert len(slow.paths) == 3, "one request at a time"
            slow.proceed.set()
            assert [(await peer.answer()).body for _ in range(100)] == [b"/%d" % number for number in range(100)]
            if half_closes:
                assert await peer.ended() == b""

    run(check())


def test_a_peer_with_many_requests_lets_others_in_between() -> None:
    async def check() -> None:
        order: list[str] = []

        def handler(head: RequestHead, guard: ConnectionGuard) -> OutgoingResponse:
            order.append(head.path)
            if len(order) == 1:
                asyncio.get_running_loop().call_soon(order.append, "another")
            return _echo(head)

        async with guarded(handler, ConnectionLimits()) as (port, _), await Peer.connect(port) as peer:
            peer.send(PIPELINED)
            for _ in range(100):
                await peer.answer()
        assert order.index("another") < 20

    run(check())


def test_what_a_peer_sends_during_a_response_is_not_read_without_end() -> None:
    async def check() -> None:
        slow = Slow()
        async with (
            guarded(slow, ConnectionLimits()) as (port, connections),
            await Peer.connect(port) as peer,
        ):
            peer.send(REQUEST % b"/" * 3)
            await until(lambda: len(slow.paths) == 3)
            transport = connections.guards[0].transport
            assert transport is not None
            peer.send(REQUEST % b"/a" * 10)
            await until(lambda: not transport.is_reading())
            slow.proceed.set()
            for _ in range(13):
                await peer.answer()
            assert transport.is_reading()

    run(check())


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_stream_comes_in_chunks_and_ends_the_connection(version: str) -> None:
    events = [b"data: 1\n\n", b"", b"y" * 200_000, b"data: 3\n\n"]

    async def stream() -> AsyncGenerator[bytes, None]:
        for event in events:
            yield event

    async def check() -> None:
        async with (
            guarded(lambda head, guard: OutgoingResponse(200, b"", b"", stream), ConnectionLimits()) as (port, _),
            await Peer.connect(port) as peer,
        ):
            peer.request("/", version=version)
            answer = await peer.answer()
            rest = await peer.ended()
            if version == "1.0":
                assert "transfer-encoding" not in answer.headers
                assert rest == b"".join(events)
            else:
                assert (answer.headers["transfer-encoding"], answer.headers["connection"]) == ("chunked", "close")
                assert _joined_chunks(rest) == b"".join(events)

    run(check())


def _joined_chunks(data: bytes) -> bytes:
    joined = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        assert data[length : length + 2] == b"\r\n"
        if not length:
            assert data == b"\r\n"
            return joined
        joined, data = joined + data[:length], data[length + 2 :]


def test_a_stream_that_fails_is_cut_and_not_ended(caplog: pytest.LogCaptureFixture) -> None:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        raise RuntimeError("broken source")

    async def check() -> None:
        async with (
            guarded(lambda head, guard: OutgoingResponse(200, b"", b"", stream), ConnectionLimits()) as (port, _),
            await Peer.connect(port) as peer,
        ):
            peer.request("/")
            assert not (await peer.ended()).endswith(b"0\r\n\r\n")

    run(check())
    assert "broken source" in caplog.text


def test_a_stream_ends_with_its_connection() -> None:
    async def check() -> None:
        ended = asyncio.Event()

        async def stream() -> AsyncGenerator[bytes, None]:
            try:
                yield b"data: 1\n\n"
                await asyncio.Event().wait()
            finally:
                ended.set()

        async with guarded(lambda head, guard: OutgoingResponse(200, b"", b"", stream), ConnectionLimits()) as (
            port,
            _,
        ):
            peer = await Peer.connect(port)
            peer.request("/")
            await peer.reader.readuntil(b"data: 1")
            # A reset: a peer that only closes its sending side may still read.
            raw = peer.writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.writer.transport.abort()
            await ended.wait()

    run(check())


@pytest.mark.parametrize("last", [b"NONSENSE\r\n\r\n", REQUEST[:-2] % b"/" + b"Content-Length: 9\r\n\r\n"])
def test_the_last_request_of_many_is_answered_and_the_end_of_its_peer_noticed(last: bytes) -> None:
    async def check() -> None:
        async with (
            guarded(lambda head, guard: _echo(head), ConnectionLimits()) as (port, connections),
            await Peer.connect(port) as peer,
        ):
            peer.send(PIPELINED + last)
            statuses = [(await peer.answer()).status for _ in range(101)]
            assert statuses == [200] * 100 + [400 if last.startswith(b"NONSENSE") else 200]
            transport = connections.guards[0].transport
            assert transport is not None
            assert transport.is_reading()
            assert await peer.ended() == b""

    run(check())


def test_a_peer_that_still_sends_its_body_gets_the_whole_response() -> None:
    async def check() -> None:
        async with serving(FakeFaces()) as server, await Peer.connect(port_of(server)) as peer:
            peer.request("/metrics", "POST", headers={"Content-Length": "9000000"})
            assert (await peer.answer()).status == 405
            assert await peer.ended() == b""
            for _ in range(100):
                peer.send(b"x" * 10_000)
                await peer.writer.drain()
            assert server.stats().connections_open == 1
            peer.writer.close()
            await until(lambda: server.stats().connections_open == 0)
            assert server.stats().connections_refused == {}

    run(check())
