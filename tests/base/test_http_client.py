"""The HTTP client: every failure of a request is the caller's exception, with a reason and one line."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from fakes.authority import Authority
from gpucommons.base.http_client import (
    BrokenAnswer,
    HttpError,
    HttpRequest,
    body_of,
    encode_fields,
    exchange,
    get_json,
    lines_of,
    post_json,
    verifying_context,
)
from peers import run


class Failed(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


async def get_from(response: web.Response, max_bytes: int = 1000) -> object:
    async def handler(request: web.BaseRequest) -> web.Response:
        return response

    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        return await get_json(url, "the server", Failed, timeout_s=10, max_bytes=max_bytes)
    finally:
        await runner.cleanup()


def test_a_good_answer_is_parsed() -> None:
    assert run(get_from(web.json_response({"a": [1]}))) == {"a": [1]}


@pytest.mark.parametrize(
    ("response", "reason", "says"),
    [
        (lambda: web.Response(text="<html>"), "garbage", "the server sent an answer that is not JSON"),
        (lambda: web.Response(text="x" * 1001), "oversize", "the server sent an answer of more than 1000 bytes"),
        (lambda: web.Response(status=500, text="<html>"), "status", "the server answered with status 500"),
        (
            lambda: web.json_response({"error": "parse\nerror"}, status=400),
            "status",
            "the server answered with status 400: parse error",
        ),
        (
            lambda: web.json_response("bad filter", status=400),
            "status",
            "the server answered with status 400: bad filter",
        ),
        (
            lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}),
            "status",
            "the server answered with status 302",
        ),
    ],
)
def test_a_bad_answer_is_a_failure_of_one_line(response: object, reason: str, says: str) -> None:
    assert callable(response)
    with pytest.raises(Failed) as caught:
        run(get_from(response()))
    assert (caught.value.reason, str(caught.value)) == (reason, says)


@pytest.mark.parametrize(
    ("url", "reason"),
    [("http://127.0.0.1:1/", "unreachable"), ("http://[/", "garbage")],
)
def test_a_server_that_cannot_be_reached_is_a_failure(url: str, reason: str) -> None:
    with pytest.raises(Failed) as caught:
        run(get_json(url, "the server", Failed, timeout_s=10, max_bytes=10))
    assert caught.value.reason == reason
    assert "\n" not in str(caught.value)


# Answers as bytes, and what the server received.


class RawServer:
    """Sends these bytes after the head of a request, in pieces of the given size; then closes, or stays silent."""

    def __init__(self, answer: bytes, piece: int = 1_000_000, stays: bool = False) -> None:
        self._answer = answer
        self._piece = piece
        self._stays = stays
        self.received = b""
        self.url = ""

    @asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncIterator["RawServer"]:
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0, ssl=tls)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            self.received = await reader.readuntil(b"\r\n\r\n")
            for start in range(0, len(self._answer), self._piece):
                writer.write(self._answer[start : start + self._piece])
                await writer.drain()
                await asyncio.sleep(0)
            if self._stays:
                await reader.read()
        writer.close()


def body_from(answer: bytes, piece: int = 1_000_000, silence_s: float | None = None) -> bytes:
    async def scenario() -> bytes:
        async with (
            RawServer(answer, piece, stays=silence_s is not None).serving() as server,
            exchange(HttpRequest(server.url, total_s=10, silence_s=silence_s)) as response,
        ):
            assert response.status == 200
            return await body_of(response, 1_000_000)

    return run(scenario())


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nX-Trailer: 1\r\n\r\n"


@pytest.mark.parametrize("piece", [1, 7, 1_000_000])
@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 7\r\n\r\nabcdefg",
        OK + b"Content-Length: 7\r\nConnection: close\r\n\r\nabcdefgand more",
        CHUNKED,
        OK + b"\r\nabcdefg",
        b"HTTP/1.0 200 OK\r\n\r\nabcdefg",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 7\r\n\r\nabcdefg",
    ],
    ids=["length", "more than the length", "chunks", "until the end", "HTTP/1.0", "after 100"],
)
def test_a_body_is_complete_however_it_is_sent(answer: bytes, piece: int) -> None:
    assert body_from(answer, piece) == b"abcdefg"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", HttpError),
        (b"HTTP/1.1 20", BrokenAnswer),
        (b"SSH-2.0-OpenSSH_9.2\r\n", BrokenAnswer),
        (OK + b"Content-Length: 8\r\n\r\nabcdefg", BrokenAnswer),
        (CHUNKED[:-30], BrokenAnswer),
        (OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", BrokenAnswer),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", BrokenAnswer),
        (OK + b"X: " + b"a" * 10_000_000, BrokenAnswer),
        (OK + b"X: y\r\n" * 1_000_000, BrokenAnswer),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000, BrokenAnswer),
        (CHUNKED[:-2] + b"X: " + b"a" * 10_000_000, BrokenAnswer),
    ],
    ids=[
        *("nothing", "half a line", "no HTTP", "cut off", "cut off in chunks", "two lengths", "another protocol"),
        *("endless field", "endless fields", "endless 100", "endless trailer"),
    ],
)
def test_a_broken_or_endless_answer_is_an_error(answer: bytes, error: type[HttpError]) -> None:
    with pytest.raises(HttpError) as caught:
        body_from(answer)
    assert type(caught.value) is error


def test_a_server_that_stops_sending_is_left() -> None:
    for answer in (OK, OK + b"Content-Length: 7\r\n\r\nabc"):
        with pytest.raises(TimeoutError):
            body_from(answer, silence_s=0.05)


def test_lines_come_as_they_are_sent() -> None:
    async def scenario() -> None:
        async with (
            RawServer(OK + b"\r\none\n\ntwo\nthr", stays=True).serving() as server,
            exchange(HttpRequest(server.url, total_s=10)) as answer,
        ):
            lines = lines_of(answer, 100)
            assert [await anext(lines), await anext(lines)] == [b"one", b"two"]

    run(scenario())


def test_what_a_server_receives() -> None:
    async def scenario() -> bytes:
        async with RawServer(OK + b"Content-Length: 2\r\n\r\n{}").serving() as server:
            url = server.url.replace("//", "//us%40er:pass@") + "/a b/\u00e9?x=1"
            await get_json(url, "test", Failed, parameters={"q": "a b&c\r\n"}, timeout_s=10, max_bytes=10)
            return server.received

    line, *fields = run(scenario()).decode().removesuffix("\r\n\r\n").split("\r\n")
    assert line == "GET /a%20b/%C3%A9?x=1&q=a+b%26c%0D%0A HTTP/1.1"
    assert fields[0].startswith("Host: 127.0.0.1:")
    assert "Authorization: Basic dXNAZXI6cGFzcw==" in fields
    assert "Connection: close" in fields


def test_a_post_without_a_value_has_no_body() -> None:
    async def scenario() -> bytes:
        async with RawServer(b"HTTP/1.1 204 No Content\r\n\r\n").serving() as server:
            await post_json(server.url, None, "test", Failed, timeout_s=10)
            return server.received

    received = run(scenario())
    assert received.startswith(b"POST / HTTP/1.1\r\n")
    assert b"Content-Length: 0\r\n" in received


def test_the_next_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> object:
        async with RawServer(OK + b"Content-Length: 2\r\n\r\n{}").serving() as server:
            loop, port = asyncio.get_running_loop(), int(server.url.rpartition(":")[2])

            async def addresses(*_: object, **__: object) -> list[object]:
                return [
                    (socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port)) for host in ("127.0.0.2", "127.0.0.1")
                ]

            monkeypatch.setattr(loop, "getaddrinfo", addresses)
            return await get_json(f"http://node:{port}", "test", Failed, timeout_s=10, max_bytes=10)

    assert asyncio.run(scenario()) == {}


@pytest.mark.parametrize("run_on", [asyncio.run, run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(("trusts", "name"), [(True, "127.0.0.1"), (True, "127.0.0.9"), (False, "127.0.0.1")])
def test_a_server_is_verified(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trusts: bool,
    name: str,
    run_on: Callable[[Awaitable[object]], object],
) -> None:
    ours, other = Authority(tmp_path), Authority(tmp_path, "another authority")
    monkeypatch.setenv("SSL_CERT_FILE", str((ours if trusts else other).path))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    verifying_context.cache_clear()

    async def scenario() -> object:
        async with RawServer(OK + b"Content-Length: 2\r\n\r\n42").serving(ours.server_tls(name)) as server:
            return await get_json(server.url, "test", Failed, timeout_s=10, max_bytes=10)

    try:
        if trusts and name == "127.0.0.1":
            assert run_on(scenario()) == 42
        else:
            with pytest.raises(Failed, match="test cannot be trusted") as caught:
                run_on(scenario())
            assert caught.value.reason == "tls"
    finally:
        verifying_context.cache_clear()


def test_https_without_certificates_is_not_sent() -> None:
    async def scenario() -> None:
        async with RawServer(OK).serving() as server, exchange(HttpRequest(server.url.replace("http:", "https:"))):
            pass

    with pytest.raises(ssl.SSLError):
        run(scenario())


def test_a_field_cannot_end_its_line() -> None:
    assert encode_fields({"A": "b", "C": "d"}) == b"A: b\r\nC: d\r\n"
    for value in ("x\r\nSet-Cookie: y", "x\ny", "x\0"):
        with pytest.raises(ValueError, match="control character"):
            encode_fields({"A": value})
