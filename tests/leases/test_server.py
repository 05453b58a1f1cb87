"""The lease socket: rights, malformed requests, limits for each user, and clients that do not read."""

import asyncio
import json
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpucommons.base import line_server
from gpucommons.base.peers import Admins, PeerProcess
from gpucommons.leases.protocol import MAX_LINE_BYTES, RunRequest
from gpucommons.leases.service import server as server_module
from gpucommons.leases.service.server import LeaseAccess, LeaseServer
from gpucommons.leases.service.service import LeaseClient
from leases.random_node import whole
from leases.stepped_service import SteppedService
from waiting import until

Scenario = Callable[[LeaseServer, Path], Awaitable[None]]


def serving(directory: Path, scenario: Scenario, own_uid: int = os.getuid()) -> None:
    async def run() -> None:
        service = SteppedService(directory, (whole(0), whole(1))).service
        access = LeaseAccess(
            Admins(own_uid), lambda uid: f"user{uid}", lambda *_: False, lambda reading, *_: {"n": len(reading.leases)}
        )
        path = directory / "leases.sock"
        server = LeaseServer(str(path), service, access)
        await server.start()
        try:
            await scenario(server, path)
        finally:
            await server.stop()

    asyncio.run(run())


async def exchange(path: Path, raw: bytes) -> dict[str, Any]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(raw)
    answer = json.loads(await reader.readline())
    writer.close()
    return dict(answer)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_every_user_may_connect_and_the_file_is_removed(tmp_path: Path) -> None:
    async def scenario(_: LeaseServer, path: Path) -> None:
        assert mode_of(path) == 0o666
        assert await exchange(path, b'{"request": "queue"}\n') == {"event": "answer", "answer": {"n": 0}}

    serving(tmp_path, scenario)
    assert not (tmp_path / "leases.sock").exists()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"hello\n", "invalid JSON"),
        (b"[1]\n", "expected a JSON object"),
        (b"[" * 8000 + b"\n", "invalid JSON"),
        (b'{"request": "dance"}\n', "unknown request 'dance'"),
        (b'{"request": "run", "gpus": 0}\n', "invalid gpus 0"),
        (b'{"request": "run", "gpus": true}\n', "invalid gpus True"),
        (b'{"request": "run", "gpus": 9}\n', "9 GPUs requested, this node has 2 GPUs"),
        (b'{"request": "run", "memory_bytes": -1}\n', "invalid memory_bytes"),
        (b'{"request": "run", "limit_s": NaN}\n', "invalid limit_s"),
        (b'{"request": "run", "limit_s": ' + b"9" * 400 + b"}\n", "invalid limit_s"),
        (b'{"request": "reserve", "gpus": 1, "from_s": -' + b"9" * 400 + b', "for_s": 5}\n', "invalid from_s"),
        (b'{"request": "run", "share": "yes"}\n', "invalid share"),
        (b'{"request": "run", "name": "' + b"x" * 65 + b'"}\n', "invalid name"),
        (b'{"request": "resume", "id": "1", "token": "x"}\n', "lease 1 is not known"),
        (b'{"request": "cancel"}\n', "invalid id"),
        (b'{"request": "reserve", "gpus": 1, "from_s": 1e300, "for_s": 5}\n', "invalid from_s"),
    ],
)
def test_a_malformed_request_is_answered_in_one_line(tmp_path: Path, raw: bytes, words: str) -> None:
    async def scenario(server: LeaseServer, path: Path) -> None:
        answer = await exchange(path, raw)
        assert answer["event"] == "error"
        assert words in answer["error"]
        assert "\n" not in answer["error"]
        assert not server.service.reading.waiting
        assert not server.service.reading.leases

    serving(tmp_path, scenario)


def test_a_line_without_end_is_cut_off_and_others_are_served(tmp_path: Path) -> None:
    async def scenario(_: LeaseServer, path: Path) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"x" * (4 * MAX_LINE_BYTES))
        assert await reader.read() == b""
        writer.close()
        assert (await exchange(path, b'{"request": "queue"}\n'))["event"] == "answer"

    serving(tmp_path, scenario)


def test_a_closed_connection_ends_the_lease(tmp_path: Path) -> None:
    async def scenario(server: LeaseServer, path: Path) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b'{"request": "run"}\n')
        assert json.loads(await reader.readline())["event"] == "queued"
        assert json.loads(await reader.readline())["event"] == "granted"
        assert len(server.service.reading.leases) == 1
        writer.close()
        await asyncio.to_thread(until, lambda: not server.service.reading.leases, "the lease is over")

    serving(tmp_path, scenario)


def test_nonsense_of_a_client_with_a_lease_ends_the_lease(tmp_path: Path) -> None:
    async def scenario(server: LeaseServer, path: Path) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b'{"request": "run"}\nnonsense\n')
        lines = [json.loads(line) for line in (await reader.read()).splitlines()]
        assert [line["event"] for line in lines] == ["queued", "granted", "error"]
        assert server.service.reading.leases == ()
        writer.close()

    serving(tmp_path, scenario)


def test_connections_and_requests_of_a_user_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root this test would have no limit: the peer is taken for a user."""
    monkeypatch.setattr(line_server, "look_at", lambda pid: PeerProcess())
    limits = server_module._LIMITS._replace(connections=3, request_burst=5.0)
    monkeypatch.setattr(server_module, "_LIMITS", limits)

    async def scenario(_: LeaseServer, path: Path) -> None:
        idle = [await asyncio.open_unix_connection(str(path)) for _ in range(3)]
        assert "too many connections" in (await exchange(path, b'{"request": "queue"}\n'))["error"]
        for connection in idle:
            connection[1].close()
        answers: list[dict[str, Any]] = []
        answers += [await exchange(path, b'{"request": "queue"}\n') for _ in range(30)]
        assert any("too many requests" in answer.get("error", "") for answer in answers)

    serving(tmp_path, scenario)


def test_a_client_that_does_not_read_costs_no_memory(tmp_path: Path) -> None:
    async def scenario(server: LeaseServer, path: Path) -> None:
        keep = []
        for _ in range(2):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b'{"request": "run"}\n')
            await reader.readline()
            keep.append(writer)
        reader, deaf = await asyncio.open_unix_connection(str(path), limit=1)
        deaf.write(b'{"request": "run", "updates": true}\n')
        await asyncio.to_thread(until, lambda: server.service.reading.waiting, "it waits")
        (client,) = [each for each in server.service._clients.values() if each.updates]
        for number in range(5000):
            client.send({"event": "waiting", "position": number, "padding": "x" * 200})
        sizes = [connection.unread_bytes for connection in server.lines.connections]
        assert max(sizes) < 80 * 1024
        for writer in (*keep, deaf):
            writer.close()

    serving(tmp_path, scenario)


async def steps_of_the_loop() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


def test_the_clock_rests_while_there_is_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Then a clock that does not rest ticks with every step of the loop.
    monkeypatch.setattr(server_module, "_TICK_S", 0)

    async def scenario(server: LeaseServer, path: Path) -> None:
        ticks: list[None] = []
        tick = server.service.tick
        monkeypatch.setattr(server.service, "tick", lambda: ticks.append(tick()))
        await steps_of_the_loop()
        assert len(ticks) == 1
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b'{"request": "run", "gpus": 1}\n')
        await reader.readline()
        seen = len(ticks)
        await steps_of_the_loop()
        assert len(ticks) >= seen + 50
        writer.close()
        await asyncio.to_thread(until, lambda: not server.service.has_requests, "the lease is over")
        await steps_of_the_loop()
        seen = len(ticks)
        await steps_of_the_loop()
        assert len(ticks) == seen

    serving(tmp_path, scenario)


def test_the_time_of_day_is_looked_at_before_the_first_request_after_a_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(server: LeaseServer, path: Path) -> None:
        calls: list[str] = []
        open_lease = server.service.open

        def opened(client: LeaseClient, request: RunRequest) -> str:
            calls.append("open")
            return open_lease(client, request)

        monkeypatch.setattr(server.service, "tick", lambda: calls.append("tick"))
        monkeypatch.setattr(server.service, "open", opened)
        assert (await exchange(path, b'{"request": "run", "gpus": 1}\n'))["event"] == "queued"
        assert calls[:2] == ["tick", "open"]

    serving(tmp_path, scenario)
