"""A socket that is missing, dead, silent, or sends garbage: each is reported, and retried until it works."""

import asyncio
import contextlib
import json
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from gpucommons.base.backoff import Backoff
from gpucommons.model.workloads import ContainerReading
from gpucommons.sources.containers.engine import PODMAN
from gpucommons.sources.containers.source import ContainerFollower
from gpucommons.sources.source import SourceError
from testbeds.following import eventually, eventually_absent, eventually_fails, following

A, B = "aa" * 32, "bb" * 32
Fault = Callable[[], Awaitable[web.StreamResponse]]


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpucommons-") as directory:
        yield Path(directory) / "docker.sock"


def source_at(path: Path, heartbeat_s: float = 30.0, timeout_s: float = 0.3) -> ContainerFollower:
    return ContainerFollower(
        socket=str(path),
        timeout_s=timeout_s,
        heartbeat_s=heartbeat_s,
        backoff=Backoff(first_s=0.02, max_s=0.05),
    )


@contextlib.asynccontextmanager
async def babbling(path: Path, answer: bytes | None) -> AsyncIterator[None]:
    """Sends this response to every request; None: never responds."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            if answer is None:
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(talk, path)
    try:
        yield
    finally:
        server.close()


class Daemon:
    """The part of the Engine API that the agent uses, with faults that a test switches on and off."""

    def __init__(self, *ids: str) -> None:
        self.ids = list(ids)
        self.inspects: list[str] = []
        self.pings = 0
        self.listed_wall_s = 0.0
        self.broken: dict[str, Fault] = {}
        self.version: dict[str, object] = {"ApiVersion": "1.41", "MinAPIVersion": "1.12"}
        self.subscriptions: list[dict[str, str]] = []
        self._streams: list[web.StreamResponse] = []

    def event(self, id: str, action: str) -> bytes:
        event = {"Type": "container", "Action": action, "Actor": {"ID": id, "Attributes": {}}}
        return json.dumps(event).encode() + b"\n"

    async def send(self, data: bytes) -> None:
        for stream in self._streams:
            await stream.write(data)

    async def cut(self) -> None:
        """End every stream in the middle of a line."""
        for stream in self._streams:
            await stream.write(self.event(A, "start")[:20])
            assert stream._req is not None
            assert stream._req.transport is not None
            stream._req.transport.close()
        self._streams.clear()

    async def _version(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self.version)

    async def _ping(self, request: web.Request) -> web.StreamResponse:
        self.pings += 1
        return web.Response(text="OK")

    async def _list(self, request: web.Request) -> web.StreamResponse:
        assert request.query["all"] == "1"
        self.listed_wall_s = time.time()
        if fault := self.broken.get("list"):
            return await fault()
        return web.json_response([{"Id": id} for id in self.ids])

    async def _inspect(self, request: web.Request) -> web.StreamResponse:
        id = request.match_info["id"]
        self.inspects.append(id)
        if fault := self.broken.get(id):
            return await fault()
        if id not in self.ids:
            return web.json_response({"message": "no such container"}, status=404)
        return web.json_response({"Id": id, "Name": f"/{id[:2]}", "State": {"Status": "running", "Pid": 7}})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        self.subscriptions.append(dict(request.query))
        stream = web.StreamResponse()
        await stream.prepare(request)
        self._streams.append(stream)
        await asyncio.Event().wait()
        return stream

    @contextlib.asynccontextmanager
    async def serving(self, path: Path, prefix: str = "/v1.41") -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/version", self._version)
        app.router.add_get("/_ping", self._ping)
        app.router.add_get(f"{prefix}/containers/json", self._list)
        app.router.add_get(f"{prefix}/containers/{{id}}/json", self._inspect)
        app.router.add_get(f"{prefix}/events", self._events)
        runner = web.AppRunner(app, shutdown_timeout=0.01)
        await runner.setup()
        await web.UnixSite(runner, path).start()
        try:
            yield
        finally:
            await runner.cleanup()


def has(source: ContainerFollower, *ids: str) -> Callable[[], ContainerReading | None]:
    return lambda: reading if set((reading := source.read()).by_id) == set(ids) else None


def test_before_the_first_list_the_source_is_starting(path: Path) -> None:
    with pytest.raises(SourceError, match="listing the containers of Docker") as caught:
        source_at(path).read()
    assert caught.value.reason == "starting"


def test_without_a_socket_the_source_is_absent_until_there_is_one(path: Path) -> None:
    async def scenario() -> None:
        source = source_at(path)
        async with following(source):
            absent = await eventually_absent(source)
            assert str(absent) == f"there is no Docker socket at {path}"
            assert "systemctl start docker" in absent.remedy
            async with Daemon(A).serving(path):
                await eventually(has(source, A))
                assert source._backoff.next_s() <= 0.02, "the back-off was reset"

    asyncio.run(scenario())


def test_an_absent_podman_is_reported_by_name(path: Path) -> None:
    async def scenario() -> None:
        source = ContainerFollower(PODMAN, str(path))
        async with following(source):
            absent = await eventually_absent(source)
            assert str(absent) == f"there is no Podman socket at {path}"
            assert "podman.socket" in absent.remedy

    asyncio.run(scenario())


def test_a_socket_without_a_listener_is_refused(path: Path) -> None:
    async def scenario() -> None:
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(path))
        source = source_at(path)
        async with following(source):
            failure = await eventually_fails(source, "refused")
            assert "systemctl start docker" in str(failure)

    asyncio.run(scenario())


def test_a_silent_socket_times_out_and_recovers(path: Path) -> None:
    async def scenario() -> None:
        source = source_at(path)
        async with following(source):
            async with babbling(path, None):
                await eventually_fails(source, "timeout")
            os.unlink(path)
            async with Daemon(A).serving(path):
                await eventually(has(source, A))

    asyncio.run(scenario())


def http(body: bytes, length: int | None = None, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (
        status.encode(),
        len(body) if length is None else length,
        body,
    )


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(b"\x00\xff\x13garbage\r\n\r\n", "garbage", id="no HTTP"),
        pytest.param(http(b"<html>"), "garbage", id="no JSON"),
        pytest.param(http(b'{"ApiVersion": "1.41"', length=5000), "garbage", id="cut off"),
        pytest.param(http(b"[" * 100_000), "garbage", id="nested without end"),
        pytest.param(http(b"[1, 2]"), "garbage", id="another shape"),
        pytest.param(http(b'{"ApiVersion": "latest"}'), "garbage", id="no version"),
        pytest.param(http(b"{}", status="500 Oh"), "status", id="500"),
        pytest.param(http(b" " * 5_000_000), "oversize", id="too much"),
        pytest.param(b"", "disconnected", id="hangs up"),
    ],
)
def test_garbage_from_the_socket_is_reported(path: Path, answer: bytes, reason: str) -> None:
    async def scenario() -> None:
        source = source_at(path, timeout_s=5)
        async with following(source), babbling(path, answer):
            failure = await eventually_fails(source, reason)
            assert str(path) in str(failure)
            assert "\n" not in str(failure)
            assert len(str(failure)) < 400

    asyncio.run(scenario())


def test_one_broken_container_does_not_affect_the_others(path: Path) -> None:
    async def fails() -> web.StreamResponse:
        return web.Response(status=500, text="driver failed getting graph driver")

    async def hangs() -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async def lies() -> web.StreamResponse:
        return web.json_response({"Id": B, "Name": "/not the requested one"})

    async def scenario(fault: Fault) -> None:
        daemon = Daemon(A, B)
        daemon.broken[A] = fault
        source = source_at(path, heartbeat_s=0.05)
        async with following(source), daemon.serving(path):
            await eventually(has(source, B))
            del daemon.broken[A]
            await eventually(has(source, A, B))

    for fault in (fails, hangs, lies):
        asyncio.run(scenario(fault))


def test_a_failed_list_is_a_failure_of_the_source(path: Path) -> None:
    async def fails() -> web.StreamResponse:
        return web.Response(status=500)

    async def scenario() -> None:
        daemon = Daemon(A)
        daemon.broken["list"] = fails
        source = source_at(path)
        async with following(source), daemon.serving(path):
            assert "/containers/json" in str(await eventually_fails(source, "status"))
            daemon.broken.clear()
            await eventually(has(source, A))

    asyncio.run(scenario())


def test_after_a_broken_stream_everything_is_listed_again(path: Path) -> None:
    async def scenario() -> None:
        daemon = Daemon(A)
        source = source_at(path)
        async with following(source), daemon.serving(path):
            await eventually(has(source, A))
            await eventually(lambda: daemon._streams or None)
            # Changes while the stream is down must be seen afterwards.
            daemon.ids[:] = [B]
            source._backoff = Backoff(first_s=0.3, max_s=0.3)
            await daemon.cut()
            await eventually_fails(source, "disconnected", "garbage")
            await eventually(has(source, B))
            assert len(daemon.subscriptions) == 2

    asyncio.run(scenario())


def test_events_are_followed_and_garbage_among_them_restarts_the_session(path: Path) -> None:
    async def scenario() -> None:
        daemon = Daemon(A)
        source = source_at(path)
        async with following(source), daemon.serving(path):
            await eventually(has(source, A))
            await eventually(lambda: daemon._streams or None)
            daemon.ids.append(B)
            line = daemon.event(B, "start")
            await daemon.send(b"\n\n" + line[:10])
            await daemon.send(line[10:] + b'{"Type": "network", "Action": "connect"}\n[]\n')
            await eventually(has(source, A, B))
            assert len(daemon.subscriptions) == 1
            daemon.ids.remove(A)
            await daemon.send(daemon.event(A, "destroy"))
            await eventually(has(source, B))
            await daemon.send(b"{not json}\n")
            await eventually(lambda: True if len(daemon.subscriptions) == 2 else None)
            await eventually(has(source, B))

    asyncio.run(scenario())


def test_without_events_each_container_is_inspected_once(path: Path) -> None:
    async def scenario() -> None:
        daemon = Daemon(A, B)
        source = source_at(path, heartbeat_s=0.02)
        async with following(source), daemon.serving(path):
            first = await eventually(has(source, A, B))
            await eventually(lambda: True if daemon.pings >= 5 else None)
            assert sorted(daemon.inspects) == [A, B]
            assert source.read() is first
            # Daemons respond before they subscribe: events in between are sent only with `since`.
            assert float(daemon.subscriptions[0]["since"]) < daemon.listed_wall_s
            filters = json.loads(daemon.subscriptions[0]["filters"])
            assert filters["type"] == ["container"]
            assert "exec_create" not in filters["event"]

    asyncio.run(scenario())


def test_the_oldest_version_of_a_newer_daemon_is_used(path: Path) -> None:
    async def scenario() -> None:
        daemon = Daemon(A)
        daemon.version = {"ApiVersion": "1.52", "MinAPIVersion": "1.47"}
        source = source_at(path)
        async with following(source), daemon.serving(path, prefix="/v1.47"):
            await eventually(has(source, A))

    asyncio.run(scenario())
