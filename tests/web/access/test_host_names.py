"""The Host header: names of this machine are served, foreign names are refused (DNS rebinding)."""

import logging
import socket
from pathlib import Path

import pytest

from fakes.faces import FakeFaces
from gpucommons.base.address import parse_host_names
from gpucommons.faces.web.access.control import HostNames
from gpucommons.faces.web.http.server import WebServer
from peers import Peer, port_of, run, serving

SERVED = [
    "localhost",
    "LocalHost.:9460",
    "page.localhost",
    "127.0.0.1:9460",
    "192.0.2.7",
    "[::1]",
    "[2001:db8::1]:9460",
    socket.gethostname(),
    f"{socket.gethostname()}:9460",
    "host.docker.internal:9101",
    "gpu1.example.org:9460",
]
FOREIGN = [
    "attacker.example",
    "attacker.example:9460",
    "localhost.attacker.example",
    "127.0.0.1.attacker.example",
    f"{socket.gethostname()}.attacker.example",
    "gpu1.example.org.attacker.example",
    "notlocalhost",
    "[::1",
    "localhost@attacker.example",
    "localhost:80:attacker.example",
    "*",
]


@pytest.mark.parametrize("header", SERVED)
def test_names_of_this_machine_are_served(header: str) -> None:
    assert HostNames(["gpu1.example.org"]).refusal(header) is None


@pytest.mark.parametrize("header", FOREIGN)
def test_foreign_names_are_refused(header: str) -> None:
    names = HostNames(["gpu1.example.org"])
    for _ in range(2):
        refusal = names.refusal(header)
        assert refusal is not None
        assert refusal.status == 421
        assert b"[web] hosts" in refusal.body


def test_a_star_serves_every_name() -> None:
    assert HostNames(["*"]).refusal("attacker.example") is None


def test_the_setting() -> None:
    assert parse_host_names("gpu1.example.org, gpu1,*") == ("gpu1.example.org", "gpu1", "*")
    for wrong in ("gpu1:9460", "http://gpu1", "a b", "*.example.org"):
        with pytest.raises(ValueError, match="invalid host name"):
            parse_host_names(wrong)


def test_the_main_listener_refuses_foreign_names_and_logs_each_once(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with serving(listeners=[("127.0.0.1:0", None)]) as server:
            for path in ("/metrics", "/metrics/node", "/", "/healthz"):
                async with await Peer.connect(port_of(server)) as peer:
                    peer.request(path, host="attacker.example")
                    answer = await peer.answer()
                    assert (answer.status, b"attacker.example" in answer.body) == (421, True)
                    assert (await peer.ask(path)).status == 200, "the connection stays usable"
            assert server.stats().requests["metrics", 421] == 1

    run(check())
    lines = [record.getMessage() for record in caplog.records if "421" in record.getMessage()]
    assert len(lines) == 1
    assert "'attacker.example'" in lines[0]
    assert "[web] hosts" in lines[0]


def test_a_drop_in_listener_serves_every_name() -> None:
    async def check() -> None:
        async with (
            serving(listeners=[("127.0.0.1:0", "node")]) as server,
            await Peer.connect(port_of(server)) as peer,
        ):
            for name in ("node-exporter:9100", "dcgm-exporter.gpu-operator.svc:9400", "attacker.example"):
                for path in ("/metrics", "/healthz", "/"):
                    peer.request(path, host=name)
                    assert (await peer.answer()).status == 200

    run(check())


def test_a_refused_name_is_logged_once_with_the_setting_that_allows_it(caplog: pytest.LogCaptureFixture) -> None:
    names = HostNames()
    for header in ("dcgm-exporter:9400", "DCGM-exporter.", "dcgm-exporter:9460", "localhost", "\x1b[2J\n.example"):
        names.refusal(header)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(lines) == 2
    assert "'dcgm-exporter'" in lines[0]
    assert "421" in lines[0]
    assert "[web] hosts" in lines[0]
    assert lines[1].isprintable()


def test_the_number_and_the_length_of_the_logged_names_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    names = HostNames()
    for number in range(1000):
        assert names.refusal(f"{number}{'x' * 8000}.example") is not None
    assert len(caplog.records) == 64
    assert "without a log line" in caplog.records[-1].getMessage()
    assert max(len(record.getMessage()) for record in caplog.records) < 500


def test_configured_names_are_served_by_the_server() -> None:
    async def check() -> None:
        server = WebServer(FakeFaces(), [("127.0.0.1:0", None)], hosts=["gpu1.example.org"])
        await server.start()
        try:
            async with await Peer.connect(server.addresses[0].port) as peer:
                peer.request("/metrics", host="GPU1.example.org:9460")
                assert (await peer.answer()).status == 200
        finally:
            await server.stop()

    run(check())


def test_a_unix_socket_serves_every_name(tmp_path: Path) -> None:
    async def check() -> None:
        path = tmp_path / "api.sock"
        async with serving(listeners=[(f"unix:{path}", None)]):
            raw = socket.socket(socket.AF_UNIX)
            raw.connect(str(path))
            raw.setblocking(False)
            async with await Peer.over(raw) as peer:
                peer.request("/healthz", host="attacker.example")
                assert (await peer.answer()).status == 200

    run(check())
