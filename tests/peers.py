"""Raw HTTP peers on real sockets, well-behaved or not, and a web server to connect to."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from fakes.faces import FakeFaces
from gpucommons.faces.web.http.connections import ConnectionLimits
from gpucommons.faces.web.http.server import WebServer

T = TypeVar("T")
# Only a hang reaches it: a test waits for events and not for this clock.
_HANG_S = 30.0


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the event loop that the agent uses; a hang is a failure."""

    async def bounded() -> T:
        async with asyncio.timeout(_HANG_S):
            return await coroutine

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())


@asynccontextmanager
async def serving(
    faces: FakeFaces | None = None,
    listeners: Iterable[tuple[str, str | None]] = (("127.0.0.1:0", None),),
    *,
    limits: ConnectionLimits | None = None,
    web_config: Path | None = None,
    poll_s: float = 0.05,
    snapshot_stale_after_s: float = 10.0,
) -> AsyncIterator[WebServer]:
    server = WebServer(
        faces or FakeFaces(),
        listeners,
        limits=limits,
        web_config=web_config,
        poll_s=poll_s,
        snapshot_stale_after_s=snapshot_stale_after_s,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def until(true: Callable[[], bool]) -> None:
    """Waits for a change made by another task."""
    while not true():  # noqa: ASYNC110 - a counter of the server has no event to wait for
        await asyncio.sleep(0.005)


def port_of(server: WebServer) -> int:
    return server.addresses[0].port


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    version: str


class Peer:
    """One connection. It sends exactly the bytes that the test gives."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(
        cls,
        port: int,
        *,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        receive_buffer: int | None = None,
        source: str | None = None,
    ) -> "Peer":
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        raw = socket.socket(family, socket.SOCK_STREAM)
        raw.setblocking(False)
        if receive_buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if source is not None:
            raw.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(raw, (host, port))
        return await cls.over(raw, tls)

    @classmethod
    async def over(cls, connected: socket.socket, tls: ssl.SSLContext | None = None) -> "Peer":
        # A small limit: otherwise the stream reads ahead, and no reader is slow.
        reader, writer = await asyncio.open_connection(
            sock=connected, ssl=tls, server_hostname="localhost" if tls else None, limit=4096
        )
        return cls(reader, writer)

    async def __aenter__(self) -> "Peer":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def request(
        self,
        path: str,
        method: str = "GET",
        version: str = "1.1",
        headers: Mapping[str, str] | None = None,
        host: str = "localhost",
    ) -> None:
        lines = [f"{method} {path} HTTP/{version}", f"Host: {host}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def ask(
        self, path: str, method: str = "GET", version: str = "1.1", headers: Mapping[str, str] | None = None
    ) -> Answer:
        self.request(path, method, version, headers)
        return await self.answer(has_body=method != "HEAD")

    async def answer(self, has_body: bool = True) -> Answer:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, status, *_ = lines[0].split(" ")
        headers = {}
        for line in lines[1:-2]:
            name, _, value = line.partition(":")
            assert name.lower() not in headers, f"{name} came twice"
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", "0"))
        body = await self.reader.readexactly(length) if has_body else b""
        return Answer(int(status), headers, body, version)

    async def ended(self) -> bytes:
        """What arrives until the server closes the connection."""
        try:
            return await self.reader.read(-1)
        except ConnectionError:
            return b""


async def fetch(
    port: int,
    path: str = "/metrics",
    method: str = "GET",
    *,
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    source: str | None = None,
) -> Answer:
    async with await Peer.connect(port, host=host, tls=tls, source=source) as peer:
        return await peer.ask(path, method, headers=headers)
