"""Peers that exceed a limit: each is closed, counted, and does not affect others."""

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.faces import FakeFaces
from gpucommons.faces.web.http.connections import (
    ConnectionGuard,
    ConnectionLimits,
    ConnectionPhase,
    Connections,
    overdue,
)
from gpucommons.faces.web.http.protocol import OutgoingResponse
from gpucommons.faces.web.http.request_head import RequestHead
from guarded import LARGE_BODY, answer_that_stays_in_our_buffer, guarded
from peers import Peer, fetch, port_of, run, serving, until

# Short limits keep a test quick; a limit that a test is not about is far away.
FAR_S = 60.0
SWEEP_S = 0.02


def limits(
    connections: int = 512, header_s: float = FAR_S, request_s: float = FAR_S, idle_s: float = FAR_S
) -> ConnectionLimits:
    return ConnectionLimits(connections, header_s, request_s, idle_s, sweep_s=SWEEP_S)


@given(st.sampled_from(ConnectionPhase), st.floats(0, 1000), st.floats(0, 1000))
def test_a_phase_once_overdue_stays_overdue(phase: ConnectionPhase, waited_s: float, more_s: float) -> None:
    if overdue(phase, waited_s, ConnectionLimits()) is not None:
        assert overdue(phase, waited_s + more_s, ConnectionLimits()) is not None
    assert overdue(phase, 0.0, ConnectionLimits()) is None
    assert overdue(phase, 301.0, ConnectionLimits()) is not None


def test_a_peer_that_sends_nothing_is_closed() -> None:
    async def check() -> None:
        async with serving(limits=limits(header_s=0.1)) as server:
            async with await Peer.connect(port_of(server)) as silent:
                assert (await fetch(port_of(server))).status == 200
                assert await silent.ended() == b""
            assert server.stats().connections_refused == {"silent": 1}

    run(check())


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_request_sent_byte_by_byte_is_closed(asked_before: bool) -> None:
    async def check() -> None:
        async with serving(limits=limits(header_s=0.2)) as server:
            async with await Peer.connect(port_of(server)) as peer:
                if asked_before:
                    assert (await peer.ask("/healthz")).status == 200
                ended = asyncio.create_task(peer.ended())
                peer.send(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
                while not ended.done():
                    peer.send(b"a")
                    await asyncio.sleep(0.01)
            assert server.stats().connections_refused == {"slow_request": 1}

    run(check())


@pytest.mark.parametrize("version", ["1.0", "1.1"], ids=["closing", "keep-alive"])
@pytest.mark.parametrize("padding", [100_000, 4_000_000], ids=["one piece", "pieces"])
def test_a_peer_that_does_not_read_is_closed(version: str, padding: int) -> None:
    async def check() -> None:
        async with serving(FakeFaces(padding=padding), limits=limits(request_s=0.2)) as server:
            async with await Peer.connect(port_of(server), receive_buffer=2048) as peer:
                # More than the kernel buffers for one connection, so that the agent has to wait for the peer.
                for _ in range(20):
                    peer.request("/metrics", version=version, headers={"Connection": "keep-alive"})
                await until(lambda: server.stats().connections_open == 0)
            assert server.stats().connections_refused == {"slow_reader": 1}

    run(check())


def test_a_closing_connection_whose_peer_does_not_read_is_closed() -> None:
    async def check() -> None:
        async with serving(FakeFaces(padding=4_000_000), limits=limits(request_s=0.2)) as server:
            async with await Peer.connect(port_of(server), receive_buffer=2048) as peer:
                peer.request("/metrics", version="1.0")
                await until(lambda: server.stats().connections_open == 0)
            assert server.stats().connections_refused == {"slow_reader": 1}

    run(check())


def test_a_peer_that_reads_byte_by_byte_is_closed() -> None:
    async def check() -> None:
        async with serving(FakeFaces(padding=4_000_000), limits=limits(request_s=0.3)) as server:
            async with await Peer.connect(port_of(server), receive_buffer=2048) as peer:
                peer.request("/metrics")
                read = 0
                while server.stats().connections_open:
                    read += len(await peer.reader.readexactly(1))
                    await asyncio.sleep(0.005)
                assert read > 1
            assert server.stats().connections_refused == {"slow_reader": 1}

    run(check())


def test_closing_an_idle_connection_is_not_counted_as_a_refusal() -> None:
    async def check() -> None:
        async with serving(limits=limits(idle_s=0.1)) as server:
            async with await Peer.connect(port_of(server)) as peer:
                assert (await peer.ask("/healthz")).status == 200
                assert await peer.ended() == b""
            assert server.stats().connections_refused == {}

    run(check())


def test_a_peer_that_disconnects_during_its_request_is_not_counted_as_a_refusal() -> None:
    async def check() -> None:
        async with serving(limits=limits()) as server:
            peer = await Peer.connect(port_of(server))
            peer.send(b"GET /metrics HTT")
            peer.writer.close()
            await until(lambda: server.stats().connections_open == 1)
            await until(lambda: server.stats().connections_open == 0)
            assert server.stats().connections_refused == {}

    run(check())


def test_a_connection_in_use_is_never_closed() -> None:
    async def check() -> None:
        bounds = limits(header_s=0.3, request_s=0.3, idle_s=0.3)
        async with serving(limits=bounds) as server, await Peer.connect(port_of(server)) as peer:
            loop = asyncio.get_running_loop()
            until_s = loop.time() + 1.0
            while loop.time() < until_s:
                assert (await peer.ask("/metrics")).status == 200

    run(check())


def test_a_scrape_is_answered_despite_200_slow_readers() -> None:
    async def check() -> None:
        async with serving(FakeFaces(padding=1_500_000)) as server, AsyncExitStack() as stack:
            for _ in range(200):
                peer = await stack.enter_async_context(await Peer.connect(port_of(server), receive_buffer=2048))
                peer.request("/metrics")
            await until(lambda: server.stats().requests.get(("metrics", 200)) == 200)
            for _ in range(20):
                answer = await fetch(port_of(server), "/metrics", headers={"Accept-Encoding": "gzip"})
                assert answer.status == 200
            assert server.stats().connections_open >= 200

    run(check())


def test_silent_connections_cannot_keep_out_requests() -> None:
    async def check() -> None:
        async with serving(limits=limits(connections=4)) as server:
            async with await Peer.connect(port_of(server)) as regular:
                await regular.ask("/metrics")
                silent = [await Peer.connect(port_of(server)) for _ in range(10)]
                await until(lambda: server.stats().connections_refused.get("silent") == 8)
                assert (await fetch(port_of(server))).status == 200
                assert (await regular.ask("/metrics")).status == 200
                assert server.stats().connections_open <= 3
            for peer in silent:
                peer.writer.close()

    run(check())


def test_a_peer_that_disconnects_during_a_body_leaves_no_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def check() -> None:
        async with serving(FakeFaces(padding=4_000_000)) as server:
            for reset in (False, True):
                peer = await Peer.connect(port_of(server), receive_buffer=2048)
                peer.request("/metrics")
                await peer.reader.readexactly(1000)
                if reset:
                    raw = peer.writer.get_extra_info("socket")
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.writer.close()
                await until(lambda: server.stats().connections_open == 0)
            assert (await fetch(port_of(server), "/healthz")).status == 200
            assert server.stats().connections_refused == {}

    with caplog.at_level(logging.INFO):
        run(check())
    assert caplog.records == []


async def events_without_end() -> AsyncGenerator[bytes, None]:
    while True:
        yield b"data: " + b"x" * 50_000 + b"\n\n"
        await asyncio.sleep(0.001)


def stream_for_ever(head: RequestHead, guard: ConnectionGuard) -> OutgoingResponse:
    return OutgoingResponse(200, b"", b"", events_without_end)


def test_a_response_is_not_complete_while_a_part_is_buffered() -> None:
    async def check() -> None:
        async with (
            guarded(answer_that_stays_in_our_buffer, limits(request_s=0.2)) as (port, connections),
            await Peer.connect(port, receive_buffer=2048) as peer,
        ):
            peer.request("/")
            await until(lambda: connections.refused["slow_reader"] == 1)
            await until(lambda: connections.open == 0)

    run(check())


def test_a_peer_that_half_closes_gets_the_buffered_rest_of_its_response() -> None:
    async def check() -> None:
        async with (
            guarded(answer_that_stays_in_our_buffer, limits()) as (port, connections),
            await Peer.connect(port, receive_buffer=2048) as peer,
        ):
            peer.request("/")
            await until(lambda: any(guard.answered for guard in connections.guards))
            peer.writer.write_eof()
            assert (await peer.ended()).endswith(b"\r\n\r\n" + LARGE_BODY)
            await until(lambda: connections.open == 0)

    run(check())


def test_a_stream_that_is_read_has_no_time_limit() -> None:
    async def check() -> None:
        async with (
            guarded(stream_for_ever, limits(request_s=0.1)) as (port, connections),
            await Peer.connect(port) as peer,
        ):
            peer.request("/stream")
            loop = asyncio.get_running_loop()
            until_s = loop.time() + 0.6
            while loop.time() < until_s:
                assert await peer.reader.read(4096)
            assert connections.open == 1

    run(check())


def test_a_stream_that_is_not_read_is_closed() -> None:
    async def check() -> None:
        async with (
            guarded(stream_for_ever, limits(request_s=0.1)) as (port, connections),
            await Peer.connect(port, receive_buffer=2048) as peer,
        ):
            peer.request("/stream")
            await until(lambda: connections.refused["slow_reader"] == 1)
            await until(lambda: connections.open == 0)

    run(check())


def test_without_connections_the_sweeper_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        connections, sweeps = Connections(ConnectionLimits(sweep_s=0)), list[float]()
        monkeypatch.setattr(connections, "sweep", sweeps.append)
        sweeping = asyncio.create_task(connections.sweep_forever())
        for _ in range(100):
            await asyncio.sleep(0)
        sweeping.cancel()
        assert sweeps == []

    run(check())
