"""The operator's door: everybody may ask, few may order, and bad requests are told in one line."""

import asyncio
import json
import multiprocessing
import os
import socket
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from gpucommons.scheduler.policy.settings import PolicySettings
from gpucommons.scheduler.service.control_socket import ControlSocket, control_path
from gpucommons.scheduler.service.server import SchedulerServer
from needs import needs_root

Ask = Callable[[object], Awaitable[dict[str, object]]]


def with_socket(directory: Path, scenario: Callable[[SchedulerServer, Ask], Awaitable[None]]) -> None:
    async def run() -> None:
        server = SchedulerServer(PolicySettings(socket_path=str(directory / "scheduler.sock")))
        control = ControlSocket(server)
        await server.start()
        await control.start()

        async def ask(request: object) -> dict[str, object]:
            reader, writer = await asyncio.open_unix_connection(control_path(server.settings.socket_path))
            line = request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n"
            writer.write(line)
            answer: dict[str, object] = json.loads(await asyncio.wait_for(reader.readline(), 10))
            writer.close()
            return answer

        try:
            await scenario(server, ask)
        finally:
            await control.stop()
            await server.stop()

    asyncio.run(run())


def test_orders_are_carried_out(tmp_path: Path) -> None:
    async def scenario(server: SchedulerServer, ask: Ask) -> None:
        assert (await ask({"command": "off"}))["ok"]
        assert server.policy.on is False
        assert (await ask({"command": "on"}))["ok"]
        assert server.policy.on is True
        assert (await ask({"command": "set-quantum", "seconds": 7}))["ok"]
        assert server.policy.operator_quantum_s == 7
        assert (await ask({"command": "set-limit", "target": "ml/train", "memory": "8Gi", "core": "25"}))["ok"]
        status = (await ask({"command": "status"}))["answer"]
        assert isinstance(status, dict)
        assert status["fixed_quantum_s"] == 7
        described = (await ask({"command": "describe"}))["answer"]
        assert "scheduler on" in str(described)

    with_socket(tmp_path, scenario)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"command": "dance"}, "dance"),
        ({}, "no command"),
        ([], "JSON object"),
        (b"not json\n", "not JSON"),
        ({"command": "set-quantum", "seconds": "soon"}, "soon"),
        ({"command": "set-quantum", "seconds": -1}, "-1"),
        ({"command": "set-limit", "target": "x"}, "--memory"),
        ({"command": "set-limit", "target": "x", "memory": "8x"}, "8x"),
        ({"command": "set-limit", "target": "x", "core": "101"}, "101"),
        ({"command": "set-limit"}, "target"),
        ({"command": "explain", "target": "nobody"}, "nobody"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, request_: object, says: str) -> None:
    async def scenario(_: SchedulerServer, ask: Ask) -> None:
        answer = await ask(request_)
        assert answer["ok"] is False
        assert says in str(answer["error"])
        assert (await ask({"command": "status"}))["ok"], "and the next one is served"

    with_socket(tmp_path, scenario)


def test_a_stranger_may_ask_but_not_order(tmp_path: Path) -> None:
    needs_root()
    tmp_path.chmod(0o711)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)

    async def scenario(server: SchedulerServer, ask: Ask) -> None:
        path = control_path(server.settings.socket_path)
        refused, told = [await asyncio.to_thread(as_nobody, path, name) for name in ("off", "status")]
        assert refused["ok"] is False
        assert "admin_group" in str(refused["error"])
        assert server.policy.on is True
        assert server.policy.refusals["control_not_admin"] == 1
        assert told["ok"] is True

    with_socket(tmp_path, scenario)


def as_nobody(path: str, command: str) -> dict[str, object]:
    """Asks as another user: from a child that has given up our rights."""
    ours, its = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_ask_as_nobody, args=(path, command, its))
    child.start()
    assert ours.poll(20), "no answer"
    answer: dict[str, object] = json.loads(ours.recv_bytes())
    child.join()
    return answer


def _ask_as_nobody(path: str, command: str, answers: Connection) -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
        peer.sendall(json.dumps({"command": command}).encode() + b"\n")
        answers.send_bytes(peer.makefile("rb").readline())


def test_silent_and_endless_peers_harm_nobody(tmp_path: Path) -> None:
    async def scenario(server: SchedulerServer, ask: Ask) -> None:
        path = control_path(server.settings.socket_path)
        silent = [socket.socket(socket.AF_UNIX) for _ in range(20)]
        for peer in silent:
            peer.connect(path)
        endless = socket.socket(socket.AF_UNIX)
        endless.connect(path)
        endless.send(b"x" * 100_000)
        assert (await ask({"command": "status"}))["ok"]
        for peer in (*silent, endless):
            peer.close()
        assert (await ask({"command": "status"}))["ok"]

    with_socket(tmp_path, scenario)


def test_the_socket_goes_with_the_scheduler(tmp_path: Path) -> None:
    async def scenario(_: SchedulerServer, ask: Ask) -> None:
        assert {path.name for path in tmp_path.iterdir()} == {"scheduler.sock", "control.sock"}  # noqa: ASYNC240

    with_socket(tmp_path, scenario)
    assert list(tmp_path.iterdir()) == []
