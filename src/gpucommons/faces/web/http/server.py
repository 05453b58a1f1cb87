"""The agent's web server: listeners, routes, limits and the web configuration."""

import asyncio
import ipaddress
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpucommons.base.address import Address, UnixAddress, parse_address, parse_unix_address
from gpucommons.base.threads import in_daemon_thread
from gpucommons.base.unix_listener import ListenError
from gpucommons.faces.web.access.control import AccessControl, HostNames, resolve_name
from gpucommons.faces.web.access.reload import WebConfigFile
from gpucommons.faces.web.access.tls import Tls
from gpucommons.faces.web.http.connections import ConnectionLimits, Connections
from gpucommons.faces.web.http.dispatch import Dispatcher, ScrapeMeters
from gpucommons.faces.web.http.listeners import Listener, Peers, open_sockets
from gpucommons.faces.web.http.protocol import HttpConnection
from gpucommons.faces.web.routes.api import Api
from gpucommons.faces.web.routes.table import App, MetricsProvider, drop_in_routes, main_routes
from gpucommons.model.snapshot import ScrapeReading
from gpucommons.rules.privacy import Privacy

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stats:
    connections_open: int
    connections_refused: Mapping[str, int]
    requests: Mapping[tuple[str, int], int]
    web_config_reload_ok: bool | None
    scrapes: Mapping[str, ScrapeReading]


@dataclass(frozen=True, slots=True)
class BoundAddress:
    """An open listener: its address and its dialect (None for the main listener). A Unix socket has the port 0."""

    url: str
    port: int
    dialect: str | None


class WebServer:
    """`start` raises ListenError or WebConfigError, each one line, and leaves nothing open when it does.

    `listeners` are (address, dialect), with None for a main listener. `optional_socket` is a main listener that is left
    out, with a warning, where it cannot be opened. Without an `api`, a main listener serves metrics and the plain page
    only. `hosts` are further host names of this machine, under which the main listeners serve.
    """

    def __init__(
        self,
        provider: MetricsProvider,
        listeners: Iterable[tuple[str, str | None]],
        *,
        optional_socket: str = "",
        web_config: Path | None = None,
        hosts: Iterable[str] = (),
        limits: ConnectionLimits | None = None,
        api: Api | None = None,
        show_owners: str = "auto",
        hides_processes: bool = False,
        snapshot_stale_after_s: float = 10.0,
        poll_s: float = 3.0,
    ) -> None:
        self._provider = provider
        self._configured = [(parse_address(address), dialect) for address, dialect in listeners]
        self._optional_socket = parse_unix_address(optional_socket) if optional_socket else None
        listened = (
            address.host for address, dialect in self._configured if dialect is None and isinstance(address, Address)
        )
        self._hosts = HostNames((*hosts, *filter(None, listened)))
        self._limits = limits or ConnectionLimits()
        self._api = api
        self._show_owners = show_owners
        self._hides_processes = hides_processes
        self._stale_after_s = snapshot_stale_after_s
        self._config = WebConfigFile(web_config, poll_s)
        self._connections = Connections(self._limits)
        self._access = AccessControl(lambda: self._config.settings)
        self._requests: Counter[tuple[str, int]] = Counter()
        self._scrapes = ScrapeMeters()
        self._listeners: list[Listener] = []
        self._responses: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.addresses: list[BoundAddress] = []

    async def start(self) -> None:
        await self._config.load()
        opened: list[tuple[str | None, Address | UnixAddress, list[socket.socket]]] = []
        try:
            for address, dialect in self._configured:
                opened.append((dialect, address, await open_sockets(address, _setting(dialect, address))))
        except OSError:
            for _, _, sockets in opened:
                for listening in sockets:
                    listening.close()
            raise
        if self._optional_socket is not None:
            opened += [
                (None, self._optional_socket, listening)
                for listening in await _opened_if_possible(self._optional_socket)
            ]
        for dialect, address, sockets in opened:
            self._serve(dialect, address, sockets)
        self._tasks = [
            asyncio.create_task(self._connections.sweep_forever(), name="web-sweeper"),
            asyncio.create_task(self._config.watch(), name="web-config-watch"),
            asyncio.create_task(self._resolve_own_name(), name="web-own-name"),
        ]

    async def stop(self) -> None:
        """Accept no more connections, finish running requests, close the slow ones."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._api is not None:
            self._api.close()
        await self._connections.drain()
        await self._access.stop()
        ending = [*self._tasks, *self._responses]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._tasks.clear()

    async def reload(self) -> None:
        """Read the web configuration again now, changed or not."""
        await self._config.reload()

    async def _resolve_own_name(self) -> None:
        # After the start: DNS may not answer.
        self._hosts.add(await in_daemon_thread(resolve_name))

    def stats(self) -> Stats:
        return Stats(
            self._connections.open,
            dict(self._connections.refused),
            dict(self._requests),
            self._config.ok,
            self._scrapes.readings(time.monotonic()),
        )

    def _serve(self, dialect: str | None, address: Address | UnixAddress, sockets: list[socket.socket]) -> None:
        unix = isinstance(address, UnixAddress)
        is_near = not unix and _all_loopback(sockets)
        privacy = Privacy(self._show_owners, unix, is_near, os.getuid(), self._hides_processes)
        routes = (
            main_routes(self._provider, self._api, self._stale_after_s)
            if dialect is None
            else drop_in_routes(self._provider, dialect, self._stale_after_s)
        )
        app = App(routes, self._provider.latest)
        # A page of a foreign site cannot make a browser connect to a Unix socket.
        checks_names = dialect is None and not unix
        dispatcher = Dispatcher(
            app,
            self._hosts if checks_names else None,
            self._access,
            self._connections,
            lambda: self._config.settings,
            self._requests,
            self._scrapes,
            dialect,
            privacy,
            Peers(self._provider.latest),
        )
        protocol = partial(HttpConnection, dispatcher, self._responses, {}, self._limits.header_field_bytes)
        # On a Unix socket the kernel identifies the peer, and no third party can read along.
        tls = _no_tls if unix else self._current_tls
        for listening in sockets:
            self._listeners.append(Listener(listening, self._connections, protocol, tls))
        bound = self._bound(address, sockets[0], dialect)
        self.addresses.append(bound)
        if dialect is None and not unix and not privacy.loopback and not self._config.settings.authenticates:
            log.warning(
                "%s is open to other machines without authentication; set passwords or client certificates in "
                "web.config_file, or listen on a loopback address",
                bound.url,
            )

    def _bound(self, address: Address | UnixAddress, listening: socket.socket, dialect: str | None) -> BoundAddress:
        if isinstance(address, UnixAddress):
            return BoundAddress(str(address), 0, dialect)
        port = listening.getsockname()[1]
        scheme = "http" if self._current_tls() is None else "https"
        return BoundAddress(f"{scheme}://{Address(address.host or socket.gethostname(), port)}", port, dialect)

    def _current_tls(self) -> Tls | None:
        return self._config.settings.tls


def _no_tls() -> Tls | None:
    return None


def _all_loopback(sockets: Iterable[socket.socket]) -> bool:
    return all(ipaddress.ip_address(listening.getsockname()[0]).is_loopback for listening in sockets)


def _setting(dialect: str | None, address: Address | UnixAddress) -> str:
    if dialect is not None:
        return f"listeners.{dialect}"
    return "web.socket" if isinstance(address, UnixAddress) else "--listen (web.listen in the configuration)"


async def _opened_if_possible(address: UnixAddress) -> list[list[socket.socket]]:
    try:
        return [await open_sockets(address, "web.socket")]
    except ListenError as error:
        log.warning("%s; until then, local commands use web.listen", error)
        return []
