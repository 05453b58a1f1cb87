"""From aiohttp's request to an endpoint's response and back: access, viewer, route, bytes. Counts the requests."""

import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from gpucommons.base.http_library import HttpProcessingError, web
from gpucommons.base.threads import ThreadsExhausted
from gpucommons.faces.web.access.control import AccessControl, HostNames
from gpucommons.faces.web.access.reload import WebConfigSettings
from gpucommons.faces.web.http.connections import ConnectionGuard, Connections, guard_of
from gpucommons.faces.web.http.listeners import Peers, WebPeer
from gpucommons.faces.web.routes.request import SECURITY_HEADERS, Request, Response, text
from gpucommons.faces.web.routes.table import App
from gpucommons.model.snapshot import NO_SCRAPES, ScrapeReading
from gpucommons.model.viewer import Viewer
from gpucommons.rules.privacy import Privacy

# aiohttp's HTTP protocol, except that a malformed request leaves nothing to the garbage collector.


class GuardedProtocol(web.RequestHandler):
    __slots__ = ()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        # What follows the last request of a connection is parsed and never handled.
        for message, _ in self._messages:
            free_frames(getattr(message, "exc", None))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        # The peer's mistake: it is counted and not logged.
        free_frames(exc)
        response = web.Response(status=status, text=message, headers=SECURITY_HEADERS)
        response.force_close()
        return response


def free_frames(error: BaseException | None) -> None:
    """aiohttp keeps the exception of a malformed request or a lost connection in an object that the traceback's frames
    keep. Without the traceback, the request and its connection are freed at once, not by the next full collection."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


# How often each dialect was served alone, how many bytes that were, and how long it took. Pure: no clock of its own.
#
# Quantiles are of the last minute and of the last 1024 responses at most.

_WINDOW_S = 60.0
_MAX_KEPT = 1024


class ScrapeMeter:
    def __init__(self) -> None:
        self._count = 0
        self._body_bytes = 0
        self._sum_s = 0.0
        self._recent: deque[tuple[float, float]] = deque(maxlen=_MAX_KEPT)

    def record(self, now_s: float, took_s: float, body_bytes: int) -> None:
        self._count += 1
        self._body_bytes += body_bytes
        self._sum_s += took_s
        self._recent.append((now_s, took_s))

    def reading(self, now_s: float) -> ScrapeReading:
        took_s = sorted(took_s for at_s, took_s in self._recent if now_s - at_s <= _WINDOW_S)
        quantiles = tuple(
            (quantile, took_s[min(int(quantile * len(took_s)), len(took_s) - 1)] if took_s else nothing)
            for quantile, nothing in NO_SCRAPES.quantiles_s
        )
        return ScrapeReading(self._count, self._body_bytes, self._sum_s, quantiles)


class ScrapeMeters:
    """One meter for each dialect that was served."""

    def __init__(self) -> None:
        self._meters: defaultdict[str, ScrapeMeter] = defaultdict(ScrapeMeter)

    def record(self, dialect: str, now_s: float, took_s: float, body_bytes: int) -> None:
        self._meters[dialect].record(now_s, took_s, body_bytes)

    def readings(self, now_s: float) -> Mapping[str, ScrapeReading]:
        return {dialect: meter.reading(now_s) for dialect, meter in self._meters.items()}


# From aiohttp's request to an endpoint's response and back: access, viewer, route, bytes. Counts the requests.
#
# A large body is written in pieces as the peer reads them: all readers of a body share it, and a slow one holds a copy
# of one piece at most.

_WHOLE_BYTES = 128 * 1024
_PIECE_BYTES = 64 * 1024
_BUSY = text("too busy: try again in a second\n", 503, {"Retry-After": "1"})
_INTERNAL_ERROR = text("internal error; see the agent's log\n", 500)

log = logging.getLogger(__name__)


class Dispatcher:
    """One listener's handler for aiohttp's low-level server. The only holder of the listener's privacy.

    `hosts` is None where every host name is served. `dialect` is that of a drop-in listener.
    """

    def __init__(
        self,
        app: App,
        hosts: HostNames | None,
        access: AccessControl,
        connections: Connections,
        settings: Callable[[], WebConfigSettings],
        requests: Counter[tuple[str, int]],
        scrapes: ScrapeMeters,
        dialect: str | None,
        privacy: Privacy,
        peers: Peers,
    ) -> None:
        self._app = app
        self._privacy = privacy
        self._peers = peers
        self._hosts = hosts
        self._access = access
        self._connections = connections
        self._settings = settings
        self._requests = requests
        self._scrapes = scrapes
        self._dialect = dialect

    async def __call__(self, http_request: web.BaseRequest) -> web.StreamResponse:
        guard = guard_of(http_request.transport)
        if guard is None:
            return web.Response(status=503)
        guard.request_began()
        began_s = time.monotonic()
        try:
            response = await self._respond(http_request, guard)
            route = self._app.name_of(http_request.path)
            self._requests[route, response.status] += 1
            if route.startswith("metrics") and response.status == 200:
                self._connections.scraped(guard.origin)
            settings = self._settings()
            headers = {
                **SECURITY_HEADERS,
                "Content-Type": response.content_type,
                **response.headers,
                **self._app.common_headers(),
                **settings.headers,
            }
            # A request body is never read, so the next request could not be found after it. A peer that connected
            # under TLS settings that have changed since must connect again.
            tls_changed = guard.tls is not settings.tls and not self._privacy.unix
            last = self._connections.stopping or http_request.body_exists or tls_changed
            if response.stream is not None and http_request.method != "HEAD":
                return await _send_stream(http_request, response.status, headers, guard, response.stream)
            sent = await _send(http_request, response, headers, guard, last)
            if route.startswith("metrics") and response.status == 200 and http_request.method == "GET":
                self._record_scrape(route, began_s, len(response.body))
            return sent
        finally:
            guard.request_ended()

    def _record_scrape(self, route: str, began_s: float, body_bytes: int) -> None:
        dialect = self._dialect or route.removeprefix("metrics").removeprefix("/")
        if dialect:
            now_s = time.monotonic()
            self._scrapes.record(dialect, now_s, now_s - began_s, body_bytes)

    async def _respond(self, http_request: web.BaseRequest, guard: ConnectionGuard) -> Response:
        headers = http_request.headers
        try:
            refusal = None if self._hosts is None else self._hosts.refusal(headers.getall("Host", ()))
            if refusal is None:
                authorization = headers.get("Authorization", "")
                refusal = await self._access.refusal(authorization, guard.origin, self._privacy.unix)
            if refusal is not None:
                return refusal
            guard.served = True
            return await self._app(
                Request(
                    http_request.method,
                    http_request.path,
                    ",".join(headers.getall("Accept", ())),
                    ",".join(headers.getall("Accept-Encoding", ())),
                    ",".join(headers.getall("If-None-Match", ())),
                    tuple(http_request.query.items()) if http_request.query_string else (),
                    await self._viewer(http_request),
                )
            )
        except ThreadsExhausted as error:
            log.warning("no response to %s %r: %s", http_request.method, http_request.path, error)
            return _BUSY
        except Exception:
            log.exception("no response to %s %r", http_request.method, http_request.path)
            return _INTERNAL_ERROR

    async def _viewer(self, http_request: web.BaseRequest) -> Viewer:
        privacy = self._privacy
        peer = await self._peers.of(http_request.transport) if privacy.identifies_peers else WebPeer()
        authenticated = bool(self._settings().users) and not privacy.unix
        return privacy.viewer(peer.uid, peer.user, authenticated, peer.is_local)


async def _send_stream(
    http_request: web.BaseRequest,
    status: int,
    headers: dict[str, str],
    guard: ConnectionGuard,
    stream: Callable[[], AsyncGenerator[bytes, None]],
) -> web.StreamResponse:
    http_response = web.StreamResponse(status=status, headers=headers)
    http_response.force_close()
    guard.exempt_stream()
    try:
        await http_response.prepare(http_request)
        async with aclosing(stream()) as pieces:
            async for piece in pieces:
                guard.sends(piece)
                await _write(http_response, piece)
        await http_response.write_eof()
    except ConnectionError as error:
        free_frames(error)
        log.debug("a viewer closed its stream")
    return http_response


async def _send(
    http_request: web.BaseRequest, response: Response, headers: dict[str, str], guard: ConnectionGuard, last: bool
) -> web.StreamResponse:
    http_response: web.StreamResponse
    guard.sends(response.body)
    whole = len(response.body) <= _WHOLE_BYTES or http_request.method == "HEAD"
    if whole:
        http_response = web.Response(body=response.body, status=response.status, headers=headers)
    else:
        http_response = web.StreamResponse(status=response.status, headers=headers)
        http_response.content_length = len(response.body)
    if last:
        http_response.force_close()
    try:
        await http_response.prepare(http_request)
        if not whole:
            await _write(http_response, response.body)
        await http_response.write_eof()
    except ConnectionError as error:
        free_frames(error)
        log.debug("the peer closed the connection before the end of the response")
    return http_response


async def _write(http_response: web.StreamResponse, data: bytes) -> None:
    view = memoryview(data)
    for start in range(0, len(view), _PIECE_BYTES):
        await http_response.write(view[start : start + _PIECE_BYTES])
