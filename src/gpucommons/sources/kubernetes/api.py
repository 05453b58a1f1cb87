"""HTTP to an API server or a kubelet: verified, limited in size and time, with the current token. Read-only."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Self

import aiohttp

from gpucommons.base.http_client import body_of, failures_of, lines_of
from gpucommons.sources.json_values import parse
from gpucommons.sources.kubernetes.access import ClusterAccess
from gpucommons.sources.kubernetes.table import Expired
from gpucommons.sources.source import SourceError

_MOST_ANSWER_BYTES = 64 * 1024 * 1024
# An object in etcd is at most 1.5 MiB, and JSON may write a byte of it as six.
_MOST_EVENT_BYTES = 16 * 1024 * 1024


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
                return parse(await body_of(response, _MOST_ANSWER_BYTES), self._url)

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
        async for line in lines_of(response, _MOST_EVENT_BYTES):
            yield parse(line, self._url)

    @asynccontextmanager
    async def _request(
        self, path: str, parameters: Mapping[str, str], limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._http.get(
            self._url + path,
            params=parameters,
            headers=self._access.headers(),
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
        if status != 200:
            raise SourceError("status", f"{self._url} answered {status}")

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            with failures_of(self._url, SourceError):
                yield
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise SourceError("unreachable", f"cannot reach {self._url}: {why}") from None
