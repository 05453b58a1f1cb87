"""The server of JSON lines on Unix sockets: budgets of owners, slots that are kept, and how it stops."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpucommons.base import line_server
from gpucommons.base.line_server import LineConnection, LineLimits, LinePeer, LineServer
from gpucommons.base.peers import PeerProcess
from gpucommons.base.threads import LoopThread
from gpucommons.base.unix_listener import ListenError, PeerCredentials
from gpucommons.base.user_namespace import UserNamespace

LIMITS = LineLimits(line_bytes=100, connections=8, connections_in_all=64, requests_per_s=1.0, request_burst=1000.0)


async def echo(peer: LinePeer, line: bytes, connection: LineConnection) -> None:
    """Answers every line until the client ends."""
    while line:
        connection.send(line)
        line = await connection.receive()


def refuse(reason: str) -> bytes:
    return json.dumps({"refused": reason}).encode() + b"\n"


class Node:
    """Pretends which processes connect: from now on one with this uid, here or in a user namespace."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uid = 1000
        self.process = PeerProcess(is_local=True)
        monkeypatch.setattr(line_server, "peer_credentials", lambda _: PeerCredentials(4711, self.uid, self.uid))
        monkeypatch.setattr(line_server, "look_at", lambda _: self.process)

    def inside(self, maker: int, uid: int) -> None:
        """In a user namespace of `maker`."""
        self.uid, self.process = uid, PeerProcess(False, None, UserNamespace(maker, "4026532000"))

    def outside(self, uid: int) -> None:
        self.uid, self.process = uid, PeerProcess(is_local=True)


def serving(path: Path, scenario: Callable[[LineServer], Awaitable[None]]) -> None:
    async def run() -> None:
        server = LineServer("the test socket", LIMITS, echo, refuse)
        await server.start([str(path)], "test.socket")
        try:
            await scenario(server)
        finally:
            await server.stop()

    asyncio.run(run())


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
        self.reader, self.writer = reader, writer
        self.is_refused = "refused" in answer


async def connect(path: Path) -> Client:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(b'{"n": 1}\n')
    return Client(reader, writer, json.loads(await reader.readline()))


def test_all_uids_of_a_users_namespace_are_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, path = Node(monkeypatch), tmp_path / "socket"

    async def scenario(_: LineServer) -> None:
        clients = []
        for uid in range(20):
            node.inside(1000, 100_000 + uid)
            clients.append(await connect(path))
        assert [client.is_refused for client in clients] == [False] * 8 + [True] * 12
        node.outside(1001)
        assert not (await connect(path)).is_refused

    serving(path, scenario)


def test_a_full_table_answers_root_and_keeps_slots_for_new_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 64, two are for root and two for owners that have few connections."""
    node, path = Node(monkeypatch), tmp_path / "socket"

    async def scenario(_: LineServer) -> None:
        clients = []
        for uid in range(7):
            node.outside(2000 + uid)
            clients += [await connect(path) for _ in range(8)]
        node.outside(3000)
        clients += [await connect(path) for _ in range(4)]
        assert not any(client.is_refused for client in clients)
        assert (await connect(path)).is_refused, "60 are taken, and it has four"
        node.outside(3001)
        few = [await connect(path) for _ in range(3)]
        assert [client.is_refused for client in few] == [False, False, True]
        node.outside(0)
        kept = [await connect(path) for _ in range(20)]
        assert not any(client.is_refused for client in kept), "an operator always gets through"

    serving(path, scenario)


def test_long_lines_and_silence_end_one_connection_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "socket"
    monkeypatch.setattr(line_server, "_TIMEOUT_S", 0.2)

    async def scenario(_: LineServer) -> None:
        silent = await asyncio.open_unix_connection(str(path))
        long = await asyncio.open_unix_connection(str(path))
        long[1].write(b"x" * 1000 + b"\n")
        assert await long[0].read() == b""
        assert await silent[0].read() == b""
        assert not (await connect(path)).is_refused
        silent[1].close()
        long[1].close()

    serving(path, scenario)


def test_a_request_that_fails_is_logged_and_others_are_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(peer: LinePeer, line: bytes, connection: LineConnection) -> None:
        raise KeyError("broken")

    async def run() -> None:
        server = LineServer("the test socket", LIMITS, broken, refuse)
        await server.start([str(tmp_path / "socket")], "test.socket")
        for _ in range(2):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "socket"))
            writer.write(b"{}\n")
            assert await reader.read() == b""
            writer.close()
        await server.stop()

    asyncio.run(run())
    line = "the test socket: an error while a client was served; others are"
    assert [record.message for record in caplog.records] == [line] * 2


def test_stopping_while_clients_are_connected_logs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In a thread of its own, as in the agent: the loop ends right after."""
    path = tmp_path / "socket"
    server = LineServer("the test socket", LIMITS, echo, refuse)
    ended: list[bool] = []

    async def run() -> None:
        thread = LoopThread("lines", server.stop)
        await thread.start(lambda: server.start([str(path)], "test.socket"))
        clients = [await connect(path) for _ in range(3)]
        await thread.stop()
        for client in clients:
            ended.append(await client.reader.read() == b"")
            client.writer.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert ended == [True] * 3
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert not path.exists()


def test_a_client_that_sends_nothing_has_made_no_request(tmp_path: Path) -> None:
    lines: list[bytes] = []

    async def note(peer: LinePeer, line: bytes, connection: LineConnection) -> None:
        lines.append(line)

    async def run() -> None:
        server = LineServer("the test socket", LIMITS, note, refuse)
        await server.start([str(tmp_path / "socket")], "test.socket")
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "socket"))
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await server.stop()

    asyncio.run(run())
    assert lines == []


def test_a_client_that_the_kernel_does_not_identify_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "socket"

    def fail(_: object) -> PeerCredentials:
        raise OSError("no credentials")

    async def scenario(_: LineServer) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(line_server, "peer_credentials", fail)
            reader, writer = await asyncio.open_unix_connection(str(path))
            assert await asyncio.wait_for(reader.read(), 30) == b""
            writer.close()
        assert not (await connect(path)).is_refused

    serving(path, scenario)


def test_every_connection_has_ended_once_it_has_stopped(tmp_path: Path) -> None:
    path = tmp_path / "socket"

    async def scenario(server: LineServer) -> None:
        clients = [await connect(path) for _ in range(3)]
        assert len(server.connections) == 3
        await server.stop()
        assert not server.connections
        for client in clients:
            client.writer.close()

    serving(path, scenario)


def test_the_first_path_that_can_be_served_is(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")

    async def run() -> None:
        server = LineServer("the test socket", LIMITS, echo, refuse)
        with pytest.raises(ListenError, match="not a socket"):
            await server.start([str(blocked)], "test.socket")
        await server.start([str(blocked), str(tmp_path / "second")], "test.socket")
        served.append((tmp_path / "second").is_socket())
        await server.stop()
        await server.stop()

    served: list[bool] = []
    asyncio.run(run())
    assert served == [True]
