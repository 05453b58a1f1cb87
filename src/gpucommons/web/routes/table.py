"""Every route of the main listener and of a drop-in listener, in one list each."""

import time
from collections.abc import Callable
from functools import partial

from gpucommons.faces.documents import fleet, job, report
from gpucommons.faces.documents.openapi import BASE
from gpucommons.faces.documents.resources import RESOURCES
from gpucommons.web.routes.api import Api
from gpucommons.web.routes.app import Route
from gpucommons.web.routes.glossary import glossary_page
from gpucommons.web.routes.metrics import MetricsProvider, metrics_endpoint
from gpucommons.web.routes.plain_page import plain_page
from gpucommons.web.routes.readiness import readyz
from gpucommons.web.routes.request import Request
from gpucommons.web.routes.response import Response, text
from gpucommons.web.routes.static_files import index_endpoint, static_files

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
    files = static_files()
    index = index_endpoint(files.pop("index.html"), provider.latest, _FLEET_PATH if api.has_fleet else "")
    fleet_page = index_endpoint(files.pop("fleet.html"), provider.latest)
    return [
        *routes,
        Route("/", index, "page"),
        Route(_FLEET_PATH, fleet_page if api.has_fleet else _no_fleet, "fleet"),
        Route("/glossary", glossary_page, "glossary"),
        *(Route(f"/static/{name}", file.endpoint, "static") for name, file in files.items()),
    ]


def drop_in_routes(
    provider: MetricsProvider, dialect: str, stale_after_s: float, clock: Clock = time.monotonic
) -> list[Route]:
    if dialect not in provider.dialect_names:
        raise LookupError(dialect)
    routes = [
        Route("/metrics", metrics_endpoint(provider, dialect), "metrics", f"metrics of {dialect}"),
        *_status_routes(provider, stale_after_s, clock),
    ]
    plain = partial(plain_page, provider.latest, _links(routes), stale_after_s, clock)
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
