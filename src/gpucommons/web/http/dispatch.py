"""From aiohttp's request to our reply and back: rate limit, password, route, bytes. Keeps the counts.

A large body is written in pieces as the peer takes them: a slow reader holds a piece, not a copy of it all.
"""

import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from aiohttp import web

from gpucommons.rules.privacy import SEES_ALL, Privacy, Viewer
from gpucommons.web.access.auth import Authenticator, PasswordVerdict, parse_authorization
from gpucommons.web.access.rate_limit import RateLimit, TokenBucket
from gpucommons.web.access.reload import WebConfigSettings
from gpucommons.web.http.connections import ConnectionGuard, Connections, guard_of
from gpucommons.web.http.peer import Peers
from gpucommons.web.routes.app import App, Request
from gpucommons.web.routes.response import SECURITY_HEADERS, Response, text

_WHOLE_BYTES = 128 * 1024
_PIECE_BYTES = 64 * 1024
_TOO_FAST = text("too many requests\n", 429, {"Retry-After": "1"})
_WHO_ARE_YOU = text(
    "name and password wanted\n", 401, {"WWW-Authenticate": 'Basic realm="gpucommons", charset="UTF-8"'}
)
_BUSY = text("too many passwords to check\n", 503, {"Retry-After": "1"})
_BROKEN = text("internal error; the agent's log says more\n", 500)

log = logging.getLogger(__name__)


class AccessControl:
    """What stands before every route of every listener: the rate limit, then the password."""

    def __init__(self, settings: Callable[[], WebConfigSettings], clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._authenticator = Authenticator()
        self._limit: RateLimit | None = None
        self._bucket: TokenBucket | None = None

    async def refusal(self, authorization: str, peer_is_known: bool = False) -> Response | None:
        """`peer_is_known`: the kernel vouches for who it is, so that no password is wanted."""
        settings = self._settings()
        if not self._in_rate(settings.rate_limit):
            return _TOO_FAST
        if peer_is_known or not settings.users:
            return None
        credentials = parse_authorization(authorization)
        if credentials is None:
            return _WHO_ARE_YOU
        if self._authenticator.remembers(settings.users, credentials):
            return None
        verdict = await self._authenticator.check(settings.users, credentials)
        return {PasswordVerdict.ALLOWED: None, PasswordVerdict.DENIED: _WHO_ARE_YOU, PasswordVerdict.BUSY: _BUSY}[
            verdict
        ]

    def _in_rate(self, limit: RateLimit | None) -> bool:
        if limit is None:
            return True
        if self._bucket is None or limit != self._limit:
            self._limit, self._bucket = limit, TokenBucket(limit, self._clock())
        return self._bucket.take(self._clock())


class Dispatcher:
    """One listener's handler for aiohttp's low-level server. Alone holds the listener's privacy."""

    def __init__(
        self,
        app: App,
        door: AccessControl,
        connections: Connections,
        settings: Callable[[], WebConfigSettings],
        requests: Counter[tuple[str, int]],
        privacy: Privacy,
    ) -> None:
        self._app = app
        self._privacy = privacy
        self._peers = Peers()
        self._door = door
        self._connections = connections
        self._settings = settings
        self._requests = requests

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        guard = guard_of(request.transport)
        if guard is None:
            return web.Response(status=503)
        guard.request_began()
        try:
            reply = await self._answer(request)
            self._requests[self._app.handler_of(request.path), reply.status] += 1
            settings = self._settings()
            headers = {
                **SECURITY_HEADERS,
                "Content-Type": reply.content_type,
                **reply.headers,
                **self._app.common_headers(),
                **settings.headers,
            }
            # A body is never read here, so the next request could not be found behind it; and whoever came
            # in under TLS settings that have changed since comes in anew.
            tls_changed = guard.tls is not settings.tls and not self._privacy.unix
            last = self._connections.stopping or request.body_exists or tls_changed
            if reply.live is not None and request.method != "HEAD":
                return await _send_live(request, reply.status, headers, guard, reply.live)
            return await _send(request, reply, headers, last)
        finally:
            guard.request_ended()

    async def _viewer(self, request: web.BaseRequest) -> Viewer:
        if not self._privacy.depends_on_peer:
            return SEES_ALL
        uid, user = await self._peers.of(request.transport)
        return self._privacy.viewer(uid, user, authenticated=bool(self._settings().users) and not self._privacy.unix)

    async def _answer(self, request: web.BaseRequest) -> Response:
        headers = request.headers
        try:
            refusal = await self._door.refusal(headers.get("Authorization", ""), self._privacy.unix)
            if refusal is not None:
                return refusal
            reply = self._app.answer(
                Request(
                    request.method,
                    request.path,
                    ",".join(headers.getall("Accept", ())),
                    ",".join(headers.getall("Accept-Encoding", ())),
                    ",".join(headers.getall("If-None-Match", ())),
                    tuple(request.query.items()) if request.query_string else (),
                    await self._viewer(request),
                )
            )
            return reply if reply.later is None else await reply.later()
        except Exception:
            log.exception("no answer for %s %r", request.method, request.path)
            return _BROKEN


async def _send_live(
    request: web.BaseRequest,
    status: int,
    headers: dict[str, str],
    guard: ConnectionGuard,
    live: Callable[[], AsyncGenerator[bytes, None]],
) -> web.StreamResponse:
    response = web.StreamResponse(status=status, headers=headers)
    response.force_close()
    guard.exempt_stream()
    try:
        await response.prepare(request)
        async with aclosing(live()) as pieces:
            async for piece in pieces:
                await response.write(piece)
        await response.write_eof()
    except ConnectionError:
        log.debug("a viewer went away")
    return response


async def _send(request: web.BaseRequest, reply: Response, headers: dict[str, str], last: bool) -> web.StreamResponse:
    response: web.StreamResponse
    whole = len(reply.body) <= _WHOLE_BYTES or request.method == "HEAD"
    if whole:
        response = web.Response(body=reply.body, status=reply.status, headers=headers)
    else:
        response = web.StreamResponse(status=reply.status, headers=headers)
        response.content_length = len(reply.body)
    if last:
        response.force_close()
    try:
        await response.prepare(request)
        if not whole:
            body = memoryview(reply.body)
            for start in range(0, len(body), _PIECE_BYTES):
                await response.write(body[start : start + _PIECE_BYTES])
        await response.write_eof()
    except ConnectionError:
        log.debug("the peer went away before it had its answer")
    return response
