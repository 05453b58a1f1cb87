"""HTTP/1.1 on one connection, behind its guard: requests in, responses out, one at a time and in order.

Most responses are ready at once: they are sent from `data_received`, without a task. A response has a task if it has to
wait, for its content or for a peer that does not read. Meanwhile, what the peer sends is kept, and reading pauses.

A small body is written with its head. A large one is written in pieces as the peer reads them: all readers of a body
share it, and a slow one holds a piece of it at most. A stream is sent in chunks; its connection is closed after it.

A request with a body, or a malformed one, is the last of its connection: the next request could not be found. Its peer
may still be sending, and the kernel answers that with a reset if all is closed, which can lose the response. So only
the sending side is closed, and what the peer sends is dropped until it closes, too, or for two seconds.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import lru_cache
from typing import NamedTuple, cast

from gpucommons.base.http_client import encode_fields
from gpucommons.faces.web.http.connections import ConnectionGuard
from gpucommons.faces.web.http.request_head import HeadParser, RequestError, RequestHead
from gpucommons.faces.web.routes.request import PLAIN_TEXT, SECURITY_HEADERS

_WHOLE_BYTES = 128 * 1024
_PIECE_BYTES = 64 * 1024
_LINGER_S = 2.0
_NOT_MODIFIED = 304
# Requests of one peer that are answered before other peers get their turn.
_REQUESTS_AT_ONCE = 16
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

log = logging.getLogger(__name__)


class OutgoingResponse(NamedTuple):
    """`fields` are encoded header fields, except Date, Connection and those of the length. With `stream`, the body is
    what the generator yields. `is_last` closes the connection. `sent` is called when the transport has all of it."""

    status: int
    fields: bytes
    body: bytes
    stream: Callable[[], AsyncGenerator[bytes, None]] | None = None
    is_last: bool = False
    sent: Callable[[], None] | None = None


Handler = Callable[[RequestHead, ConnectionGuard], OutgoingResponse | Awaitable[OutgoingResponse]]
"""Makes the response to a request: at once, or later. Does not raise."""


class HttpConnection:
    """`tasks` has the responses of all connections that are not ready at once, so that the server can end them. `known`
    has the heads of requests that its parser remembers."""

    __slots__ = (
        "_drained",
        "_guard",
        "_handler",
        "_is_last",
        "_is_sending",
        "_is_stalled",
        "_linger",
        "_loop",
        "_parser",
        "_peer_ended",
        "_reading_paused",
        "_task",
        "_tasks",
        "_transport",
    )

    def __init__(
        self,
        handler: Handler,
        tasks: set[asyncio.Task[None]],
        known: dict[bytes, RequestHead],
        max_field_bytes: int,
        guard: ConnectionGuard,
    ) -> None:
        self._handler = handler
        self._tasks = tasks
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._parser = HeadParser(max_field_bytes, known)
        self._transport: asyncio.Transport | None = None
        # The response that is not ready at once, and whether it is being sent.
        self._task: asyncio.Task[None] | None = None
        self._is_sending = False
        # The peer does not read; `_drained` is the wait for it.
        self._is_stalled = False
        self._drained: asyncio.Future[None] | None = None
        self._reading_paused = False
        # The peer will send nothing more.
        self._peer_ended = False
        # No further request is taken.
        self._is_last = False
        self._linger: asyncio.TimerHandle | None = None

    # Called by the guard.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._is_last:
            return
        self._parser.feed(data)
        if self._is_busy:
            self._pause_reading()
        else:
            self._answer_requests()

    def eof_received(self) -> bool:
        """Whether the connection stays open for a response that is not ready yet."""
        self._peer_ended = True
        return self._task is not None

    def pause_writing(self) -> None:
        self._is_stalled = True

    def resume_writing(self) -> None:
        self._is_stalled = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._loop.call_soon(self._answer_requests)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        self._parser.release()
        if self._linger is not None:
            self._linger.cancel()
        # A response that is still being made is completed and counted; sending it has no use any more.
        if self._task is not None and self._is_sending:
            self._task.cancel()

    def close(self) -> None:
        """Take no further request; close after the response to the current one."""
        self._is_last = True
        if self._task is None and self._transport is not None:
            self._transport.close()

    # Requests.

    def _answer_requests(self) -> None:
        """Answers the requests that have come, until one of them has to wait."""
        for _ in range(_REQUESTS_AT_ONCE):
            transport = self._transport
            if transport is None or self._is_last or self._is_busy:
                return
            try:
                head = self._parser.next_head()
            except RequestError as error:
                self._refuse(transport, error)
                return
            if head is None:
                self._await_request(transport)
                return
            self._answer(transport, head)
        if not self._is_last:
            self._pause_reading()
            self._loop.call_soon(self._answer_requests)

    @property
    def _is_busy(self) -> bool:
        return self._task is not None or self._is_stalled

    def _await_request(self, transport: asyncio.Transport) -> None:
        if self._peer_ended:
            transport.close()
        else:
            self._resume_reading(transport)

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self, transport: asyncio.Transport) -> None:
        if self._reading_paused and not transport.is_closing():
            self._reading_paused = False
            transport.resume_reading()

    def _refuse(self, transport: asyncio.Transport, error: RequestError) -> None:
        self._guard.count_refusal("malformed")
        self._is_last = True
        body = f"{error.line}\n".encode()
        transport.write(_head(error.status, _REFUSAL_FIELDS, b"Content-Length: %d\r\n" % len(body), _CLOSE) + body)
        self._close_gently(transport)

    def _answer(self, transport: asyncio.Transport, head: RequestHead) -> None:
        self._guard.request_began()
        response = self._handler(head, self._guard)
        if isinstance(response, OutgoingResponse) and _is_small(head, response):
            self._send_whole(transport, head, response)
            self._guard.request_ended()
            self._end(transport, head, response)
        else:
            self._task = task = self._loop.create_task(self._answer_later(head, response))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    # Responses.

    async def _answer_later(self, head: RequestHead, response: OutgoingResponse | Awaitable[OutgoingResponse]) -> None:
        try:
            if not isinstance(response, OutgoingResponse):
                response = await response
            transport = self._transport
            if transport is None:
                return
            self._is_sending = True
            if _is_small(head, response):
                self._send_whole(transport, head, response)
            elif response.stream is None:
                await self._send_pieces(transport, head, response)
            else:
                await self._send_stream(transport, head, response, response.stream)
        except ConnectionError:
            return
        except Exception:
            log.exception("the response to %s %r broke off", head.method, head.path)
            if self._transport is not None:
                self._transport.abort()
            return
        finally:
            self._task, self._is_sending = None, False
            self._guard.request_ended()
        self._end(transport, head, response)
        self._answer_requests()

    def _send_whole(self, transport: asyncio.Transport, head: RequestHead, response: OutgoingResponse) -> None:
        if response.status == _NOT_MODIFIED or response.stream is not None:
            length = b""
        else:
            length = b"Content-Length: %d\r\n" % len(response.body)
        self._guard.sends(response.body)
        begin = self._begin(head, response, length)
        if head.method == "HEAD" or not response.body:
            transport.write(begin)
        else:
            transport.writelines((begin, response.body))

    async def _send_pieces(self, transport: asyncio.Transport, head: RequestHead, response: OutgoingResponse) -> None:
        self._guard.sends(response.body)
        transport.write(self._begin(head, response, b"Content-Length: %d\r\n" % len(response.body)))
        for piece in _pieces(response.body):
            transport.write(piece)
            await self._drain(transport)

    async def _send_stream(
        self,
        transport: asyncio.Transport,
        head: RequestHead,
        response: OutgoingResponse,
        stream: Callable[[], AsyncGenerator[bytes, None]],
    ) -> None:
        self._guard.exempt_stream()
        self._is_last = True
        # What the peer sends is dropped from now on, and its end is noticed.
        self._resume_reading(transport)
        is_chunked = not head.is_http_1_0
        transport.write(self._begin(head, response, b"Transfer-Encoding: chunked\r\n" if is_chunked else b""))
        async with aclosing(stream()) as events:
            async for event in events:
                self._guard.sends(event)
                for piece in _pieces(event):
                    if is_chunked:
                        transport.writelines((b"%x\r\n" % len(piece), piece, b"\r\n"))
                    else:
                        transport.write(piece)
                    await self._drain(transport)
        if is_chunked:
            transport.write(b"0\r\n\r\n")

    def _begin(self, head: RequestHead, response: OutgoingResponse, length: bytes) -> bytes:
        """The head of the response, and from now on whether it is the last one."""
        self._is_last = self._is_last or response.is_last or head.has_body or not head.keeps_alive
        if head.is_http_1_0:
            return _head(response.status, response.fields, length, b"" if self._is_last else _KEEP_ALIVE, b"0")
        return _head(response.status, response.fields, length, _CLOSE if self._is_last else b"")

    async def _drain(self, transport: asyncio.Transport) -> None:
        """Waits until the peer has read. With the loss of the connection the task is cancelled."""
        if transport.is_closing():
            raise ConnectionResetError
        if self._is_stalled:
            self._drained = self._loop.create_future()
            await self._drained

    def _end(self, transport: asyncio.Transport, head: RequestHead, response: OutgoingResponse) -> None:
        if response.sent is not None:
            response.sent()
        if self._is_last:
            if head.has_body:
                self._close_gently(transport)
            else:
                transport.close()

    def _close_gently(self, transport: asyncio.Transport) -> None:
        """Closes the sending side, and all when the peer has closed, too. With TLS, close() does that."""
        if self._peer_ended or transport.is_closing() or not transport.can_write_eof():
            transport.close()
        else:
            transport.write_eof()
            self._resume_reading(transport)
            self._linger = self._loop.call_later(_LINGER_S, transport.close)


_CLOSE = b"Connection: close\r\n"
_KEEP_ALIVE = b"Connection: keep-alive\r\n"
_REFUSAL_FIELDS = encode_fields({**SECURITY_HEADERS, "Content-Type": PLAIN_TEXT})


def _head(status: int, fields: bytes, length: bytes, connection: bytes, minor_version: bytes = b"1") -> bytes:
    return b"HTTP/1.%b %b%b%b%b%b\r\n" % (
        minor_version,
        _status_line(status),
        fields,
        length,
        _date_field(int(time.time())),
        connection,
    )


@lru_cache(maxsize=64)
def _status_line(status: int) -> bytes:
    # Imported here: an enumeration of sixty takes milliseconds of the start.
    from http import HTTPStatus

    return f"{status} {HTTPStatus(status).phrase}\r\n".encode()


@lru_cache(maxsize=1)
def _date_field(second: int) -> bytes:
    at = time.gmtime(second)
    clock = time.strftime("%d {} %Y %H:%M:%S GMT", at).format(_MONTHS[at.tm_mon - 1])
    return f"Date: {_DAYS[at.tm_wday]}, {clock}\r\n".encode()


def _is_small(head: RequestHead, response: OutgoingResponse) -> bool:
    if head.method == "HEAD":
        return True
    return response.stream is None and len(response.body) <= _WHOLE_BYTES


def _pieces(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[start : start + _PIECE_BYTES] for start in range(0, len(view), _PIECE_BYTES))
