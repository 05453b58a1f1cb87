"""Access to every route of every listener: the password and the rate limit.

With passwords, the requests of peers with a valid one are counted together, and other requests by origin: guesses do
not use up the rate of the scrapers.
"""

import time
from collections import OrderedDict
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
# The bucket of the requests that need no password or have a valid one.
_ADMITTED = ""
_MOST_BUCKETS = 1024


class AccessControl:
    def __init__(self, settings: Callable[[], WebConfigSettings], clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._authenticator = Authenticator()
        self._limit: RateLimit | None = None
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    async def refusal(self, authorization: str, origin: str = "", peer_is_known: bool = False) -> Response | None:
        """None where the request may pass. A peer that the kernel identifies (`peer_is_known`) needs no password."""
        settings = self._settings()
        if not peer_is_known and settings.users:
            credentials = parse_authorization(authorization)
            if credentials is None or not self._authenticator.remembers(settings.users, credentials):
                if not self._in_rate(settings.rate_limit, f"origin {origin}"):
                    return _RATE_LIMITED
                if credentials is None:
                    return _UNAUTHORIZED
                refusal = _REFUSALS[await self._authenticator.check(settings.users, credentials, origin)]
                if refusal is not None:
                    return refusal
        return None if self._in_rate(settings.rate_limit, _ADMITTED) else _RATE_LIMITED

    async def stop(self) -> None:
        await self._authenticator.stop()

    def _in_rate(self, limit: RateLimit | None, key: str) -> bool:
        if limit is None:
            return True
        if limit != self._limit:
            self._limit = limit
            self._buckets.clear()
        bucket = self._buckets.pop(key, None) or TokenBucket(limit, self._clock())
        # The bucket in use is the last one; the one that was not used for the longest time is dropped.
        self._buckets[key] = bucket
        if len(self._buckets) > _MOST_BUCKETS:
            self._buckets.popitem(last=False)
        return bucket.take(self._clock())
