"""HTTP to an API server or a kubelet: verified, limited in size and time, with the current token.

The token is read for each request: the kubelet renews it. The sources only read; `send` is for reports of GPU faults.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from gpucommons.base.http_client import body_of, failures_of, lines_of
from gpucommons.base.http_library import aiohttp
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
    """One server, as a context manager. `grant` is what to do if the server denies access."""

    def __init__(self, access: ClusterAccess, timeout_s: float, grant: str) -> None:
        self._access = access
        self._timeout_s = timeout_s
        self._grant = grant
        self._url = access.url.rstrip("/")

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._access.tls() if self._url.startswith("https:") else True),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": "application/json", "User-Agent": "gpucommons"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def get(self, path: str, parameters: Mapping[str, str]) -> object:
        limits = aiohttp.ClientTimeout(total=self._timeout_s)
        with self._failures():
            async with self._request(path, parameters, limits) as response:
                return parse(await body_of(response, _MAX_ANSWER_BYTES), self._url)

    async def send(self, method: str, path: str, document: object, content_type: str = "application/json") -> object:
        """The object as the server has it now. A SourceError with the reason `conflict`: it was changed meanwhile."""
        limits = aiohttp.ClientTimeout(total=self._timeout_s)
        with self._failures():
            async with self._request(path, {}, limits, method, json.dumps(document).encode(), content_type) as response:
                return parse(await body_of(response, _MAX_ANSWER_BYTES), self._url)

    @asynccontextmanager
    async def stream(
        self, path: str, parameters: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[AsyncIterator[object]]:
        """Yields the documents of a stream once the server has accepted it. Silence of `silence_s` ends it."""
        limits = aiohttp.ClientTimeout(total=None, sock_read=silence_s)
        with self._failures():
            async with (
                asyncio.timeout(self._timeout_s) as patience,
                self._request(path, parameters, limits) as response,
            ):
                patience.reschedule(None)
                yield self._documents(response)

    async def _documents(self, response: aiohttp.ClientResponse) -> AsyncIterator[object]:
        async for line in lines_of(response, _MAX_EVENT_BYTES):
            yield parse(line, self._url)

    @asynccontextmanager
    async def _request(
        self,
        path: str,
        parameters: Mapping[str, str],
        limits: aiohttp.ClientTimeout,
        method: str = "GET",
        body: bytes | None = None,
        content_type: str = "",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        typed = {"Content-Type": content_type} if content_type else {}
        async with self._http.request(
            method,
            self._url + path,
            params=parameters,
            headers=self._access.headers() | typed,
            data=body,
            timeout=limits,
            allow_redirects=False,
        ) as response:
            self._check_status(response.status)
            yield response

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
