"""History beyond memory: the query, the answer on the grid, and one line for every failure."""

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.faces.history.history import NODE, SERIES
from gpucommons.faces.history.prometheus import Prometheus, PrometheusError, RangeReader, TimeGrid, grid, query
from gpucommons.model.snapshot import Readings
from peers import run
from played import Played, snapshot_of
from prometheus_server import running_prometheus
from running import running_agent


@given(st.integers(0, 2 * 10**9), st.integers(1, 10**8), st.integers(10, 4000))
def test_the_grid_is_within_the_range_and_small_enough(start_s: int, length_s: int, points: int) -> None:
    found = grid(start_s, start_s + length_s, points)
    assert found.step_s >= 15
    assert found.length <= points + 1
    assert found.start_s >= start_s
    assert found.start_s + (found.length - 1) * found.step_s == start_s + length_s


def test_the_query_names_only_valid_uuids() -> None:
    asked = query("gpu_power_watts", ["GPU-1", "GPU-2", 'GPU"} or vector(1)'], 'instance="a:1"')
    assert asked == 'max by (UUID) (DCGM_FI_DEV_POWER_USAGE{instance="a:1",UUID=~"GPU-1|GPU-2",GPU_I_ID=""})'
    assert query("cpu_utilization_ratio", [], "") == "node_cpu_utilization_ratio{}"
    assert query("io_pressure_percent", [], "") is None, "no dialect exposes it"


def test_a_step_longer_than_prometheus_looks_back_is_a_mean() -> None:
    """Else a day of 30 would be 24 readings, and their least and most would be chance."""
    assert query("cpu_utilization_ratio", [], 'instance="a:1"', 3600) == (
        'avg_over_time(node_cpu_utilization_ratio{instance="a:1"}[3600s])'
    )
    assert query("memory_used_ratio", [], "", 840) == (
        "1 - avg_over_time(node_memory_available_bytes{}[840s]) / avg_over_time(node_memory_total_bytes{}[840s])"
    )
    assert query("gpu_power_watts", ["GPU-1"], "", 840) == (
        'max by (UUID) (avg_over_time(DCGM_FI_DEV_POWER_USAGE{UUID=~"GPU-1",GPU_I_ID=""}[840s]))'
    )
    assert query("cpu_utilization_ratio", [], "", 120) == "node_cpu_utilization_ratio{}"


def columns(answer: object, series: str, onto: TimeGrid) -> dict[str, list[float]]:
    reader = RangeReader(series, ["GPU-1", "x"], onto)
    reader.feed(json.dumps(answer).encode())
    return reader.end()


def test_values_are_placed_by_their_time() -> None:
    row = {"metric": {"UUID": "GPU-1"}, "values": [[130, "1.5"], [100, "1"], [999, "7"]]}
    other = {"metric": {"UUID": "GPU-2"}, "values": [[100, "1"]]}
    found = columns({"data": {"result": [row, other]}}, "gpu_power_watts", TimeGrid(100, 15, 3))
    assert set(found) == {"GPU-1"}, "only what was asked for"
    assert found["GPU-1"][0] == 1
    assert math.isnan(found["GPU-1"][1])
    assert found["GPU-1"][2] == 1.5


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {"data": {}},
        {"data": {"result": 5}},
        {"data": {"result": [{"metric": {}, "values": []}]}},
        {"data": {"result": [{"metric": {"UUID": "x"}, "values": [["a", "b"]]}]}},
        {"data": {"result": [{"metric": {"UUID": "x"}, "values": [5]}]}},
        {"data": {"result": [{"metric": {"UUID": "x"}, "values": [[10**400, "1"]]}]}},
        {"data": {"result": [{"metric": {"UUID": "x"}, "values": [[math.inf, "1"]]}]}},
    ],
)
def test_an_unexpected_answer_is_one_line(answer: object) -> None:
    with pytest.raises(PrometheusError):
        columns(answer, "gpu_power_watts", TimeGrid(0, 15, 3))


def test_two_nodes_in_one_answer_are_an_error() -> None:
    answer = {
        "data": {"result": [{"metric": {"instance": "a"}, "values": []}, {"metric": {"instance": "b"}, "values": []}]}
    }
    with pytest.raises(PrometheusError, match="prometheus_selector"):
        columns(answer, "health_score", TimeGrid(0, 15, 3))


@asynccontextmanager
async def standing_in(handler: object) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(handler))  # type: ignore[arg-type]
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (400, json.dumps({"status": "error", "error": "parse error: unexpected end"}), "parse error"),
        (500, "<html>", "status 500"),
        (302, "", "status 302"),
        (200, "<html>not JSON", "not a range"),
        (200, "{}", "not a range"),
    ],
)
def test_a_failure_of_prometheus_is_one_line(status: int, body: str, says: str) -> None:
    async def scenario() -> str:
        async def handler(request: web.BaseRequest) -> web.Response:
            return web.Response(status=status, text=body, headers={"Location": "http://127.0.0.1:1/"})

        async with standing_in(handler) as url:
            with pytest.raises(PrometheusError) as caught:
                await Prometheus(url).window("health_score", [], 0, 3600, 100)
            return str(caught.value)

    line = run(scenario())
    assert says in line
    assert "\n" not in line


def test_an_unreachable_prometheus_is_a_502_that_names_the_setting() -> None:
    played = Played(prometheus=Prometheus("http://127.0.0.1:1")).play(1)
    response = played.response("history?series=health_score&range=7d")
    assert response.status == 502
    assert "history.prometheus_url" in json.loads(response.body)["error"]
    assert played.response("history?series=health_score&range=1h").status == 200, "memory needs no Prometheus"


@pytest.mark.long
def test_a_real_prometheus_has_every_series_of_the_dialects(tmp_path: Path) -> None:
    with running_agent("--simulate", "lab") as agent:
        address = agent.url.removeprefix("http://")
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s}\n"
            f"scrape_configs: [{{job_name: a, static_configs: [{{targets: ['{address}']}}]}}]"
        )
        with running_prometheus(config, tmp_path / "data") as server:
            server.wait_for("node_cpu_utilization_ratio and on() count(DCGM_FI_DEV_GPU_UTIL)")
            now = json.loads(agent.get("/api/v1/snapshot")[1])
            asked = [name for name in SERIES if query(name, [], "") is not None]
            prometheus = Prometheus(server.url, f'instance="{address}"')
            gpus = now["gpus"]["by_uuid"]
            end_s = now["time_unix_s"] + 60

            async def last_values(series: str) -> dict[str, float]:
                window = await prometheus.window(series, list(gpus), end_s - 3600, end_s, 4000)
                known = {key: [v for v in column if not math.isnan(v)] for key, column in window.columns.items()}
                return {key: values[-1] for key, values in known.items() if values}

            found = {series: run(last_values(series)) for series in asked}
            for series, values in found.items():
                assert values, f"{series}: no data"
                month = run(prometheus.window(series, list(gpus), end_s - 30 * 86400, end_s, 720))
                assert month.step_s == 3600
                assert month.columns, f"{series}: no data of 30 days"
                for column in month.columns.values():
                    assert math.isnan(column[0])
                    assert not math.isnan(column[-1])
            assert 0 <= found["cpu_utilization_ratio"][NODE] <= 1
            for uuid, gpu in gpus.items():
                assert found["gpu_power_watts"][uuid] == pytest.approx(gpu["power_watts"], rel=0.5)
                assert found["gpu_memory_used_bytes"][uuid] == pytest.approx(gpu["memory_used_bytes"], rel=0.2)


def test_the_api_queries_prometheus_only_beyond_its_memory() -> None:
    asked: list[str] = []

    async def scenario() -> None:
        async def handler(request: web.BaseRequest) -> web.Response:
            asked.append(request.query["query"])
            start = float(request.query["start"])
            rows = [{"metric": {}, "values": [[start, "0.25"]]}]
            return web.json_response({"status": "success", "data": {"result": rows}})

        async with standing_in(handler) as url:
            played = Played(prometheus=Prometheus(url))
            played.show(snapshot_of(Readings()))
            for path, source in (("range=24h", "memory"), ("range=2d", "prometheus")):
                response = await played.request(f"history?series=cpu_utilization_ratio&{path}")
                answer = json.loads(response.body)
                assert answer["source"] == source
                assert answer["kept"]["beyond"] == "prometheus"
            assert answer["values"]["node"][0] == 0.25

    run(scenario())
    assert asked == ["node_cpu_utilization_ratio{}"]
