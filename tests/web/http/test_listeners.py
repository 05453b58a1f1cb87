"""Listening: a failure is one line that names the cause and the setting to change."""

import errno
import os
import socket
from pathlib import Path

import pytest

from fakes.faces import FakeFaces
from gpucommons.base.address import Address
from gpucommons.base.processes import port_owner
from gpucommons.base.unix_listener import ListenError
from gpucommons.faces.web.http.connections import ConnectionGuard, ConnectionLimits, Connections, HttpProtocol
from gpucommons.faces.web.http.listeners import Listener, open_sockets
from gpucommons.faces.web.http.server import WebServer
from peers import Peer, fetch, run, serving

PASSWORD_HASH = "$2b$04$" + "a" * 53
linux_only = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's /proc")


def refused(address: Address) -> str:
    with pytest.raises(ListenError) as caught:
        run(open_sockets(address, "--listen"))
    line = str(caught.value)
    assert "\n" not in line
    assert "--listen" in line
    assert str(address) in line
    return line


@linux_only
def test_a_port_in_use_names_the_port_and_its_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        line = refused(Address("127.0.0.1", port))
    assert f"port {port} is in use by " in line
    assert f"(pid {os.getpid()})" in line


def test_hosts_that_cannot_be_listened_on() -> None:
    assert "no address 192.0.2.1" in refused(Address("192.0.2.1", 0))
    assert "does not resolve" in refused(Address("no-such-host.invalid", 0))
    assert "does not resolve" in refused(Address("x" * 300, 0))


def test_no_listener_stays_open_when_one_of_several_fails() -> None:
    async def check() -> None:
        with socket.create_server(("127.0.0.1", 0)) as holder, socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free = probe.getsockname()[1]
            probe.close()
            taken = holder.getsockname()[1]
            with pytest.raises(ListenError, match=r"listeners\.node"):
                async with serving(listeners=[(f"127.0.0.1:{free}", None), (f"127.0.0.1:{taken}", "node")]):
                    pass
            with socket.create_server(("127.0.0.1", free)):
                pass

    run(check())


def test_the_server_restarts_on_the_same_port_at_once() -> None:
    async def check() -> None:
        server = WebServer(FakeFaces(), [("127.0.0.1:0", None)])
        await server.start()
        port = server.addresses[0].port
        async with await Peer.connect(port) as peer:
            assert (await peer.ask("/healthz")).status == 200
            # The server closes first, so that its end of the connection lingers in the kernel.
            await server.stop()
            assert await peer.ended() == b""
        async with serving(listeners=[(f"127.0.0.1:{port}", None)]):
            assert (await fetch(port)).status == 200

    run(check())


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


@needs_ipv6
def test_ipv6() -> None:
    async def check() -> None:
        async with serving(listeners=[("[::1]:0", None)]) as server:
            assert (await fetch(server.addresses[0].port, host="::1")).status == 200
            assert server.addresses[0].url == f"http://[::1]:{server.addresses[0].port}"

    run(check())


@needs_ipv6
def test_an_empty_host_is_every_interface_and_localhost_is_both_families() -> None:
    async def check() -> None:
        for listen in (":0", "localhost:0"):
            async with serving(listeners=[(listen, None)]) as server:
                assert (await fetch(server.addresses[0].port, host="127.0.0.1")).status == 200
                if listen == ":0":
                    assert (await fetch(server.addresses[0].port, host="::1")).status == 200

    run(check())


@needs_ipv6
def test_a_name_whose_second_address_is_in_use_opens_none(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
    ]
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as holder:
        port = holder.getsockname()[1]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
        assert "in use" in refused(Address("localhost", port))
        with socket.create_server(("127.0.0.1", port)):
            pass


class ExhaustedOnce(socket.socket):
    """A listening socket that runs out of descriptors the first time."""

    exhausted = False

    def accept(self) -> tuple[socket.socket, object]:
        if not self.exhausted:
            self.exhausted = True
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_without_free_descriptors_accepting_pauses_and_resumes(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        listening = ExhaustedOnce()
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        connections = Connections(ConnectionLimits())
        listener = Listener(listening, connections, echo_once, lambda: None)
        try:
            async with await Peer.connect(listening.getsockname()[1]) as peer:
                peer.send(b"hello")
                assert await peer.ended() == b"hello"
        finally:
            listener.close()
        assert connections.refused["descriptors"] == 1
        assert "raise the limit of open files" in caplog.text

    run(check())


def echo_once(guard: ConnectionGuard) -> HttpProtocol:
    return EchoOnce()


class EchoOnce:
    def connection_made(self, transport: object) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]
        self.transport.close()  # type: ignore[attr-defined]

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self, exc: BaseException | None) -> None: ...
    def close(self) -> None: ...


def test_an_unreadable_owner_of_a_port_is_unknown(tmp_path: Path) -> None:
    assert port_owner(1, tmp_path / "no-proc") is None
    table = tmp_path / "net"
    table.mkdir()
    (table / "tcp").write_text("header\n   0: garbage\n\n  1: 0100007F:24F4 0:0 0A 0 0 0 0 0 4711 1\n")
    (table / "tcp6").write_bytes(b"")
    assert port_owner(0x24F4, tmp_path) is None, "no process is visible"
    descriptors = tmp_path / "99" / "fd"
    descriptors.mkdir(parents=True)
    (descriptors / "3").symlink_to("socket:[4711]")
    assert port_owner(0x24F4, tmp_path) == "a process (pid 99)"
    (tmp_path / "99" / "comm").write_text("node_exporter\n")
    assert port_owner(0x24F4, tmp_path) == "node_exporter (pid 99)"
    assert port_owner(0x24F5, tmp_path) is None


@pytest.mark.parametrize(
    ("listener", "web_config", "warnings"),
    [
        (("0.0.0.0:0", None), None, 1),
        (("0.0.0.0:0", None), "{}", 1),
        (("0.0.0.0:0", None), f"basic_auth_users: {{a: {PASSWORD_HASH}}}", 0),
        (("127.0.0.1:0", None), None, 0),
        (("0.0.0.0:0", "node"), None, 0),
    ],
    ids=["open", "empty configuration", "password", "loopback", "drop-in"],
)
def test_a_main_listener_that_is_open_to_the_network_logs_one_warning(
    listener: tuple[str, str | None],
    web_config: str | None,
    warnings: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "web.yml"
    path.write_text(web_config or "")

    async def check() -> None:
        async with serving(listeners=[listener], web_config=path if web_config else None):
            pass

    run(check())
    found = [record for record in caplog.records if "without authentication" in record.getMessage()]
    assert len(found) == warnings
