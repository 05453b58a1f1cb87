"""HTTP over real sockets: methods, versions, pipelining, malformed requests, counts."""

import gzip
import logging

import pytest

from fakes.faces import OPENMETRICS, TEXT, Broken, FakeFaces, snapshot_now
from gpucommons.faces.web.http.connections import ConnectionLimits
from peers import Peer, fetch, port_of, run, serving


def test_a_scrape_with_the_headers_of_prometheus() -> None:
    async def check() -> None:
        async with serving() as server:
            answer = await fetch(
                port_of(server), headers={"Accept": "application/openmetrics-text", "Accept-Encoding": "gzip"}
            )
            assert (answer.status, answer.headers["content-type"]) == (200, OPENMETRICS)
            assert answer.headers["content-encoding"] == "gzip"
            assert gzip.decompress(answer.body).endswith(b"# EOF\n")
            plain = await fetch(port_of(server))
            assert (plain.headers["content-type"], plain.body) == (TEXT, b"gpucommons_up 1\nnode_up 1\n")

    run(check())


def test_every_response_has_the_security_headers_and_hides_the_server_library() -> None:
    async def check() -> None:
        async with serving() as server:
            for path in ("/", "/metrics", "/healthz", "/readyz", "/nothing"):
                headers = (await fetch(port_of(server), path)).headers
                assert headers["x-content-type-options"] == "nosniff"
                assert headers["content-security-policy"].startswith("default-src 'none'")
                assert headers["x-frame-options"] == "DENY"
                assert headers["server"] == "gpucommons"

    run(check())


@pytest.mark.parametrize("dialect", [None, "node"])
def test_metrics_are_open_on_a_listener_for_every_interface(dialect: str | None) -> None:
    async def check() -> None:
        async with serving(listeners=[("0.0.0.0:0", dialect)]) as server:
            assert (await fetch(port_of(server))).status == 200

    run(check())


def test_a_simulation_is_marked_in_every_response() -> None:
    async def check() -> None:
        async with serving(FakeFaces(snapshot_now(scenario="lab"))) as server:
            for path in ("/", "/metrics", "/healthz", "/nothing"):
                assert (await fetch(port_of(server), path)).headers["x-gpucommons-simulated"] == "lab"

    run(check())


@pytest.mark.parametrize("padding", [0, 1_000_000])
def test_head_has_the_headers_of_get_and_no_body(padding: int) -> None:
    async def check() -> None:
        async with serving(FakeFaces(padding=padding)) as server, await Peer.connect(port_of(server)) as peer:
            for path in ("/metrics", "/metrics/node", "/healthz", "/readyz", "/", "/nothing"):
                head = await peer.ask(path, "HEAD")
                full = await peer.ask(path)
                assert head.status == full.status
                assert head.headers["content-length"] == str(len(full.body))
                assert head.headers["content-type"] == full.headers["content-type"]

    run(check())


@pytest.mark.parametrize("padding", [0, 65_000, 140_000, 5_000_000])
def test_bodies_of_any_size_arrive_complete_and_the_connection_stays_open(padding: int) -> None:
    async def check() -> None:
        faces = FakeFaces(padding=padding)
        async with serving(faces) as server, await Peer.connect(port_of(server)) as peer:
            for _ in range(3):
                assert (await peer.ask("/metrics")).body == faces.metrics(None, False, False)[0]

    run(check())


def test_405_404_and_a_request_with_a_body() -> None:
    async def check() -> None:
        async with serving() as server:
            port = port_of(server)
            refused = await fetch(port, method="DELETE")
            assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
            assert (await fetch(port, "/metrics/nothing")).status == 404
            assert (await fetch(port, "/metrics/../healthz")).status in (200, 404)
            assert (await fetch(port, "/metrics?x=1")).status == 200
            async with await Peer.connect(port) as peer:
                peer.request("/metrics", "POST", headers={"Content-Length": "300000"})
                peer.send(b"x" * 300_000)
                answer = await peer.answer()
                assert (answer.status, answer.headers["connection"]) == (405, "close")
                assert await peer.ended() == b""

    run(check())


def test_http_1_0_is_closed_unless_keep_alive_is_requested() -> None:
    async def check() -> None:
        async with serving() as server:
            async with await Peer.connect(port_of(server)) as peer:
                answer = await peer.ask("/healthz", version="1.0")
                assert (answer.status, answer.body, answer.version) == (200, b"OK", "HTTP/1.0")
                assert await peer.ended() == b""
            async with await Peer.connect(port_of(server)) as peer:
                for _ in range(2):
                    answer = await peer.ask("/healthz", version="1.0", headers={"Connection": "keep-alive"})
                    assert answer.headers["connection"] == "keep-alive"

    run(check())


def test_a_peer_that_half_closes_after_its_request_gets_its_response() -> None:
    async def check() -> None:
        faces = FakeFaces(padding=3_000_000)
        async with serving(faces) as server, await Peer.connect(port_of(server)) as peer:
            peer.request("/metrics")
            peer.writer.write_eof()
            assert (await peer.answer()).body == faces.metrics(None, False, False)[0]
            assert await peer.ended() == b""

    run(check())


def test_pipelined_requests_are_answered_in_order() -> None:
    async def check() -> None:
        async with serving() as server, await Peer.connect(port_of(server)) as peer:
            paths = ["/metrics/node", "/healthz", "/nothing", "/metrics/gpucommons"] * 20
            peer.send(b"".join(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in paths))
            answers = [await peer.answer() for _ in paths]
            assert [answer.body for answer in answers[:2]] == [b"node_up 1\n", b"OK"]
            assert [answer.status for answer in answers] == [200, 200, 404, 200] * 20

    run(check())


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-%d: many\r\n" * 5000 + b"\r\n",
        b"GET / HTTP/1.1\r\nno colon here\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is TLS\r\n\r\n",
        b"\x00\xff\xfe\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["line", "field", "fields", "colon", "tls", "binary", "version", "smuggling"],
)
def test_a_malformed_or_too_long_request_gets_400_and_no_traceback(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        async with serving() as server:
            async with await Peer.connect(port_of(server)) as peer:
                peer.send(request_bytes)
                answer = await peer.answer()
                assert answer.status in (400, 431)
                assert b"Traceback" not in answer.body
                await peer.ended()
            assert (await fetch(port_of(server))).status == 200
            assert server.stats().connections_refused == {"malformed": 1}

    with caplog.at_level(logging.INFO):
        run(check())
    assert caplog.records == []


@pytest.mark.parametrize(
    "target",
    [
        *("*", "//", "///metrics", "/%00", "/%zz", "/%ff%fe", "/\xff\xfe", "/" + "%41" * 2000, "?", "/metrics#x"),
        *("/metrics/", "/metrics;x", "/metrics/%6eode", "/metrics/node/../../etc", "http://[::1", "http://o/metrics"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "CONNECT"])
def test_unusual_targets_are_never_an_internal_error(target: str, method: str) -> None:
    async def check() -> None:
        async with serving() as server, await Peer.connect(port_of(server)) as peer:
            peer.send(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode("latin-1"))
            assert (await peer.answer()).status in (200, 400, 404, 405)

    run(check())


def test_an_upgrade_request_gets_a_plain_response() -> None:
    async def check() -> None:
        async with serving() as server, await Peer.connect(port_of(server)) as peer:
            upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "x"}
            assert (await peer.ask("/healthz", headers=upgrade)).body == b"OK"
            assert (await peer.ask("/healthz")).body == b"OK"

    run(check())


def test_a_failing_endpoint_is_a_500_without_details(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with serving(Broken()) as server:
            answer = await fetch(port_of(server))
            assert answer.status == 500
            assert b"secret" not in answer.body
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert server.stats().requests == {("metrics", 500): 1}
            assert (await fetch(port_of(server), "/healthz")).status == 200

    run(check())
    assert "secret detail" in caplog.text, "the log has the detail, the peer does not"


def test_drop_in_listeners_run_with_the_main_one() -> None:
    async def check() -> None:
        async with serving(listeners=[("127.0.0.1:0", None), ("127.0.0.1:0", "node")]) as server:
            main, drop_in = server.addresses
            assert (main.dialect, drop_in.dialect) == (None, "node")
            assert (await fetch(main.port)).body == b"gpucommons_up 1\nnode_up 1\n"
            assert (await fetch(drop_in.port)).body == b"node_up 1\n"
            assert (await fetch(drop_in.port, "/metrics/node")).status == 404
            assert server.stats().requests == {("metrics", 200): 2, ("unknown", 404): 1}

    run(check())


def test_counts_of_connections_and_requests() -> None:
    async def check() -> None:
        async with serving(limits=ConnectionLimits()) as server, await Peer.connect(port_of(server)) as peer:
            await peer.ask("/metrics")
            await peer.ask("/metrics", "POST", headers={"Content-Length": "0"})
            stats = server.stats()
            assert stats.connections_open == 1
            assert stats.requests == {("metrics", 200): 1, ("metrics", 405): 1}
            assert stats.connections_refused == {}
            assert stats.web_config_reload_ok is None

    run(check())
