"""Too many connections: a scraper is always admitted unless running requests hold every connection."""

import asyncio
import base64
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import bcrypt
import pytest

from fakes.faces import FakeFaces
from gpucommons.faces.web.access.auth import Authenticator
from gpucommons.faces.web.http.connections import ConnectionGuard, ConnectionLimits
from gpucommons.faces.web.http.listeners import origin_of
from gpucommons.faces.web.http.protocol import OutgoingResponse
from gpucommons.faces.web.http.request_head import RequestHead
from gpucommons.faces.web.http.server import WebServer
from guarded import guarded, small_answer
from peers import Peer, fetch, port_of, run, serving, until

# Every address of 127.0.0.0/8 is this machine's on Linux.
SCRAPER, NEWCOMER = "127.0.0.9", "127.0.0.8"
CROWD = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
LIMITS = ConnectionLimits(connections=48)
PADDING = 4_000_000
PASSWORD = {"Authorization": "Basic " + base64.b64encode(b"prometheus:secret").decode()}


async def crowd(stack: AsyncExitStack, port: int, sources: tuple[str, ...], each: int, path: str) -> list[Peer]:
    """Connections that got one response and stay open."""
    peers = []
    for source in sources:
        for _ in range(each):
            peer = await stack.enter_async_context(await Peer.connect(port, source=source))
            peer.request(path)
            await peer.reader.readuntil(b"\r\n\r\n")
            peers.append(peer)
    return peers


async def slow_readers(stack: AsyncExitStack, server: WebServer, source: str, number: int) -> None:
    """Requests that run until their time limit."""
    before = server.stats().requests.get(("metrics", 200), 0)
    for _ in range(number):
        peer = await Peer.connect(port_of(server), source=source, receive_buffer=2048)
        await stack.enter_async_context(peer)
        peer.request("/metrics")
    await until(lambda: server.stats().requests.get(("metrics", 200), 0) == before + number)


def test_idle_connections_cannot_keep_out_a_scrape() -> None:
    async def check() -> None:
        async with serving(limits=LIMITS) as server, AsyncExitStack() as stack:
            await crowd(stack, port_of(server), CROWD, 20, "/healthz")
            for _ in range(20):
                assert (await fetch(port_of(server), source=SCRAPER)).status == 200
            assert set(server.stats().connections_refused) == {"evicted"}

    run(check())


def test_connections_that_were_only_refused_cannot_keep_out_a_scrape(tmp_path: Path) -> None:
    path = tmp_path / "web.yml"
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(rounds=4)).decode()
    path.write_text(f"basic_auth_users: {{prometheus: {hashed}}}\n")

    async def check() -> None:
        async with (
            serving(limits=LIMITS, web_config=path) as server,
            await Peer.connect(port_of(server), source=SCRAPER) as scraper,
            AsyncExitStack() as stack,
        ):
            assert (await scraper.ask("/metrics", headers=PASSWORD)).status == 200
            await crowd(stack, port_of(server), CROWD, 20, "/metrics")
            assert (await fetch(port_of(server), source=NEWCOMER, headers=PASSWORD)).status == 200
            assert (await scraper.ask("/metrics", headers=PASSWORD)).status == 200, "an idle peer with access is kept"

    run(check())


def test_guesses_that_wait_for_their_check_cannot_keep_out_a_scraper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks never end here: every connection of the crowd has a request that runs."""
    path = tmp_path / "web.yml"
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(rounds=4)).decode()
    path.write_text(f"basic_auth_users: {{prometheus: {hashed}}}\n")

    async def check() -> None:
        async with serving(limits=LIMITS, web_config=path) as server, AsyncExitStack() as stack:
            port = port_of(server)
            assert (await fetch(port, source=SCRAPER, headers=PASSWORD)).status == 200
            ended = asyncio.Event()

            async def never(*_: object) -> bool:
                return await ended.wait()

            monkeypatch.setattr(Authenticator, "_matches", never)
            # It is connected, and has sent nothing yet: more guessers come.
            scraper = await stack.enter_async_context(await Peer.connect(port, source=SCRAPER))
            for number in range(3 * LIMITS.connections):
                guess = base64.b64encode(f"prometheus:{number}".encode()).decode()
                source = CROWD[number % len(CROWD)]
                peer = await stack.enter_async_context(await Peer.connect(port, source=source))
                peer.request("/metrics", headers={"Authorization": f"Basic {guess}"})
                await asyncio.sleep(0)
            await until(lambda: server.stats().connections_refused.get("evicted", 0) > LIMITS.connections)
            assert (await scraper.ask("/metrics", headers=PASSWORD)).status == 200
            for _ in range(10):
                assert (await fetch(port, source=SCRAPER, headers=PASSWORD)).status == 200
            assert (await fetch(port, source=NEWCOMER, headers=PASSWORD)).status == 200
            ended.set()

    run(check())


async def no_events() -> AsyncGenerator[bytes, None]:
    await asyncio.Event().wait()
    yield b""


def stream_or_answer(head: RequestHead, guard: ConnectionGuard) -> OutgoingResponse:
    guard.served = True
    return OutgoingResponse(200, b"", b"", no_events) if head.path == "/stream" else small_answer(head, guard)


def test_stream_viewers_cannot_keep_out_a_scrape() -> None:
    async def check() -> None:
        async with guarded(stream_or_answer, LIMITS) as (port, connections), AsyncExitStack() as stack:
            await crowd(stack, port, CROWD, 20, "/stream")
            for _ in range(20):
                assert (await fetch(port, source=SCRAPER)).status == 200
            assert set(connections.refused) == {"evicted"}

    run(check())


def test_the_origin_with_the_most_connections_loses_one_first() -> None:
    async def check() -> None:
        async with serving(limits=ConnectionLimits(connections=6)) as server, AsyncExitStack() as stack:
            single = (await crowd(stack, port_of(server), CROWD[:1], 1, "/healthz"))[0]
            await crowd(stack, port_of(server), CROWD[1:2], 5, "/healthz")
            await crowd(stack, port_of(server), CROWD[2:], 4, "/healthz")
            assert (await single.ask("/healthz")).status == 200

    run(check())


def test_running_requests_of_one_origin_leave_connections_to_others() -> None:
    async def check() -> None:
        async with serving(FakeFaces(padding=PADDING), limits=ConnectionLimits(4)) as server, AsyncExitStack() as stack:
            await slow_readers(stack, server, CROWD[0], 3)
            assert (await fetch(port_of(server), "/healthz", source=CROWD[0])).status == 503
            assert server.stats().connections_refused == {"origin_limit": 1}
            assert (await fetch(port_of(server), "/healthz", source=NEWCOMER)).status == 200

    run(check())


def test_connections_are_reserved_for_origins_that_have_scraped() -> None:
    async def check() -> None:
        limits = ConnectionLimits(connections=16)
        async with serving(FakeFaces(padding=PADDING), limits=limits) as server, AsyncExitStack() as stack:
            port = port_of(server)
            assert (await fetch(port, "/metrics", source=SCRAPER)).status == 200
            await until(lambda: server.stats().connections_open == 0)
            await slow_readers(stack, server, CROWD[0], 7)
            await slow_readers(stack, server, CROWD[1], 7)
            refused = await fetch(port, "/healthz", source=NEWCOMER)
            assert (refused.status, refused.body) == (503, b"too many connections\n")
            assert server.stats().connections_refused == {"connection_limit": 1}
            assert (await fetch(port, "/metrics", source=SCRAPER)).status == 200

    run(check())


@pytest.mark.parametrize(
    ("sockaddr", "origin"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("::ffff:192.0.2.7", 1, 0, 0), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "2001:db8:1:2::"),
        (("fe80::1%eth0", 1, 0, 3), "fe80::"),
    ],
)
def test_an_origin_is_an_address_or_an_ipv6_network(sockaddr: tuple[str | int, ...], origin: str) -> None:
    with socket.socket() as unused:
        assert origin_of(unused, sockaddr) == origin
