"""What every HTTP client here keeps to: bounded answers, and failures as the caller's own exception.

Follows no redirect, keeps no cookie, uses no proxy variable.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from gpucommons.base.text import LineSplitter, LineTooLong

# Imported where it is used: it takes a fifth of a second, and most modules that import this one send no request.
if TYPE_CHECKING:
    import aiohttp

_CHUNK_BYTES = 64 * 1024
_LONGEST_DETAIL = 200
# Request timeout and too many requests.
_LATER = (408, 429)

Failure = Callable[[str, str], Exception]
"""Makes the exception of the caller from a reason (a short constant) and a detail (one line)."""


class BodyTooLong(Exception):
    """The body of a response is longer than the caller allows."""


@contextmanager
def failures_of(server: str, failure: Failure) -> Iterator[None]:
    """Turns what a request can raise into a `failure`. Errors of connecting pass through as OSErrors."""
    from gpucommons.base.http_library import aiohttp

    try:
        yield
    except TimeoutError:
        raise failure("timeout", f"{server} does not answer in time") from None
    except aiohttp.ClientSSLError as error:
        raise failure("tls", f"{server} cannot be trusted: {_short(error)}") from None
    except aiohttp.ClientConnectorError as error:
        raise error.os_error from None
    except (aiohttp.ClientResponseError, aiohttp.ClientPayloadError, aiohttp.InvalidURL) as error:
        raise failure("garbage", f"{server} sent a broken answer: {_short(error)}") from None
    except aiohttp.ClientError as error:
        raise failure("disconnected", f"{server} closed the connection: {_short(error)}") from None
    except (LineTooLong, BodyTooLong) as error:
        raise failure("oversize", f"{server} sent {error}") from None


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
    status, body = await _carry_out(_Request("GET", url, server, at, failure, timeout_s, parameters), max_bytes)
    if status != 200:
        raise failure("status", f"{server} answered with status {status}{_reason(body)}")
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
    async with _answer(_Request("GET", url, server, at, failure, timeout_s, parameters)) as response:
        if response.status != 200:
            body = await body_of(response, _CHUNK_BYTES)
            raise failure("status", f"{server} answered with status {response.status}{_reason(body)}")
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            size += len(chunk)
            if size > max_bytes:
                raise failure("oversize", f"{server} sent an answer of more than {max_bytes} bytes")
            yield chunk


async def post_json(
    url: str, value: object, server: str, failure: Failure, *, timeout_s: float, max_bytes: int = _CHUNK_BYTES
) -> None:
    """One POST on a new connection, without a body if `value` is None. Every failure is a `failure`, without the URL.

    The body of a success is not read: however long or slow it is, the request was carried out, and is not repeated.
    The reason is `status` for a refusal that will be repeated, and `busy` for one that a later try may not get.
    """
    async with _answer(_Request("POST", url, server, server, failure, timeout_s, json=value)) as response:
        status = response.status
        if 200 <= status < 300:
            return
        body = await _beginning(response, max_bytes)
    reason = "busy" if status in _LATER or status >= 500 else "status"
    raise failure(reason, f"{server} answered with status {status}{_reason(body)}")


class _Request(NamedTuple):
    """`at` names the server where it cannot be reached."""

    method: str
    url: str
    server: str
    at: str
    failure: Failure
    timeout_s: float
    parameters: Mapping[str, str] | None = None
    json: object = None


async def _carry_out(request: _Request, max_bytes: int) -> tuple[int, bytes]:
    """Status and body of the answer."""
    async with _answer(request) as response:
        return response.status, await body_of(response, max_bytes)


@asynccontextmanager
async def _answer(request: _Request) -> AsyncIterator["aiohttp.ClientResponse"]:
    from gpucommons.base.http_library import aiohttp, verifying_context

    url, timeout = request.url, aiohttp.ClientTimeout(total=request.timeout_s)
    try:
        with failures_of(request.server, request.failure):
            tls = await asyncio.to_thread(verifying_context) if url.lower().startswith("https:") else True
            async with (
                aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.request(
                    request.method, url, params=request.parameters, json=request.json, ssl=tls, allow_redirects=False
                ) as response,
            ):
                yield response
    except OSError as error:
        raise request.failure("unreachable", f"cannot reach {request.at}: {_why(error)}") from None


async def _beginning(response: "aiohttp.ClientResponse", max_bytes: int) -> bytes:
    body = b""
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) >= max_bytes:
            break
    return body[:max_bytes]


async def body_of(response: "aiohttp.ClientResponse", max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        size += len(chunk)
        if size > max_bytes:
            raise BodyTooLong(f"an answer of more than {max_bytes} bytes")
        parts.append(chunk)
    return b"".join(parts)


async def lines_of(response: "aiohttp.ClientResponse", max_bytes: int) -> AsyncIterator[bytes]:
    """The whole lines of a stream as they come; ends when the stream does."""
    splitter = LineSplitter(max_bytes)
    async for chunk in response.content.iter_any():
        for line in splitter.feed(chunk):
            yield line


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
