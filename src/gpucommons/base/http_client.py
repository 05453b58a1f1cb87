"""HTTP for clients: one request on a connection of its own, with bounded answers, over TCP, TLS or a Unix socket.

Follows no redirect, keeps no cookie, uses no proxy variable, and asks for no compression. What can go wrong is an
OSError up to the connection, and an HttpError from then on; `failures_of` turns them into the caller's exception.
"""

import asyncio
import base64
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from gpucommons.base.text import LineSplitter, LineTooLong

_CHUNK_BYTES = 64 * 1024
# Of an answer without content: its head, its trailers, the framing of chunks.
_MAX_BARREN_BYTES = 128 * 1024
# An address that does not answer in this time is left for the next one of the same name.
_NEXT_ADDRESS_S = 1.0
_PORTS = {"http": 80, "https": 443}
_LONGEST_DETAIL = 200
# Request timeout and too many requests.
_LATER = (408, 429)

Failure = Callable[[str, str], Exception]
"""Makes the exception of the caller from a reason (a short constant) and a detail (one line)."""


class HttpError(Exception):
    """The server closed the connection without an answer."""


class BrokenAnswer(HttpError):
    """The answer is not HTTP, or not all of it has come."""


class BodyTooLong(Exception):
    """The body of a response is longer than the caller allows."""


@cache
def verifying_context() -> ssl.SSLContext:
    """Trusts the certificates of the system. Reads files: not for the loop."""
    return ssl.create_default_context()


def encode_fields(headers: Mapping[str, str]) -> bytes:
    """The lines of header fields, of a request or a response. Raises ValueError where a value would end its line."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if lines.count("\r") != len(headers) or lines.count("\n") != len(headers) or "\0" in lines:
        raise ValueError(f"a control character in a header field: {lines!r}")
    return lines.encode()


# One request and its answer.


class HttpRequest(NamedTuple):
    """`tls` is for https. With `socket_path`, the host of the URL is only a name.

    Limits: `total_s` from the beginning to the end, `connect_s` for the connection, `silence_s` between two receipts.
    """

    url: str
    method: str = "GET"
    parameters: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    socket_path: str = ""
    tls: ssl.SSLContext | None = None
    total_s: float | None = None
    connect_s: float | None = None
    silence_s: float | None = None


@asynccontextmanager
async def exchange(request: HttpRequest) -> AsyncIterator["Answer"]:
    """Sends the request, and yields its answer once the head has come. Raises OSError and HttpError."""
    url = _split(request.url)
    head = _head(request, url)
    async with asyncio.timeout(request.total_s):
        async with asyncio.timeout(request.connect_s):
            reader, writer = await _connect(request, url)
        answer = Answer(reader, request.silence_s)
        try:
            writer.write(head + (request.body or b""))
            await answer.begin()
            yield answer
        finally:
            answer.release()
            writer.transport.abort()


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.scheme in _PORTS and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass
    raise BrokenAnswer("its URL is not one of http:// or https://")


def _head(request: HttpRequest, url: SplitResult) -> bytes:
    query = "&".join(part for part in (url.query, urlencode(request.parameters)) if part)
    target = quote(url.path or "/", safe="/%:@!$&'()*+,;=~") + (f"?{query}" if query else "")
    fields = {"Host": url.netloc.rpartition("@")[2], "Accept": "*/*", "User-Agent": "gpucommons", "Connection": "close"}
    if url.username is not None:
        credentials = f"{unquote(url.username)}:{unquote(url.password or '')}".encode()
        fields["Authorization"] = f"Basic {base64.b64encode(credentials).decode()}"
    if request.body is not None or request.method != "GET":
        fields["Content-Length"] = str(len(request.body or b""))
    return f"{request.method} {target} HTTP/1.1\r\n".encode() + encode_fields({**fields, **request.headers}) + b"\r\n"


async def _connect(request: HttpRequest, url: SplitResult) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if request.socket_path:
        return await asyncio.open_unix_connection(request.socket_path)
    host = url.hostname or ""
    connected = await _connect_to_first(host, url.port or _PORTS[url.scheme])
    if url.scheme == "http":
        return await asyncio.open_connection(sock=connected)
    if request.tls is None:
        connected.close()
        raise ssl.SSLError("no certificates to verify the server with")
    return await asyncio.open_connection(sock=connected, ssl=request.tls, server_hostname=host)


async def _connect_to_first(host: str, port: int) -> socket.socket:
    """A connection to the first address of the host that accepts one."""
    loop = asyncio.get_running_loop()
    *others, last = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in others:
        try:
            async with asyncio.timeout(_NEXT_ADDRESS_S):
                return await _connect_socket(loop, socket.socket(family, kind, protocol), address)
        except OSError:
            continue
    family, kind, protocol, _, address = last
    return await _connect_socket(loop, socket.socket(family, kind, protocol), address)


async def _connect_socket(
    loop: asyncio.AbstractEventLoop, unconnected: socket.socket, address: tuple[object, ...]
) -> socket.socket:
    unconnected.setblocking(False)
    try:
        await loop.sock_connect(unconnected, address)
    except BaseException:
        unconnected.close()
        raise
    return unconnected


class Answer:
    """The answer to a request. `status` is known from the beginning; the body comes in `chunks`."""

    def __init__(self, reader: asyncio.StreamReader, silence_s: float | None) -> None:
        self.status = 0
        self._reader = reader
        self._silence_s = silence_s
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._has_length = False
        self._is_complete = False
        self._barren_bytes = 0

    def release(self) -> None:
        """The parser and this object refer to each other."""
        self._parser = None

    async def begin(self) -> None:
        while not self.status:
            await self._receive()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, in pieces of at most 64 KiB."""
        while True:
            pieces, self._pieces = self._pieces, []
            for piece in pieces:
                yield piece
            if self._is_complete:
                return
            await self._receive()

    async def _receive(self) -> None:
        try:
            async with asyncio.timeout(self._silence_s):
                data = await self._reader.read(_CHUNK_BYTES)
        except (TimeoutError, ssl.SSLError):
            raise
        except OSError as error:
            raise HttpError(_why(error)) from None
        if data:
            self._parse(data)
        elif not self.status and not self._barren_bytes:
            raise HttpError("no answer")
        elif not self.status or self._has_length:
            raise BrokenAnswer("it ends too early")
        else:
            # Without a length, the end of the connection is that of the body.
            self._is_complete = True

    def _parse(self, data: bytes) -> None:
        if self._parser is None:
            raise HttpError("the request has ended")
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            raise BrokenAnswer("it changes the protocol") from None
        except HttpParserError as error:
            # After its end, it does not matter what the server sends.
            if not self._is_complete:
                raise BrokenAnswer(str(error)) from None
        self._barren_bytes = 0 if self._pieces else self._barren_bytes + len(data)
        if self._barren_bytes > _MAX_BARREN_BYTES:
            raise BrokenAnswer(f"more than {_MAX_BARREN_BYTES} bytes without content")

    # Called by httptools.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        status = 0 if self._parser is None else self._parser.get_status_code()
        # Below 200 the answer is yet to come.
        if status >= 200:
            self.status = status
        else:
            self._has_length = False

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._is_complete = self.status != 0


async def body_of(answer: Answer, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in answer.chunks():
        size += len(chunk)
        if size > max_bytes:
            raise BodyTooLong(f"an answer of more than {max_bytes} bytes")
        parts.append(chunk)
    return b"".join(parts)


async def lines_of(answer: Answer, max_bytes: int) -> AsyncIterator[bytes]:
    """The whole lines of a stream as they come; ends when the stream does."""
    splitter = LineSplitter(max_bytes)
    async for chunk in answer.chunks():
        for line in splitter.feed(chunk):
            yield line


@contextmanager
def failures_of(server: str, failure: Failure) -> Iterator[None]:
    """Turns what a request can raise into a `failure`. Errors of connecting pass through as OSErrors."""
    try:
        yield
    except TimeoutError:
        raise failure("timeout", f"{server} does not answer in time") from None
    except ssl.SSLError as error:
        raise failure("tls", f"{server} cannot be trusted: {_short(error)}") from None
    except BrokenAnswer as error:
        raise failure("garbage", f"{server} sent a broken answer: {_short(error)}") from None
    except HttpError as error:
        raise failure("disconnected", f"{server} closed the connection: {_short(error)}") from None
    except (LineTooLong, BodyTooLong) as error:
        raise failure("oversize", f"{server} sent {error}") from None


# Whole requests to servers that speak JSON.


async def get_json(
    url: str,
    server: str,
    failure: Failure,
    *,
    parameters: Mapping[str, str] | None = None,
    timeout_s: float,
    max_bytes: int,
) -> object:
    """One GET on a new connection. Every failure is a `failure`: nothing else is raised."""
    at = f"{server} at {url}"
    async with _answer(HttpRequest(url, parameters=parameters or {}, total_s=timeout_s), server, at, failure) as answer:
        body = await body_of(answer, max_bytes)
    if answer.status != 200:
        raise failure("status", f"{server} answered with status {answer.status}{_reason(body)}")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise failure("garbage", f"{server} sent an answer that is not JSON") from None


async def get_chunks(
    url: str,
    server: str,
    failure: Failure,
    *,
    parameters: Mapping[str, str],
    timeout_s: float,
    max_bytes: int,
) -> AsyncIterator[bytes]:
    """The body of one GET as it comes, for answers that are read piece by piece. Every failure is a `failure`."""
    at, size = f"{server} at {url}", 0
    async with _answer(HttpRequest(url, parameters=parameters, total_s=timeout_s), server, at, failure) as answer:
        if answer.status != 200:
            body = await body_of(answer, _CHUNK_BYTES)
            raise failure("status", f"{server} answered with status {answer.status}{_reason(body)}")
        async for chunk in answer.chunks():
            size += len(chunk)
            if size > max_bytes:
                raise failure("oversize", f"{server} sent an answer of more than {max_bytes} bytes")
            yield chunk


async def post_json(url: str, value: object, server: str, failure: Failure, *, timeout_s: float) -> None:
    """One POST on a new connection, without a body if `value` is None. Every failure is a `failure`, without the URL.

    The body of a success is not read: however long or slow it is, the request was carried out, and is not repeated.
    The reason is `status` for a refusal that will be repeated, and `busy` for one that a later try may not get.
    """
    body = None if value is None else json.dumps(value).encode()
    headers = {} if body is None else {"Content-Type": "application/json"}
    request = HttpRequest(url, "POST", headers=headers, body=body, total_s=timeout_s)
    async with _answer(request, server, server, failure) as answer:
        status = answer.status
        if 200 <= status < 300:
            return
        body = await _beginning(answer)
    reason = "busy" if status in _LATER or status >= 500 else "status"
    raise failure(reason, f"{server} answered with status {status}{_reason(body)}")


@asynccontextmanager
async def _answer(request: HttpRequest, server: str, at: str, failure: Failure) -> AsyncIterator[Answer]:
    """The answer, and every failure as the caller's. `at` names the server where it cannot be reached."""
    try:
        with failures_of(server, failure):
            if request.url.lower().startswith("https:"):
                request = request._replace(tls=await asyncio.to_thread(verifying_context))
            async with exchange(request) as answer:
                yield answer
    except OSError as error:
        raise failure("unreachable", f"cannot reach {at}: {_why(error)}") from None


async def _beginning(answer: Answer) -> bytes:
    body = b""
    async for chunk in answer.chunks():
        body += chunk
        if len(body) >= _CHUNK_BYTES:
            break
    return body[:_CHUNK_BYTES]


def _reason(body: bytes) -> str:
    """What a JSON API says about its refusal: Prometheus sends {"error": ...}, Alertmanager a string."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    reason = answer.get("error") if isinstance(answer, dict) else answer
    return f": {' '.join(reason.split())[:_LONGEST_DETAIL]}" if isinstance(reason, str) else ""


def _why(error: OSError) -> str:
    """The plain reason: asyncio writes the address into its text. A name that is not known has a number below 0."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)


def _short(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:_LONGEST_DETAIL]
