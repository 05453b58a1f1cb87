"""One listener's application: finds the route of a request and calls its endpoint.

Endpoints read cached bytes and the current snapshot only; they take no lock and do no I/O, except history, which
can query Prometheus.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from gpucommons.model.snapshot import Snapshot
from gpucommons.web.routes.request import Request
from gpucommons.web.routes.response import Response, text

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

    async def __call__(self, request: Request) -> Response:
        route = self._routes.get(request.path)
        if route is None:
            return text("not found; see / for what is served here\n", 404)
        if request.method not in ("GET", "HEAD"):
            return text("method not allowed; use GET or HEAD\n", 405, _ALLOW)
        response = route.endpoint(request)
        return response if isinstance(response, Response) else await response

    def common_headers(self) -> Mapping[str, str]:
        """Headers of every response."""
        snapshot = self._latest()
        if snapshot is None or not snapshot.scenario:
            return {}
        return {"X-Gpucommons-Simulated": quote(snapshot.scenario)}
