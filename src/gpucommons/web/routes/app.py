"""Routes: one request in, one reply out, for the main listener or for a drop-in that serves one dialect.

Reads cached bytes and the current snapshot only; takes no lock and does no I/O.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from gpucommons.rules.privacy import SEES_ALL, Viewer
from gpucommons.web.routes import page
from gpucommons.web.routes.faces import MetricsProvider
from gpucommons.web.routes.negotiation import negotiate
from gpucommons.web.routes.readiness import complaints
from gpucommons.web.routes.response import Response, text

_NOT_LISTED = ("page", "plain", "static")
_ALLOW = {"Allow": "GET, HEAD"}
_METRICS_VARY = "Accept, Accept-Encoding"
_METRICS_CLOSED = text(
    "metrics contain the names of all owners and are closed to this peer (privacy.show_owners); see /\n", 403
)
_NOT_SAMPLED_YET = text("no sample yet, come back in a moment\n", 503, {"Retry-After": "1"})


@dataclass(frozen=True, slots=True)
class Request:
    """The part of a request that a route looks at."""

    method: str
    path: str
    accept: str = ""
    accept_encoding: str = ""
    if_none_match: str = ""
    query: Sequence[tuple[str, str]] = ()
    viewer: Viewer = SEES_ALL


@dataclass(frozen=True, slots=True)
class Route:
    """`handler` is the bounded name under which requests are counted."""

    handler: str
    summary: str
    answer: Callable[[Request], Response]


class App:
    """The routes of one listener. `dialect` None is the main one; a name is a drop-in for that dialect.

    `routes` are further ones; where a path is the same, they come instead of what is here.
    """

    def __init__(
        self,
        faces: MetricsProvider,
        dialect: str | None = None,
        *,
        snapshot_stale_after_s: float,
        routes: Mapping[str, Route] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if dialect is not None and dialect not in faces.dialect_names:
            raise LookupError(dialect)
        self._faces = faces
        self._stale_after_s = snapshot_stale_after_s
        self._clock = clock
        self._routes = self._main_routes() if dialect is None else self._drop_in_routes(dialect)
        self._routes.update(routes or {})

    def handler_of(self, path: str) -> str:
        route = self._routes.get(path)
        return "unknown" if route is None else route.handler

    def answer(self, asked: Request) -> Response:
        route = self._routes.get(asked.path)
        if route is None:
            return text("not found; what there is: /\n", 404)
        if asked.method not in ("GET", "HEAD"):
            return text("only GET and HEAD here\n", 405, _ALLOW)
        return route.answer(asked)

    def common_headers(self) -> Mapping[str, str]:
        """On every reply, whatever it says."""
        snapshot = self._faces.latest()
        if snapshot is None or not snapshot.scenario:
            return {}
        return {"X-Gpucommons-Simulated": quote(snapshot.scenario)}

    def _main_routes(self) -> dict[str, Route]:
        routes = {"/metrics": self._metrics_route("metrics", None, "the dialects together")}
        for name in self._faces.dialect_names:
            routes[f"/metrics/{name}"] = self._metrics_route(f"metrics/{name}", name, f"the {name} dialect")
        return routes | self._common_routes()

    def _drop_in_routes(self, dialect: str) -> dict[str, Route]:
        return {"/metrics": self._metrics_route("metrics", dialect, f"the {dialect} dialect")} | self._common_routes()

    def _common_routes(self) -> dict[str, Route]:
        return {
            "/healthz": Route("healthz", "liveness of the agent", lambda _: text("OK")),
            # The path that DS01's exporter and dcgm-exporter have for the same.
            "/health": Route("health", "the same as /healthz", lambda _: text("OK")),
            "/readyz": Route("readyz", "whether its readings are fresh", lambda _: self._ready()),
            "/": Route("page", "this page", lambda _: self._page()),
            "/plain": Route("plain", "the sources, on a page without scripts", lambda _: self._page()),
        }

    def _metrics_route(self, handler: str, dialect: str | None, summary: str) -> Route:
        def answer(asked: Request) -> Response:
            if not asked.viewer.sees_metrics:
                return _METRICS_CLOSED
            if self._faces.latest() is None:
                return _NOT_SAMPLED_YET
            choice = negotiate(asked.accept, asked.accept_encoding)
            body, content_type = self._faces.metrics(dialect, choice.openmetrics, choice.gzip)
            headers = {"Vary": _METRICS_VARY}
            if choice.gzip:
                headers["Content-Encoding"] = "gzip"
            return Response(body, content_type, headers=headers)

        return Route(handler, summary, answer)

    def _ready(self) -> Response:
        found = complaints(self._faces.latest(), self._clock(), self._stale_after_s)
        return text("".join(f"{line}\n" for line in found), 503) if found else text("OK")

    def _page(self) -> Response:
        now_s, snapshot = self._clock(), self._faces.latest()
        links = [(path, route.summary) for path, route in self._routes.items() if route.handler not in _NOT_LISTED]
        return page.render(snapshot, links, complaints(snapshot, now_s, self._stale_after_s), now_s)
