"""The routes as functions: the response of each path on the main listener and on a drop-in."""

import gzip

import pytest

from fakes.faces import OPENMETRICS, TEXT, FakeFaces, NoSnapshotYet, snapshot_now
from gpucommons.faces.web.routes.request import Request, Response, text
from gpucommons.faces.web.routes.table import App, drop_in_routes, main_routes
from gpucommons.model.snapshot import SourceState


def app(faces: FakeFaces | None = None, dialect: str | None = None) -> App:
    faces = faces or FakeFaces()
    routes = main_routes(faces, None, 10) if dialect is None else drop_in_routes(faces, dialect, 10)
    return App(routes, faces.latest)


def get(application: App, path: str, **headers: str) -> Response:
    return ask(application, Request("GET", path, headers.get("accept", ""), headers.get("accept_encoding", "")))


def ask(application: App, request: Request) -> Response:
    response = application(request)
    assert isinstance(response, Response), "a route without an API waits for nothing"
    return response


def test_metrics_serve_all_dialects_or_one() -> None:
    main = app()
    assert get(main, "/metrics").body == b"gpucommons_up 1\nnode_up 1\n"
    assert get(main, "/metrics").content_type == TEXT
    assert get(main, "/metrics/node").body == b"node_up 1\n"
    assert get(main, "/metrics/nothing").status == 404


def test_a_drop_in_serves_only_its_dialect() -> None:
    drop_in = app(dialect="node")
    assert get(drop_in, "/metrics").body == b"node_up 1\n"
    assert get(drop_in, "/metrics/gpucommons").status == 404
    assert [get(drop_in, path).status for path in ("/healthz", "/readyz", "/")] == [200, 200, 200]
    assert get(drop_in, "/health") == get(app(), "/health") == text("OK"), "as dcgm-exporter and DS01's exporter"
    assert b'href="/metrics"' in get(drop_in, "/").body


def test_a_drop_in_of_an_unknown_dialect_is_an_error() -> None:
    with pytest.raises(LookupError):
        app(dialect="nothing")


def test_format_and_encoding_follow_the_headers() -> None:
    response = get(app(), "/metrics", accept="application/openmetrics-text", accept_encoding="gzip")
    assert response.content_type == OPENMETRICS
    assert response.headers["Content-Encoding"] == "gzip"
    assert response.headers["Vary"] == "Accept, Accept-Encoding"
    assert gzip.decompress(response.body).endswith(b"# EOF\n")
    assert "Content-Encoding" not in get(app(), "/metrics").headers


def test_before_the_first_snapshot_the_agent_is_live_and_not_ready() -> None:
    young = app(NoSnapshotYet())
    assert (get(young, "/healthz").status, get(young, "/healthz").body) == (200, b"OK")
    assert get(young, "/readyz").status == 503
    assert get(young, "/metrics").status == 503
    assert get(young, "/").status == 200


def test_readiness_follows_the_essential_sources() -> None:
    times = iter([100.0, 106.0])
    state = SourceState("cpu", essential=True, up=True, last_success_monotonic_s=99.0, stale_after_s=5)
    faces = FakeFaces(snapshot_now(state))
    application = App(main_routes(faces, None, 1e9, lambda: next(times)), faces.latest)
    assert (get(application, "/readyz").status, get(application, "/readyz")) == (
        200,
        text("cpu: last read 7.0 s ago\n", 503),
    )


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_refused_and_the_allowed_ones_named(method: str) -> None:
    response = ask(app(), Request(method, "/metrics"))
    assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
    assert ask(app(), Request(method, "/nothing")).status == 404


@pytest.mark.parametrize("path", ["/metrics", "/metrics/node", "/healthz", "/readyz", "/"])
def test_head_is_answered_like_get(path: str) -> None:
    assert ask(app(), Request("HEAD", path)).status == 200


def test_a_simulation_is_marked_and_its_name_cannot_break_a_header() -> None:
    assert app().common_headers() == {}
    assert app(FakeFaces(snapshot_now(scenario="lab"))).common_headers() == {"X-Gpucommons-Simulated": "lab"}
    hostile = app(FakeFaces(snapshot_now(scenario="a\r\nSet-Cookie: x\u00e9"))).common_headers()
    assert hostile["X-Gpucommons-Simulated"].isascii()
    assert "\n" not in hostile["X-Gpucommons-Simulated"]


def test_requests_are_counted_under_bounded_names() -> None:
    main = app()
    assert [main.name_of(path) for path in ("/metrics", "/metrics/node", "/", "/../etc", "/x" * 99)] == [
        "metrics",
        "metrics/node",
        "page",
        "unknown",
        "unknown",
    ]
