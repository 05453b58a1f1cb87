"""HTTP to an API server or a kubelet: verified, limited in size and time, with the current token.

The token is read for each request: the kubelet renews it. The sources only read; `send` is for reports of GPU faults.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

from gpucommons.base.http_client import Answer, HttpRequest, body_of, exchange, failures_of, lines_of
from gpucommons.sources.kubernetes.pods import Expired
from gpucommons.sources.source import SourceAbsent, SourceError, parse

# Address and credentials of the cluster's API. The token is read for each request: the kubelet renews it.

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_MAX_TOKEN_BYTES = 64 * 1024


class ClusterAccess(NamedTuple):
    """`url` is that of the API server or of a kubelet. Without `ca_path` the system's authorities are trusted."""

    url: str
    node_name: str
    ca_path: str | None = None
    token_path: str | None = None

    def headers(self) -> dict[str, str]:
        if self.token_path is None:
            return {}
        try:
            with open(self.token_path, "rb") as file:
                token = file.read(_MAX_TOKEN_BYTES).strip()
        except OSError as error:
            raise SourceError("token", f"cannot read {self.token_path}: {error.strerror}") from None
        if not token or not token.isascii() or not token.decode().isprintable():
            raise SourceError("token", f"{self.token_path} contains no token")
        return {"Authorization": f"Bearer {token.decode()}"}

    def tls(self) -> ssl.SSLContext:
        """Always verifies. The file is read each time, so that a renewed authority is trusted after a reconnect."""
        try:
            return ssl.create_default_context(cafile=self.ca_path)
        except ssl.SSLError:
            why = "it contains no certificate"
        except OSError as error:
            why = error.strerror or type(error).__name__
        raise SourceError("tls", f"cannot load the authority's certificate {self.ca_path}: {why}")


def in_cluster(environment: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> ClusterAccess:
    """The API server as Kubernetes announces it to each pod."""
    host = environment.get("KUBERNETES_SERVICE_HOST")
    if not host:
        raise SourceAbsent(
            "the agent does not run in a Kubernetes pod, and kubernetes.api_url is not set",
            "on a Kubernetes node, run the agent as a DaemonSet",
        )
    node_name = environment.get("NODE_NAME")
    if not node_name:
        raise SourceError("settings", "NODE_NAME is not set: set it from spec.nodeName in the agent's manifest")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    address = f"[{host}]" if ":" in host else host
    return ClusterAccess(
        f"https://{address}:{port}",
        node_name,
        ca_path=str(service_account / "ca.crt"),
        token_path=str(service_account / "token"),
    )


# HTTP to an API server or a kubelet: verified, limited in size and time, with the current token.

_MAX_ANSWER_BYTES = 64 * 1024 * 1024
# An object in etcd is at most 1.5 MiB, and JSON may write a byte of it as six.
_MAX_EVENT_BYTES = 16 * 1024 * 1024


class ApiServer:
    """One server. `grant` is what to do if it denies access. Raises SourceError where the authority cannot be read."""

    def __init__(self, access: ClusterAccess, timeout_s: float, grant: str) -> None:
        self._access = access
        self._timeout_s = timeout_s
        self._grant = grant
        self._url = access.url.rstrip("/")
        self._tls = access.tls() if self._url.startswith("https:") else None

    async def get(self, path: str, parameters: Mapping[str, str]) -> object:
        return await self._carry_out(self._request(path, parameters))

    async def send(self, method: str, path: str, document: object, content_type: str = "application/json") -> object:
        """The object as the server has it now. A SourceError with the reason `conflict`: it was changed meanwhile."""
        request = self._request(path, {}, {"Content-Type": content_type})
        return await self._carry_out(request._replace(method=method, body=json.dumps(document).encode()))

    @asynccontextmanager
    async def stream(
        self, path: str, parameters: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[AsyncIterator[object]]:
        """Yields the documents of a stream once the server has accepted it. Silence of `silence_s` ends it."""
        request = self._request(path, parameters)._replace(total_s=None, silence_s=silence_s)
        with self._failures():
            async with asyncio.timeout(self._timeout_s) as patience, exchange(request) as answer:
                self._check_status(answer.status)
                patience.reschedule(None)
                yield self._documents(answer)

    async def _documents(self, answer: Answer) -> AsyncIterator[object]:
        async for line in lines_of(answer, _MAX_EVENT_BYTES):
            yield parse(line, self._url)

    def _request(
        self, path: str, parameters: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> HttpRequest:
        return HttpRequest(
            self._url + path,
            parameters=parameters,
            headers={"Accept": "application/json", **self._access.headers(), **(headers or {})},
            tls=self._tls,
            total_s=self._timeout_s,
        )

    async def _carry_out(self, request: HttpRequest) -> object:
        with self._failures():
            async with exchange(request) as answer:
                self._check_status(answer.status)
                return parse(await body_of(answer, _MAX_ANSWER_BYTES), self._url)

    def _check_status(self, status: int) -> None:
        if status == 410:
            raise Expired
        if status == 401:
            raise SourceError("denied", f"{self._url} does not accept the token in {self._access.token_path}")
        if status == 403:
            raise SourceError("denied", f"{self._url} denies access: {self._grant}")
        if status == 409:
            raise SourceError("conflict", f"{self._url} has another version of the object")
        if not 200 <= status < 300:
            raise SourceError("status", f"{self._url} answered {status}")

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            with failures_of(self._url, SourceError):
                yield
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise SourceError("unreachable", f"cannot reach {self._url}: {why}") from None
