"""aiohttp's HTTP protocol, except that a malformed request leaves nothing to the garbage collector."""

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gpucommons.web.routes.response import SECURITY_HEADERS


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
