"""`/metrics`: the rendered bytes of the current snapshot, in one dialect or in all."""

from collections.abc import Callable
from typing import Protocol

from gpucommons.model.snapshot import Snapshot
from gpucommons.web.routes.negotiation import negotiate
from gpucommons.web.routes.request import Request
from gpucommons.web.routes.response import NOT_SAMPLED_YET, Response, text

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
