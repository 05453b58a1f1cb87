"""Access to every route of every listener: the rate limit, then the password."""

import time
from collections.abc import Callable

from gpucommons.web.access.auth import Authenticator, PasswordVerdict, parse_authorization
from gpucommons.web.access.rate_limit import RateLimit, TokenBucket
from gpucommons.web.access.reload import WebConfigSettings
from gpucommons.web.routes.response import Response, text

_RATE_LIMITED = text("too many requests\n", 429, {"Retry-After": "1"})
_UNAUTHORIZED = text(
    "user name and password required\n", 401, {"WWW-Authenticate": 'Basic realm="gpucommons", charset="UTF-8"'}
)
_BUSY = text("too many password checks: try again in a second\n", 503, {"Retry-After": "1"})
_REFUSALS = {
    PasswordVerdict.ALLOWED: None,
    PasswordVerdict.DENIED: _UNAUTHORIZED,
    PasswordVerdict.BUSY: _BUSY,
}


class AccessControl:
    def __init__(self, settings: Callable[[], WebConfigSettings], clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._authenticator = Authenticator()
        self._limit: RateLimit | None = None
        self._bucket: TokenBucket | None = None

    async def refusal(self, authorization: str, peer_is_known: bool = False) -> Response | None:
        """None where the request may pass. A peer that the kernel identifies (`peer_is_known`) needs no password."""
        settings = self._settings()
        if not self._in_rate(settings.rate_limit):
            return _RATE_LIMITED
        if peer_is_known or not settings.users:
            return None
        credentials = parse_authorization(authorization)
        if credentials is None:
            return _UNAUTHORIZED
        if self._authenticator.remembers(settings.users, credentials):
            return None
        return _REFUSALS[await self._authenticator.check(settings.users, credentials)]

    def _in_rate(self, limit: RateLimit | None) -> bool:
        if limit is None:
            return True
        if self._bucket is None or limit != self._limit:
            self._limit, self._bucket = limit, TokenBucket(limit, self._clock())
        return self._bucket.take(self._clock())
