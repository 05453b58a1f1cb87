"""From a request to the response of an endpoint: access, viewer, route, header fields. Counts the requests."""

import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from gpucommons.base.http_client import encode_fields
from gpucommons.base.threads import ThreadsExhausted
from gpucommons.faces.web.access.control import AccessControl, HostNames
from gpucommons.faces.web.access.reload import WebConfigSettings
from gpucommons.faces.web.http.connections import ConnectionGuard, Connections
from gpucommons.faces.web.http.listeners import Peers, WebPeer
from gpucommons.faces.web.http.protocol import OutgoingResponse
from gpucommons.faces.web.http.request_head import RequestHead
from gpucommons.faces.web.routes.request import SECURITY_HEADERS, Request, Response, text
from gpucommons.faces.web.routes.table import App
from gpucommons.model.snapshot import NO_SCRAPES, ScrapeReading
from gpucommons.rules.privacy import Privacy

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

    def record(self, dialect: str, began_s: float, body_bytes: int) -> None:
        """A response of this dialect was sent just now."""
        now_s = time.monotonic()
        self._meters[dialect].record(now_s, now_s - began_s, body_bytes)

    def readings(self, now_s: float) -> Mapping[str, ScrapeReading]:
        return {dialect: meter.reading(now_s) for dialect, meter in self._meters.items()}


# From a request to the response of an endpoint: access, viewer, route, header fields. Counts the requests.

_BUSY = text("too busy: try again in a second\n", 503, {"Retry-After": "1"})
_INTERNAL_ERROR = text("internal error; see the agent's log\n", 500)
_MAX_ENCODED = 256

log = logging.getLogger(__name__)


class Dispatcher:
    """The handler of one listener's connections. The only holder of the listener's privacy.

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
        self._fields = _EncodedFields()

    def __call__(self, head: RequestHead, guard: ConnectionGuard) -> OutgoingResponse | Awaitable[OutgoingResponse]:
        began_s = time.monotonic()
        try:
            response = self._respond(head, guard)
        except Exception as error:
            response = _failure(head, error)
        if isinstance(response, Response):
            return self._complete(head, guard, response, began_s)
        return self._complete_later(head, guard, response, began_s)

    async def _complete_later(
        self, head: RequestHead, guard: ConnectionGuard, awaited: Awaitable[Response], began_s: float
    ) -> OutgoingResponse:
        try:
            response = await awaited
        except Exception as error:
            response = _failure(head, error)
        return self._complete(head, guard, response, began_s)

    def _complete(
        self, head: RequestHead, guard: ConnectionGuard, response: Response, began_s: float
    ) -> OutgoingResponse:
        route, status, settings = self._app.name_of(head.path), response.status, self._settings()
        self._requests[route, status] += 1
        sent = None
        if status == 200 and route.startswith("metrics"):
            self._connections.scraped(guard.origin)
            dialect = self._dialect or route.removeprefix("metrics").removeprefix("/")
            if dialect and head.method == "GET":
                sent = partial(self._scrapes.record, dialect, began_s, len(response.body))
        # A peer that connected under TLS settings that have changed since must connect again.
        tls_changed = guard.tls is not settings.tls and not self._privacy.unix
        return OutgoingResponse(
            status,
            self._fields.of(response, self._app.common_headers(), settings.headers),
            response.body,
            response.stream,
            self._connections.stopping or tls_changed,
            sent,
        )

    def _respond(self, head: RequestHead, guard: ConnectionGuard) -> Response | Awaitable[Response]:
        if self._hosts is not None and head.host is not None:
            refusal = self._hosts.refusal(head.host)
            if refusal is not None:
                return refusal
        if self._privacy.identifies_peers or self._access.asks_password(self._privacy.unix):
            return self._respond_after_checks(head, guard)
        return self._access.rate_refusal() or self._admit(head, guard, WebPeer())

    async def _respond_after_checks(self, head: RequestHead, guard: ConnectionGuard) -> Response:
        refusal = await self._access.refusal(head.authorization, guard.origin, self._privacy.unix)
        if refusal is not None:
            return refusal
        peer = await self._peers.of(guard.transport) if self._privacy.identifies_peers else WebPeer()
        response = self._admit(head, guard, peer)
        return response if isinstance(response, Response) else await response

    def _admit(self, head: RequestHead, guard: ConnectionGuard, peer: WebPeer) -> Response | Awaitable[Response]:
        guard.served = True
        authenticated = bool(self._settings().users) and not self._privacy.unix
        return self._app(
            Request(
                head.method,
                head.path,
                head.accept,
                head.accept_encoding,
                head.if_none_match,
                head.query,
                self._privacy.viewer(peer.uid, peer.user, authenticated, peer.is_local),
            )
        )


def _failure(head: RequestHead, error: Exception) -> Response:
    if isinstance(error, ThreadsExhausted):
        log.warning("no response to %s %r: %s", head.method, head.path, error)
        return _BUSY
    log.error("no response to %s %r", head.method, head.path, exc_info=error)
    return _INTERNAL_ERROR


class _EncodedFields:
    """The header fields of responses as bytes. They differ little: most are encoded once."""

    def __init__(self) -> None:
        self._encoded: dict[tuple[object, ...], bytes] = {}

    def of(self, response: Response, common: Mapping[str, str], configured: Mapping[str, str]) -> bytes:
        key = (response.content_type, *response.headers.items(), *common.items(), *configured.items())
        fields = self._encoded.get(key)
        if fields is None:
            if len(self._encoded) >= _MAX_ENCODED:
                self._encoded.clear()
            fields = self._encoded[key] = encode_fields(
                {
                    **SECURITY_HEADERS,
                    "Content-Type": response.content_type,
                    **response.headers,
                    **common,
                    **configured,
                }
            )
        return fields
