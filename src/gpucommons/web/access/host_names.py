"""The host names under which the agent serves requests, against DNS rebinding.

In that attack a page of a foreign site gives its own name the agent's address, so that the browser lets the page read
the agent's responses. The browser sends the foreign name in the Host header. A numeric address cannot be rebound, so
every numeric address passes: also that of a port forwarding, which is not an address of this machine.

Only listeners with the page and the API check names. A drop-in listener has neither, and its scrapers use names that
the agent cannot know, such as a service of a cluster.
"""

import ipaddress
import logging
import re
import socket
from collections.abc import Iterable

from gpucommons.base.address import ANY_HOST
from gpucommons.web.routes.response import Response, text

# The last two are the machine's names inside containers of Docker and Podman. .internal is not a public domain.
_LOCAL = ("localhost", "ip6-localhost", "host.docker.internal", "host.containers.internal")
_PORT = re.compile(r":[0-9]*$", re.ASCII)
_LONGEST_SHOWN = 100
# Peers choose the names: memory and log are bounded.
_MAX_LOGGED = 64

log = logging.getLogger(__name__)


def resolved_name() -> str:
    """The machine's name with its domain. May query DNS, so it may block."""
    return socket.getfqdn()


class HostNames:
    def __init__(self, configured: Iterable[str] = ()) -> None:
        self._names: set[str] = set()
        self._logged: set[str] = set()
        self.add(*_LOCAL, socket.gethostname(), socket.gethostname().partition(".")[0], *configured)

    def add(self, *names: str) -> None:
        self._names |= {_normal(name) for name in names}

    def refusal(self, host_headers: Iterable[str]) -> Response | None:
        """None where every Host header is a known name. HTTP/1.0 allows a request without one; browsers send one."""
        for header in host_headers:
            host = _PORT.sub("", header.strip())
            if not self._knows(host):
                self._log_once(_normal(host)[:_LONGEST_SHOWN])
                return text(
                    f"unknown host name {header[:_LONGEST_SHOWN]!r} in the request: "
                    "use the node's address, or add the name to [web] hosts\n",
                    421,
                )
        return None

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
