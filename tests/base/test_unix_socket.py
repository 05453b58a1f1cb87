"""A Unix socket: the kernel identifies the peer, and each user sees their own rows."""

import asyncio
import json
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo_node import DemoNode
from fakes.faces import FakeFaces
from gpucommons.base.address import AddressError, UnixAddress, parse_address
from gpucommons.base.unix_listener import ListenError, listen
from gpucommons.faces.web.http.server import WebServer
from open_folder import open_folder
from peers import Peer, run
from played import Played
from running import command_process

ASK = """
import os, socket, sys
os.setgroups([]), os.setgid(int(sys.argv[3])), os.setuid(int(sys.argv[3]))
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
peer.sendall(f"GET {sys.argv[2]} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n".encode())
while piece := peer.recv(65536):
    sys.stdout.buffer.write(piece)
"""


@pytest.fixture
def path() -> Iterator[str]:
    """In a directory that other users can enter, unlike the usual temporary directory."""
    with open_folder() as folder:
        yield str(folder / "run" / "api.sock")


async def get_as(uid: int, path: str, what: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ASK, path, what, str(uid), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    head, _, body = out.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body.decode()


def site(path: str, show_owners: str = "auto") -> WebServer:
    played = Played(DemoNode(processes_a_gpu=4)).play(2)
    return WebServer(
        FakeFaces(),
        [("127.0.0.1:0", None), (f"unix:{path}", None)],
        api=played.api,
        show_owners=show_owners,
    )


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")


@needs_root
def test_a_user_sees_the_programs_of_all_but_only_own_command_lines(path: str) -> None:
    async def scenario() -> None:
        server = site(path)
        await server.start()
        try:
            root = json.loads((await get_as(0, path, "/api/v1/who"))[1])["who"]
            assert len({row["uid"] for row in root["processes"].values()}) > 3
            assert all("--config" in row["command"] for row in root["processes"].values())
            for uid in (1001, 4711):
                status, body = await get_as(uid, path, "/api/v1/who")
                assert status == 200
                who = json.loads(body)["who"]
                assert set(who["owners"]) == set(root["owners"])
                assert who["processes"].keys() == root["processes"].keys()
                for key, row in who["processes"].items():
                    full = root["processes"][key]
                    assert (row["uid"], row["name"], row["account"]) == (full["uid"], full["name"], full["account"])
                    assert row["command"] == (full["command"] if row["uid"] == uid else None)
                assert (await get_as(uid, path, "/metrics"))[0] == 200
        finally:
            await server.stop()

    run(scenario())


@needs_root
def test_with_own_a_user_sees_own_rows_and_root_sees_all(path: str) -> None:
    async def scenario() -> None:
        server = site(path, "own")
        await server.start()
        try:
            assert [bound.url for bound in server.addresses][1] == f"unix:{path}"
            status, body = await get_as(1001, path, "/api/v1/who")
            assert status == 200
            who = json.loads(body)["who"]
            assert {row["uid"] for row in who["processes"].values()} == {1001}
            assert set(who["owners"]) <= {"user/1001", "user/others"}
            stranger = json.loads((await get_as(4711, path, "/api/v1/who"))[1])["who"]
            assert stranger["processes"] == {}
            assert set(stranger["owners"]) == {"user/others"}
            root = json.loads((await get_as(0, path, "/api/v1/who"))[1])["who"]
            assert len({row["uid"] for row in root["processes"].values()}) > 3
            assert (await get_as(1001, path, "/metrics"))[0] == 403, "metrics name every owner"
            assert (await get_as(1001, path, "/metrics/node"))[0] == 403
            assert (await get_as(0, path, "/metrics"))[0] == 200
            assert (await get_as(1001, path, "/healthz"))[0] == 200
        finally:
            await server.stop()

    run(scenario())


@needs_root
def test_show_owners_all_shows_all(path: str) -> None:
    async def scenario() -> None:
        server = site(path, "all")
        await server.start()
        try:
            who = json.loads((await get_as(1001, path, "/api/v1/who"))[1])["who"]
            assert len({row["uid"] for row in who["processes"].values()}) > 3
            assert (await get_as(1001, path, "/metrics"))[0] == 200
        finally:
            await server.stop()

    run(scenario())


def test_show_owners_own_hides_every_owner_from_an_unidentified_peer() -> None:
    async def scenario() -> None:
        played = Played().play(2)
        server = WebServer(FakeFaces(), [("127.0.0.1:0", None)], api=played.api, show_owners="own")
        await server.start()
        try:
            async with await Peer.connect(server.addresses[0].port) as peer:
                answer = await peer.ask("/api/v1/who")
                assert json.loads(answer.body)["who"]["processes"] == {}
                assert (await peer.ask("/metrics")).status == 403
        finally:
            await server.stop()

    run(scenario())


def test_every_user_can_connect_and_stopping_removes_the_file(path: str) -> None:
    async def scenario() -> None:
        server = site(path)
        await server.start()
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o666
        await server.stop()
        assert not Path(path).exists()  # noqa: ASYNC240

    run(scenario())


def test_a_stale_socket_file_is_replaced(path: str) -> None:
    Path(path).parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with listen(path), socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)


def test_a_socket_that_is_served_is_not_replaced(path: str) -> None:
    with listen(path):
        with pytest.raises(ListenError, match=rf"another process \(pid {os.getpid()}\) listens there"):
            listen(path)
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(path)


def test_a_file_that_is_not_a_socket_is_not_replaced(path: str) -> None:
    Path(path).parent.mkdir()
    Path(path).write_text("precious")

    async def scenario() -> None:
        with pytest.raises(ListenError) as caught:
            await site(path).start()
        assert "not a socket" in str(caught.value)
        assert "\n" not in str(caught.value)

    run(scenario())
    assert Path(path).read_text() == "precious"


def test_closing_keeps_a_file_that_another_process_created(path: str) -> None:
    async def scenario() -> None:
        first = site(path)
        await first.start()
        os.unlink(path)
        with listen(path):
            await first.stop()
            assert Path(path).exists()  # noqa: ASYNC240

    run(scenario())


@pytest.mark.parametrize("text", ["unix:", "unix:relative.sock", "unix:/" + "x" * 200, "unix:/a\0b"])
def test_a_bad_path_is_one_line(text: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_address(text)
    assert "\n" not in str(caught.value)


def test_a_good_one_is_read_back_as_written() -> None:
    assert parse_address("unix:/run/gpucommons/api.sock") == UnixAddress("/run/gpucommons/api.sock")
    assert str(parse_address("unix:/a b/c")) == "unix:/a b/c"


def test_a_wrong_one_on_the_command_line_is_one_line() -> None:
    done = command_process("up", "--listen", "unix:nowhere")
    assert done.returncode == 2
    assert "unix:/" in done.stderr
