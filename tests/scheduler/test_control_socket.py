"""The control socket: every user may read the status, admins may give orders, and errors are one line."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpucommons.config.runtime_directory import control_path
from gpucommons.faces.documents.turns import turn_pieces
from gpucommons.scheduler.policy.state import GIB
from gpucommons.scheduler.protocol.wire import MessageType
from gpucommons.scheduler.service.control_socket import ControlSocket
from gpucommons.scheduler.service.server import SchedulerServer
from scheduler.served import PRIVACY, Scripted, scheduler_settings

T = MessageType
Send = Callable[[object], Awaitable[dict[str, Any]]]


def with_socket(directory: Path, scenario: Callable[[SchedulerServer, Send], Awaitable[None]]) -> None:
    async def run() -> None:
        server = SchedulerServer(scheduler_settings(directory / "scheduler.sock"))
        control = ControlSocket(server, turn_pieces, PRIVACY)
        await server.start()
        await control.start()

        async def send(request: object) -> dict[str, Any]:
            reader, writer = await asyncio.open_unix_connection(control_path(server.settings.socket))
            line = request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n"
            writer.write(line)
            answer: dict[str, Any] = json.loads(await asyncio.wait_for(reader.readline(), 10))
            writer.close()
            return answer

        try:
            await scenario(server, send)
        finally:
            await control.stop()
            await server.stop()

    asyncio.run(run())


def test_orders_are_carried_out(tmp_path: Path) -> None:
    async def scenario(server: SchedulerServer, send: Send) -> None:
        client = await asyncio.to_thread(lambda: Scripted(server.settings.socket).register("pod", "ns"))
        assert (await send({"command": "off"}))["ok"]
        await asyncio.to_thread(client.expect, T.SCHED_OFF)
        assert (await send({"command": "status"}))["answer"]["on"] is False
        assert (await send({"command": "on"}))["ok"]
        await asyncio.to_thread(client.expect, T.SCHED_ON)
        assert (await send({"command": "set-quantum", "seconds": 7.5}))["ok"]
        assert (await send({"command": "status"}))["answer"]["fixed_quantum_s"] == 7.5
        answer = await send({"command": "set-limit", "target": "pod", "memory": "8Gi", "core": "25"})
        assert answer["answer"] == "pod is limited; 1 connected client updated"
        update = await asyncio.to_thread(client.expect, T.UPDATE_LIMIT)
        assert update.memory_limit_bytes == 8 * GIB
        update = await asyncio.to_thread(client.expect, T.UPDATE_CORE_LIMIT)
        assert update.core_limit_percent == 25
        row = (await send({"command": "status"}))["answer"]["clients"][client.id]
        assert (row["core_quota_percent"], row["core_quota_source"]) == (25, "set-limit")
        assert (await send({"command": "set-quantum", "seconds": "auto"}))["ok"]
        assert (await send({"command": "status"}))["answer"]["fixed_quantum_s"] is None
        answer = await send({"command": "set-limit", "target": "pod", "clear": True})
        assert answer["answer"] == "the limit of pod is cleared; 1 connected client updated"
        update = await asyncio.to_thread(client.expect, T.UPDATE_LIMIT)
        assert update.memory_limit_bytes == 0
        row = (await send({"command": "status"}))["answer"]["clients"][client.id]
        assert (row["core_quota_source"], row["memory_quota_source"]) == ("none", "none")
        again = await send({"command": "set-limit", "target": "pod", "clear": True})
        assert again["error"] == "nothing to clear: no limit was set for pod with set-limit"

    with_socket(tmp_path, scenario)


def test_a_limit_of_a_pod_applies_to_later_clients(tmp_path: Path) -> None:
    async def scenario(server: SchedulerServer, send: Send) -> None:
        answer = await send({"command": "set-limit", "target": "later-pod", "core": "30"})
        assert answer["answer"] == "later-pod is limited; 0 connected clients updated"
        client = await asyncio.to_thread(lambda: Scripted(server.settings.socket).register("later-pod"))
        assert (await send({"command": "status"}))["answer"]["clients"][client.id]["core_quota_percent"] == 30

    with_socket(tmp_path, scenario)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"command": "dance"}, "unknown command 'dance': use status, park, wake, on, off, set-quantum, set-limit"),
        ({}, "unknown command None"),
        ([], "JSON object"),
        (b"not json\n", "invalid JSON"),
        (b"[" * 3000 + b"\n", "invalid JSON"),
        (b'{"command": ' + b"[" * 900 + b"]" * 900 + b"}\n", ""),
        ({"command": "set-quantum", "seconds": "soon"}, "invalid quantum 'soon'"),
        ({"command": "set-quantum", "seconds": -1}, "invalid quantum -1"),
        ({"command": "set-quantum", "seconds": 0}, "invalid quantum 0"),
        ({"command": "set-limit", "target": "x"}, "--memory"),
        ({"command": "set-class", "target": "x", "class": "urgent"}, "unknown class 'urgent': use batch, latency"),
        ({"command": "set-limit", "target": "x", "memory": "8x"}, "invalid amount of memory '8x'"),
        ({"command": "set-limit", "target": "x", "core": "101"}, "invalid share of a GPU '101'"),
        ({"command": "set-limit", "target": "0123456789abcdef", "core": "5"}, "no client 0123456789abcdef"),
        ({"command": "set-limit"}, "target"),
    ],
)
def test_a_bad_request_is_answered_in_one_line(tmp_path: Path, request_: object, expected: str) -> None:
    async def scenario(_: SchedulerServer, send: Send) -> None:
        answer = await send(request_)
        assert answer["ok"] is False
        assert expected in answer["error"]
        assert "\n" not in answer["error"]
        assert (await send({"command": "status"}))["ok"], "the next request is served"

    with_socket(tmp_path, scenario)


def test_silent_and_endless_peers_delay_no_other(tmp_path: Path) -> None:
    async def scenario(server: SchedulerServer, send: Send) -> None:
        path = control_path(server.settings.socket)
        silent = [socket.socket(socket.AF_UNIX) for _ in range(20)]
        for peer in silent:
            peer.connect(path)
        endless = socket.socket(socket.AF_UNIX)
        endless.connect(path)
        endless.send(b"x" * 100_000)
        assert (await send({"command": "status"}))["ok"]
        for peer in (*silent, endless):
            peer.close()
        assert (await send({"command": "status"}))["ok"]

    with_socket(tmp_path, scenario)


def test_the_socket_is_removed_with_the_scheduler(tmp_path: Path) -> None:
    async def scenario(_: SchedulerServer, send: Send) -> None:
        assert {path.name for path in tmp_path.iterdir()} == {"scheduler.sock", "control.sock"}  # noqa: ASYNC240

    with_socket(tmp_path, scenario)
    assert list(tmp_path.iterdir()) == []
