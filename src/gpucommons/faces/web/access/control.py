"""Access to every route of every listener: the host name, the password and the rate limit."""

import ipaddress
import logging
import re
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from gpucommons.base.address import ANY_HOST
from gpucommons.faces.web.access.auth import Authenticator, PasswordVerdict, parse_authorization
from gpucommons.faces.web.access.reload import WebConfigSettings
from gpucommons.faces.web.access.web_config import RateLimit, TokenBucket
from gpucommons.faces.web.routes.request import Response, text

# The host names under which the agent serves requests, against DNS rebinding.
#
# In that attack a page of a foreign site gives its own name the agent's address, so that the browser lets the page read
# the agent's responses. The browser sends the foreign name in the Host header. A numeric address cannot be rebound, so
# every numeric address passes: also that of a port forwarding, which is not an address of this machine.
#
# Only listeners with the page and the API check names. A drop-in listener has neither, and its scrapers use names that
# the agent cannot know, such as a service of a cluster.

# The last two are the machine's names inside containers of Docker and Podman. .internal is not a public domain.
_LOCAL = ("localhost", "ip6-localhost", "host.docker.internal", "host.containers.internal")
_PORT = re.compile(r":[0-9]*$", re.ASCII)
_LONGEST_SHOWN = 100
# Peers choose the names: memory and log are bounded.
_MAX_LOGGED = 64
_MAX_REMEMBERED = 64

log = logging.getLogger(__name__)


def resolve_name() -> str:
    """The machine's name with its domain. May query DNS, so it may block."""
    return socket.getfqdn()


class HostNames:
    def __init__(self, configured: Iterable[str] = ()) -> None:
        self._names: set[str] = set()
        self._logged: set[str] = set()
        self._known_headers: set[str] = set()
        self.add(*_LOCAL, socket.gethostname(), socket.gethostname().partition(".")[0], *configured)

    def add(self, *names: str) -> None:
        self._names |= {_normal(name) for name in names}

    def refusal(self, host_header: str) -> Response | None:
        """None where the Host header has a known name."""
        if host_header in self._known_headers:
            return None
        host = _PORT.sub("", host_header.strip())
        if self._knows(host):
            if len(self._known_headers) < _MAX_REMEMBERED:
                self._known_headers.add(host_header)
            return None
        self._log_once(_normal(host)[:_LONGEST_SHOWN])
        return text(
            f"unknown host name {host_header[:_LONGEST_SHOWN]!r} in the request: "
            "use the node's address, or add the name to [web] hosts\n",
            421,
        )

    def _log_once(self, name: str) -> None:
        if name in self._logged or len(self._logged) >= _MAX_LOGGED:
            return
        self._logged.add(name)
        log.warning(
            "refused a request under the host name %r (status 421): not a name of this machine; to allow it, add it to "
            "[web] hosts%s",
            name,
            "; further names are refused without a log line" if len(self._logged) == _MAX_LOGGED else "",
        )

    def _knows(self, host: str) -> bool:
        name = _normal(host)
        return ANY_HOST in self._names or name in self._names or name.endswith(".localhost") or _is_numeric(host)


def _normal(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        return False
    return True


# Access to every route of every listener: the password and the rate limit.
#
# With passwords, the requests of peers with a valid one are counted together, and other requests by origin: guesses do
# not use up the rate of the scrapers.

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
_MAX_BUCKETS = 1024


class AccessControl:
    def __init__(self, settings: Callable[[], WebConfigSettings]) -> None:
        self._settings = settings
        self._authenticator = Authenticator()
        self._limit: RateLimit | None = None
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def asks_password(self, peer_is_known: bool) -> bool:
        """Whether to call `refusal`; otherwise `rate_refusal` decides, at once."""
        return not peer_is_known and bool(self._settings().users)

    def rate_refusal(self) -> Response | None:
        """None where a request that needs no password may pass."""
        return None if self._in_rate(self._settings().rate_limit, _ADMITTED) else _RATE_LIMITED

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
        return self.rate_refusal()

    async def stop(self) -> None:
        await self._authenticator.stop()

    def _in_rate(self, limit: RateLimit | None, key: str) -> bool:
        if limit is None:
            return True
        if limit != self._limit:
            self._limit = limit
            self._buckets.clear()
        bucket = self._buckets.pop(key, None) or TokenBucket(limit, time.monotonic())
        # The bucket in use is the last one; the one that was not used for the longest time is dropped.
        self._buckets[key] = bucket
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return bucket.take(time.monotonic())
