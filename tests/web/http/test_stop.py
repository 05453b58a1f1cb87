"""Stopping: running requests are finished, idle connections closed, slow responses cut."""

import asyncio
import socket

import pytest

from fakes.faces import FakeFaces
from gpucommons.faces.web.http.connections import ConnectionGuard, ConnectionLimits, Connections, HttpProtocol
from gpucommons.faces.web.http.protocol import OutgoingResponse
from gpucommons.faces.web.http.request_head import RequestHead
from gpucommons.faces.web.http.server import WebServer
from guarded import LARGE_BODY, answer_that_stays_in_our_buffer, guarded, small_answer
from peers import Answer, Peer, port_of, run, serving, until


async def hammer(port: int, whole: list[Answer]) -> bool:
    """Sends requests until the server closes the connection. True if it closed between two responses."""
    async with await Peer.connect(port) as peer:
        while True:
            try:
                peer.request("/metrics")
                first = await peer.reader.read(1)
            except ConnectionError:
                return True
            if not first:
                return True
            try:
                whole.append(await rest_of_answer(peer, first))
            except (asyncio.IncompleteReadError, ConnectionError):
                return False


async def rest_of_answer(peer: Peer, first: bytes) -> Answer:
    """A response whose first byte was read already."""
    assert first == b"H"
    return await peer.answer()


@pytest.mark.parametrize("padding", [100, 3_000_000], ids=["small", "large"])
def test_stopping_under_load_loses_no_started_response(padding: int) -> None:
    async def check() -> None:
        faces = FakeFaces(padding=padding)
        expected = faces.metrics(None, False, False)[0]
        server = WebServer(faces, [("127.0.0.1:0", None)], limits=ConnectionLimits(stop_s=10.0))
        await server.start()
        whole: list[Answer] = []
        loads = [asyncio.create_task(hammer(port_of(server), whole)) for _ in range(20)]
        await until(lambda: len(whole) > 40)
        await server.stop()
        assert all(await asyncio.gather(*loads)), "a response was started and not finished"
        assert all(answer.body == expected for answer in whole)
        assert server.stats().connections_open == 0
        assert sum(server.stats().requests.values()) == len(whole), "every counted response arrived complete"

    run(check())


def test_a_running_response_is_finished_and_closes_the_connection() -> None:
    async def check() -> None:
        faces = FakeFaces(padding=4_000_000)
        server = WebServer(faces, [("127.0.0.1:0", None)], limits=ConnectionLimits(stop_s=10.0))
        await server.start()
        async with await Peer.connect(port_of(server), receive_buffer=4096) as peer:
            peer.request("/metrics")
            await until(lambda: bool(server.stats().requests))
            stopping = asyncio.create_task(server.stop())
            await asyncio.sleep(0)
            with pytest.raises(ConnectionRefusedError):
                await Peer.connect(port_of(server))
            assert (await peer.answer()).body == faces.metrics(None, False, False)[0]
            assert await peer.ended() == b""
            await stopping

    run(check())


def test_idle_and_silent_connections_are_closed_at_once() -> None:
    async def check() -> None:
        # If the stop waited for them, the test would time out.
        server = WebServer(FakeFaces(), [("127.0.0.1:0", None)], limits=ConnectionLimits(stop_s=1000.0))
        await server.start()
        async with await Peer.connect(port_of(server)) as idle, await Peer.connect(port_of(server)) as silent:
            await idle.ask("/healthz")
            await server.stop()
            assert await idle.ended() == b""
            assert await silent.ended() == b""

    run(check())


def test_a_response_that_takes_too_long_is_cut() -> None:
    async def check() -> None:
        server = WebServer(FakeFaces(padding=4_000_000), [("127.0.0.1:0", None)], limits=ConnectionLimits(stop_s=0.1))
        await server.start()
        async with (
            await Peer.connect(port_of(server), receive_buffer=2048) as reader,
            await Peer.connect(port_of(server)) as half,
        ):
            reader.request("/metrics")
            half.send(b"GET /metrics HTT")
            await until(lambda: bool(server.stats().requests))
            await server.stop()
            assert server.stats().connections_open == 0
            assert await half.ended() == b""

    run(check())


def test_a_request_that_arrives_with_the_stop_is_answered() -> None:
    async def check() -> None:
        server = WebServer(FakeFaces(), [("127.0.0.1:0", None)], limits=ConnectionLimits(stop_s=10.0))
        await server.start()
        async with await Peer.connect(port_of(server)) as peer:
            peer.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
            await until(lambda: server.stats().connections_open == 1)
            await asyncio.sleep(0.05)
            stopping = asyncio.create_task(server.stop())
            await asyncio.sleep(0)
            peer.send(b"\r\n")
            answer = await peer.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            await stopping

    run(check())


class StopsWithTheSecondRequest:
    """The stop happens during the second request: it was read, and its handler has not started."""

    def __init__(self, http: HttpProtocol, connections: Connections) -> None:
        self._http = http
        self._connections = connections
        self._seen = 0
        self.connection_made = http.connection_made
        self.eof_received = http.eof_received
        self.pause_writing = http.pause_writing
        self.resume_writing = http.resume_writing
        self.connection_lost = http.connection_lost
        self.close = http.close

    def data_received(self, data: bytes) -> None:
        self._seen += 1
        if self._seen == 2:
            self._stopping = asyncio.create_task(self._connections.drain())
        self._http.data_received(data)


def test_a_request_that_was_read_but_not_started_is_answered() -> None:
    async def check() -> None:
        held = asyncio.Event()

        def handler(head: RequestHead, guard: ConnectionGuard) -> OutgoingResponse:
            if held.is_set():
                return small_answer(head, guard)
            held.set()
            return answer_that_stays_in_our_buffer(head, guard)

        async with (
            guarded(handler, ConnectionLimits(stop_s=10.0), StopsWithTheSecondRequest) as (port, _),
            await Peer.connect(port, receive_buffer=2048) as peer,
        ):
            assert (await peer.ask("/")).body == LARGE_BODY
            assert (await peer.ask("/")).body == b"OK"

    run(check())


def test_stopping_twice_or_before_the_start_is_not_an_error() -> None:
    async def check() -> None:
        unstarted = WebServer(FakeFaces(), [("127.0.0.1:0", None)])
        await unstarted.stop()
        async with serving() as server:
            port = port_of(server)
            await server.stop()
        with socket.create_server(("127.0.0.1", port)):
            pass
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    run(check())
