"""What every HTTP client here keeps to: bounded answers, and failures told as SourceErrors.

Never follows a redirect, keeps no cookie, heeds no proxy variable.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import aiohttp

from gpucommons.base.json_lines import LineSplitter, LineTooLong
from gpucommons.sources.source import SourceError

_CHUNK_BYTES = 64 * 1024
_LONG_DETAIL = 200


@contextmanager
def failures_of(whose: str) -> Iterator[None]:
    """Turns what a request may raise into a SourceError; errors of connecting pass through as OSErrors."""
    try:
        yield
    except TimeoutError:
        raise SourceError("timeout", f"{whose} does not answer in time") from None
    except aiohttp.ClientSSLError as error:
        raise SourceError("tls", f"{whose} cannot be trusted: {_short(error)}") from None
    except aiohttp.ClientConnectorError as error:
        raise error.os_error from None
    except (aiohttp.ClientResponseError, aiohttp.ClientPayloadError, aiohttp.InvalidURL) as error:
        raise SourceError("garbage", f"{whose} sent a broken answer: {_short(error)}") from None
    except aiohttp.ClientError as error:
        raise SourceError("disconnected", f"{whose} closed the connection: {_short(error)}") from None
    except LineTooLong as error:
        raise SourceError("oversize", f"{whose} sent {error}") from None


async def body_of(response: aiohttp.ClientResponse, most_bytes: int, whose: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        size += len(chunk)
        if size > most_bytes:
            raise SourceError("oversize", f"{whose} sent an answer of more than {most_bytes} bytes")
        parts.append(chunk)
    return b"".join(parts)


async def lines_of(response: aiohttp.ClientResponse, most_bytes: int) -> AsyncIterator[bytes]:
    """The whole lines of a stream as they come; ends when the stream does."""
    splitter = LineSplitter(most_bytes)
    async for chunk in response.content.iter_any():
        for line in splitter.feed(chunk):
            yield line


def _short(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:_LONG_DETAIL]
