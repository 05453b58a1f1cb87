"""TLS, client certificates, passwords and rate limits on real connections, and changes at run time."""

import asyncio
import base64
import os
import socket
import ssl
from pathlib import Path

import bcrypt
import pytest

from certificates import Authority
from fakes.faces import FakeFaces
from gpucommons.faces.web.access.web_config import WebConfigError
from gpucommons.faces.web.http.connections import ConnectionLimits
from gpucommons.faces.web.http.server import WebServer
from peers import Peer, fetch, port_of, run, serving, until

TLS = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
CLIENTS = TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: test-authority.pem\n"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority(tmp_path)
    authority.issue("server", "localhost", "127.0.0.1")
    return authority


def written(folder: Path, text: str) -> Path:
    """Replaces the file in one step."""
    fresh = folder / "web.yml.new"
    fresh.write_text(text)
    os.replace(fresh, folder / "web.yml")
    return folder / "web.yml"


def users(**passwords: str) -> str:
    lines = [
        f"  {name}: {bcrypt.hashpw(password.encode(), bcrypt.gensalt(rounds=4)).decode()}"
        for name, password in passwords.items()
    ]
    return "\n".join(["basic_auth_users:", *lines, ""])


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


async def served_serial(port: int, client: ssl.SSLContext) -> str:
    async with await Peer.connect(port, tls=client) as peer:
        assert (await peer.ask("/healthz")).status == 200
        serial: str = peer.writer.get_extra_info("peercert")["serialNumber"]
        return serial


def test_https_serves_complete_bodies_and_its_url_is_https(tmp_path: Path, authority: Authority) -> None:
    async def check() -> None:
        faces = FakeFaces(padding=2_000_000)
        async with serving(faces, web_config=written(tmp_path, TLS)) as server:
            assert server.addresses[0].url.startswith("https://127.0.0.1:")
            answer = await fetch(port_of(server), tls=authority.client())
            assert answer.body == faces.metrics(None, False, False)[0]
            assert server.stats().web_config_reload_ok is True

    run(check())


def test_a_failed_handshake_is_counted_and_does_not_affect_others(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        async with serving(web_config=written(tmp_path, TLS)) as server:
            async with await Peer.connect(port_of(server)) as plain:
                plain.request("/metrics")
                assert b"HTTP/1.1 200" not in await plain.ended()
            with pytest.raises(ssl.SSLError):
                await fetch(port_of(server), tls=ssl.create_default_context())
            await until(lambda: server.stats().connections_refused.get("tls_handshake") == 2)
            assert (await fetch(port_of(server), tls=authority.client())).status == 200
            await until(lambda: server.stats().connections_open == 0)

    run(check())
    assert caplog.records == []


def test_a_peer_without_a_handshake_is_closed_and_counts_as_a_connection(tmp_path: Path, authority: Authority) -> None:
    async def check() -> None:
        bounds = ConnectionLimits(connections=3, header_s=0.5, sweep_s=0.05)
        async with serving(web_config=written(tmp_path, TLS), limits=bounds) as server:
            silent = [await Peer.connect(port_of(server)) for _ in range(3)]
            await until(lambda: server.stats().connections_open == 3)
            assert (await fetch(port_of(server), tls=authority.client())).status == 200, (
                "the oldest connection was closed"
            )
            assert [await peer.ended() for peer in silent] == [b""] * 3
            await until(lambda: server.stats().connections_open == 0)
            refused = server.stats().connections_refused
            assert refused["silent"] >= 1
            assert sum(refused.values()) == 3
            for peer in silent:
                peer.writer.close()

    run(check())


def test_a_slow_reader_over_tls_is_closed(tmp_path: Path, authority: Authority) -> None:
    async def check() -> None:
        bounds = ConnectionLimits(request_s=0.3, sweep_s=0.05)
        async with (
            serving(FakeFaces(padding=6_000_000), web_config=written(tmp_path, TLS), limits=bounds) as server,
            await Peer.connect(port_of(server), tls=authority.client(), receive_buffer=2048) as peer,
        ):
            peer.request("/metrics")
            await until(lambda: server.stats().connections_refused.get("slow_reader") == 1)
            await until(lambda: server.stats().connections_open == 0)

    run(check())


def test_a_peer_that_disconnects_during_its_request_is_not_counted_as_a_refusal(
    tmp_path: Path, authority: Authority
) -> None:
    async def check() -> None:
        async with serving(web_config=written(tmp_path, TLS)) as server:
            async with await Peer.connect(port_of(server), tls=authority.client()) as peer:
                peer.send(b"GET /metrics HTT")
                await until(lambda: server.stats().connections_open == 1)
            await until(lambda: server.stats().connections_open == 0)
            assert server.stats().connections_refused == {}

    run(check())


def test_stopping_over_tls_finishes_the_response_and_closes_the_rest(tmp_path: Path, authority: Authority) -> None:
    async def check() -> None:
        faces = FakeFaces(padding=4_000_000)
        server = WebServer(
            faces, [("127.0.0.1:0", None)], web_config=written(tmp_path, TLS), limits=ConnectionLimits(stop_s=10.0)
        )
        await server.start()
        client = authority.client()
        async with (
            await Peer.connect(port_of(server), tls=client, receive_buffer=4096) as busy,
            await Peer.connect(port_of(server), tls=client) as idle,
        ):
            await idle.ask("/healthz")
            busy.request("/metrics")
            await until(lambda: ("metrics", 200) in server.stats().requests)
            stopping = asyncio.create_task(server.stop())
            assert (await busy.answer()).body == faces.metrics(None, False, False)[0]
            assert await idle.ended() == b""
            await stopping

    run(check())


def test_client_certificates(tmp_path: Path, authority: Authority) -> None:
    stranger = Authority(tmp_path, "another authority")

    async def check() -> None:
        async with serving(web_config=written(tmp_path, CLIENTS)) as server:
            good = authority.client(authority.issue("prometheus", "prometheus.example"))
            assert (await fetch(port_of(server), tls=good)).status == 200
            assert not await served(port_of(server), authority.client()), "no certificate"
            foreign = authority.client(stranger.issue("prometheus2", "prometheus.example"))
            assert not await served(port_of(server), foreign), "certificate of another authority"
            await until(lambda: server.stats().connections_refused.get("tls_handshake") == 2)

    run(check())


async def served(port: int, client: ssl.SSLContext) -> bool:
    try:
        return (await fetch(port, tls=client)).status == 200
    except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
        return False


def test_client_certificates_only_if_given(tmp_path: Path, authority: Authority) -> None:
    stranger = Authority(tmp_path, "another authority")

    async def check() -> None:
        config = CLIENTS.replace("RequireAndVerifyClientCert", "VerifyClientCertIfGiven")
        async with serving(web_config=written(tmp_path, config)) as server:
            assert await served(port_of(server), authority.client())
            assert not await served(port_of(server), authority.client(stranger.issue("x", "x.example")))

    run(check())


@pytest.mark.parametrize(
    ("san", "allowed"),
    [
        ("prometheus.example", True),
        ("2001:db8::1", True),
        ("10.0.0.1", True),
        ("ops@example.org", True),
        ("spiffe://cluster/prometheus", True),
        ("grafana.example", False),
        ("10.0.0.2", False),
        ("", False),
    ],
)
def test_allowed_names_of_client_certificates(tmp_path: Path, authority: Authority, san: str, allowed: bool) -> None:
    sans = '["prometheus.example", "2001:DB8::1", "10.0.0.1", "ops@example.org", "spiffe://cluster/prometheus"]'

    async def check() -> None:
        async with serving(web_config=written(tmp_path, f"{CLIENTS}  client_allowed_sans: {sans}\n")) as server:
            pair = authority.issue("client", *filter(None, [san]))
            assert await served(port_of(server), authority.client(pair)) is allowed
            expected = {} if allowed else {"client_certificate": 1}
            assert server.stats().connections_refused == expected

    run(check())


def test_a_changed_certificate_is_served_without_losing_a_connection(tmp_path: Path, authority: Authority) -> None:
    async def check() -> None:
        client = authority.client()
        async with serving(web_config=written(tmp_path, TLS)) as server:
            port = port_of(server)
            before = await served_serial(port, client)
            async with await Peer.connect(port, tls=client) as standing:
                assert (await standing.ask("/healthz")).status == 200
                authority.issue("server", "localhost", "127.0.0.1")
                failures: list[Exception] = []
                after = before
                while after == before:
                    try:
                        after = await served_serial(port, client)
                    except OSError as error:
                        failures.append(error)
                assert failures == []
                answer = await standing.ask("/healthz")
                assert (answer.status, answer.headers["connection"]) == (200, "close"), "connect again"

    run(check())


def test_an_invalid_change_keeps_the_old_configuration_and_is_reported(tmp_path: Path, authority: Authority) -> None:
    async def check() -> None:
        async with serving(web_config=written(tmp_path, TLS)) as server:
            written(tmp_path, TLS + "  nonsense: 1\n")
            await until(lambda: server.stats().web_config_reload_ok is False)
            assert (await fetch(port_of(server), tls=authority.client())).status == 200
            written(tmp_path, TLS)
            await until(lambda: server.stats().web_config_reload_ok is True)

    run(check())


def test_an_invalid_file_at_the_start_opens_no_listener(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = WebServer(FakeFaces(), [(f"127.0.0.1:{port}", None)], web_config=written(tmp_path, TLS))
    with pytest.raises(WebConfigError, match="cert_file"):
        run(server.start())
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/", "/nothing"])
def test_every_path_requires_the_password(tmp_path: Path, path: str) -> None:
    async def check() -> None:
        async with serving(web_config=written(tmp_path, users(alice="wonderland"))) as server:
            port = port_of(server)
            asked = await fetch(port, path)
            assert asked.status == 401
            assert asked.headers["www-authenticate"].startswith("Basic ")
            wrong = [basic("alice", "Wonderland"), basic("bob", "wonderland"), {"Authorization": "Bearer x"}]
            assert [(await fetch(port, path, headers=header)).status for header in wrong] == [401] * 3
            right = await fetch(port, path, headers=basic("alice", "wonderland"))
            assert right.status == (404 if path == "/nothing" else 200)
            assert (await fetch(port, path, "HEAD", headers=basic("alice", "wonderland"))).status == right.status

    run(check())


def test_changed_users_are_in_force_at_once_on_open_connections(tmp_path: Path) -> None:
    async def check() -> None:
        config = written(tmp_path, users(alice="one", bob="two"))
        async with serving(web_config=config) as server, await Peer.connect(port_of(server)) as peer:
            assert (await peer.ask("/metrics", headers=basic("alice", "one"))).status == 200
            assert (await peer.ask("/metrics", headers=basic("bob", "two"))).status == 200
            written(tmp_path, users(alice="new"))
            while (await peer.ask("/metrics", headers=basic("alice", "one"))).status == 200:
                pass
            assert (await peer.ask("/metrics", headers=basic("alice", "new"))).status == 200
            assert (await peer.ask("/metrics", headers=basic("bob", "two"))).status == 401

    run(check())


def test_the_rate_limit_responds_with_429(tmp_path: Path) -> None:
    async def check() -> None:
        config = written(tmp_path, "rate_limit: {interval: 1h, burst: 3}\n")
        async with serving(web_config=config) as server, await Peer.connect(port_of(server)) as peer:
            answers = [await peer.ask("/metrics") for _ in range(5)]
            assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]
            assert int(answers[-1].headers["retry-after"]) > 0
            assert server.stats().requests == {("metrics", 200): 3, ("metrics", 429): 2}

    run(check())


def test_headers_of_the_file_are_in_every_response(tmp_path: Path) -> None:
    async def check() -> None:
        text = "http_server_config: {headers: {Strict-Transport-Security: max-age=9, X-Frame-Options: SameOrigin}}\n"
        async with serving(web_config=written(tmp_path, text)) as server:
            for path in ("/metrics", "/", "/nothing"):
                headers = (await fetch(port_of(server), path)).headers
                assert headers["strict-transport-security"] == "max-age=9"
                assert headers["x-frame-options"] == "SameOrigin"

    run(check())


def test_tls_versions_are_enforced(tmp_path: Path, authority: Authority) -> None:
    async def check() -> None:
        async with serving(web_config=written(tmp_path, TLS + "  min_version: TLS13\n")) as server:
            old = authority.client()
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            assert not await served(port_of(server), old)
            assert await served(port_of(server), authority.client())

    run(check())


def test_tls_can_be_switched_on_and_off_at_run_time(tmp_path: Path, authority: Authority) -> None:
    async def check() -> None:
        async with serving(web_config=written(tmp_path, "rate_limit: {interval: 0s}\n")) as server:
            assert (await fetch(port_of(server))).status == 200
            written(tmp_path, TLS)
            while not await served(port_of(server), authority.client()):
                pass
            written(tmp_path, "{}")
            while await served(port_of(server), authority.client()):
                pass
            assert (await fetch(port_of(server))).status == 200

    run(check())
