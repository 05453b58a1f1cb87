"""Only a successful response that reports ready counts as UP."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.stack.health import HttpResponse, get, healthy, judge, judge_targets, probe
from prometheus_server import free_port
from stack.stacks import answering


@pytest.mark.parametrize("status", [204, 301, 401, 404, 500, 503])
def test_only_a_success_is_up(status: int) -> None:
    health = judge("prometheus", HttpResponse(status, b"Service Unavailable\nmore"))
    assert not health.ok
    assert str(status) in health.detail
    assert "more" not in health.detail


def test_a_real_server_that_answers_500_is_down_and_one_that_answers_200_is_up() -> None:
    with answering(500, b"broken") as address:
        assert not judge("agent", get(f"http://{address}/readyz")).ok
    with answering(200, b"OK") as address:
        assert judge("agent", get(f"http://{address}/readyz")).ok
    assert "refused" in judge("agent", get(f"http://127.0.0.1:{free_port()}/")).detail


def test_grafana_is_up_only_with_its_database() -> None:
    assert judge("grafana", HttpResponse(200, b'{"database": "ok"}')).ok
    assert not judge("grafana", HttpResponse(200, b'{"database": "failing"}')).ok
    assert not judge("grafana", HttpResponse(200, b"<html>")).ok


def targets(*healths: str) -> HttpResponse:
    active = [
        {"labels": {"job": f"j{n}", "node": "a"}, "health": health, "lastError": f"why {n}"}
        for n, health in enumerate(healths)
    ]
    return HttpResponse(200, json.dumps({"data": {"activeTargets": active}}).encode())


def test_a_target_that_is_down_or_never_scraped_is_unhealthy() -> None:
    assert judge_targets(targets("up", "up")).ok
    down = judge_targets(targets("up", "down"))
    assert not down.ok
    assert "1 of 2 down: j1 on a: why 1" in down.detail
    assert not judge_targets(targets("up", "unknown")).ok
    assert not judge_targets(targets()).ok
    assert not judge_targets(HttpResponse(500, b"")).ok


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["data", "activeTargets", "labels", "x"]), inner),
)


@given(_JSON | st.none())
def test_any_response_of_prometheus_is_handled(value: object) -> None:
    judge_targets(HttpResponse(200, json.dumps(value).encode()))
    judge_targets(HttpResponse(200, b"\xff{"))


def test_all_services_must_be_healthy() -> None:
    with answering(200, b'{"data": {"activeTargets": [{"health": "up"}]}}') as address:
        well = probe({"agent": f"http://{address}/"}, address)
        assert healthy(well)
        assert not healthy(probe({"agent": f"http://127.0.0.1:{free_port()}/"}, address))
