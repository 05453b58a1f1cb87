"""Every route of the main listener and of a drop-in listener, in one list each, and how one is found."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from urllib.parse import quote

from gpucommons.faces.documents import fleet, fleet_report, job, report
from gpucommons.faces.documents.openapi import BASE
from gpucommons.faces.documents.resources import RESOURCES
from gpucommons.faces.web.routes.api import Api
from gpucommons.faces.web.routes.pages import glossary_page, plain_page, readyz
from gpucommons.faces.web.routes.request import NOT_SAMPLED_YET, Request, Response, negotiate, text
from gpucommons.faces.web.routes.static_files import index_endpoint, static_files
from gpucommons.model.snapshot import Snapshot

# One listener's application: finds the route of a request and calls its endpoint.
#
# Endpoints read cached bytes and the current snapshot only; they take no lock and do no I/O, except history, which
# can query Prometheus.

Endpoint = Callable[[Request], Response | Awaitable[Response]]
_ALLOW = {"Allow": "GET, HEAD"}


@dataclass(frozen=True, slots=True)
class Route:
    """`name` is the bounded label under which requests are counted. An empty `summary` keeps it off the plain page."""

    path: str
    endpoint: Endpoint
    name: str
    summary: str = ""


class App:
    def __init__(self, routes: Iterable[Route], latest: Callable[[], Snapshot | None]) -> None:
        self._routes = {route.path: route for route in routes}
        self._latest = latest

    def name_of(self, path: str) -> str:
        route = self._routes.get(path)
        return "unknown" if route is None else route.name

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        route = self._routes.get(request.path)
        if route is None:
            return text("not found; see / for what is served here\n", 404)
        if request.method not in ("GET", "HEAD"):
            return text("method not allowed; use GET or HEAD\n", 405, _ALLOW)
        return route.endpoint(request)

    def common_headers(self) -> Mapping[str, str]:
        """Headers of every response."""
        snapshot = self._latest()
        if snapshot is None or not snapshot.scenario:
            return {}
        return {"X-Gpucommons-Simulated": quote(snapshot.scenario)}


# `/metrics`: the rendered bytes of the current snapshot, in one dialect or in all.

_VARY = "Accept, Accept-Encoding"
_CLOSED = text("metrics are disabled here: they include the names of other owners (privacy.show_owners)\n", 403)


class MetricsProvider(Protocol):
    """Every method returns at once: no I/O, and no lock that a source can hold."""

    @property
    def dialect_names(self) -> tuple[str, ...]: ...

    def latest(self) -> Snapshot | None:
        """The current snapshot; None before the first one."""
        ...

    def metrics(self, dialect: str | None, openmetrics: bool, gzip: bool) -> tuple[bytes, str]:
        """The current snapshot in one dialect, or in all, and its content type.

        Raises LookupError for an unknown dialect.
        """
        ...


def metrics_endpoint(provider: MetricsProvider, dialect: str | None) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        if not request.viewer.sees_metrics:
            return _CLOSED
        if provider.latest() is None:
            return NOT_SAMPLED_YET
        choice = negotiate(request.accept, request.accept_encoding)
        body, content_type = provider.metrics(dialect, choice.openmetrics, choice.gzip)
        headers = {"Vary": _VARY, **({"Content-Encoding": "gzip"} if choice.gzip else {})}
        return Response(body, content_type, headers=headers)

    return endpoint


Clock = Callable[[], float]
_FLEET_PATH = "/fleet"


def main_routes(
    provider: MetricsProvider, api: Api | None, stale_after_s: float, clock: Clock = time.monotonic
) -> list[Route]:
    """Without an API, `/` is the plain page."""
    routes = [
        Route("/metrics", metrics_endpoint(provider, None), "metrics", "metrics of all dialects"),
        *(
            Route(f"/metrics/{name}", metrics_endpoint(provider, name), f"metrics/{name}", f"metrics of {name}")
            for name in provider.dialect_names
        ),
        *([] if api is None else api_routes(api)),
        *_status_routes(provider, stale_after_s, clock),
    ]
    plain = partial(plain_page, provider.latest, _links(routes), stale_after_s, clock)
    routes.append(Route("/plain", plain, "plain"))
    if api is None:
        return [*routes, Route("/", plain, "page")]
    files = dict(static_files())
    index = index_endpoint(files.pop("index.html"), provider.latest, _FLEET_PATH if api.has_fleet else "")
    fleet_page = index_endpoint(files.pop("fleet.html"), provider.latest)
    return [
        *routes,
        Route("/", index, "page"),
        Route(_FLEET_PATH, fleet_page if api.has_fleet else _no_fleet, "fleet"),
        Route("/glossary", glossary_page, "glossary"),
        *(Route(f"/static/{name}", file.endpoint, "static") for name, file in files.items()),
    ]


def drop_in_routes(provider: MetricsProvider, dialect: str, stale_after_s: float) -> list[Route]:
    if dialect not in provider.dialect_names:
        raise LookupError(dialect)
    routes = [
        Route("/metrics", metrics_endpoint(provider, dialect), "metrics", f"metrics of {dialect}"),
        *_status_routes(provider, stale_after_s, time.monotonic),
    ]
    plain = partial(plain_page, provider.latest, _links(routes), stale_after_s, time.monotonic)
    return [*routes, Route("/plain", plain, "plain"), Route("/", plain, "page")]


def api_routes(api: Api) -> list[Route]:
    return [
        Route(f"{BASE}/", api.index, "api/index", "index of the API"),
        *(
            Route(f"{BASE}/{resource.name}", partial(api.resource, resource), f"api/{resource.name}", resource.summary)
            for resource in RESOURCES
        ),
        Route(f"{BASE}/report", api.report, "api/report", report.SUMMARY),
        Route(f"{BASE}/fleet", api.fleet, "api/fleet", fleet.SUMMARY),
        Route(f"{BASE}/fleet/report", api.fleet_report, "api/fleet/report", fleet_report.SUMMARY),
        Route(f"{BASE}/job", api.job, "api/job", job.SUMMARY),
        Route(f"{BASE}/history", api.history, "api/history", "one reading over time"),
        Route(f"{BASE}/stream", api.stream, "api/stream", "all sections, live (server-sent events)"),
        Route(f"{BASE}/openapi.json", api.openapi, "api/openapi", "OpenAPI description of the API"),
    ]


def _status_routes(provider: MetricsProvider, stale_after_s: float, clock: Clock) -> list[Route]:
    return [
        Route("/healthz", _healthz, "healthz", "liveness of the agent"),
        # dcgm-exporter and DS01's exporter use this path.
        Route("/health", _healthz, "health", "the same as /healthz"),
        Route("/readyz", partial(readyz, provider.latest, stale_after_s, clock), "readyz", "readiness: fresh readings"),
    ]


def _no_fleet(request: Request) -> Response:
    return text("no fleet: set fleet.prometheus_url to a Prometheus that scrapes all nodes\n", 404)


def _healthz(request: Request) -> Response:
    return text("OK")


def _links(routes: list[Route]) -> list[tuple[str, str]]:
    return [(route.path, route.summary) for route in routes if route.summary]
