"""Reading the fleet: from a real Prometheus and a real VictoriaMetrics, once for all viewers, failures in one line."""

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from faces.history.test_prometheus import standing_in
from fleet_nodes import SimpleNode, fleet, node_server, scrape_config
from gpucommons.faces.fleet.queries import FleetError, remembered_query
from gpucommons.faces.fleet.reader import FleetReader, FleetSource
from gpucommons.model.allocations import SlotState
from gpucommons.model.fleet import FleetState, FleetView
from gpucommons.model.viewer import Viewer
from gpucommons.rules.summary import fleet_summary
from needs import needs_program
from peers import run
from played import Played
from prometheus_server import Prometheus, answers, free_port
from waiting import until

PAGE = "http://{instance}/"
FREE, BUSY = (SlotState.FREE, ""), (SlotState.BUSY, "alice")
NODES = {
    "gpu-1:9460": SimpleNode(1, [FREE, BUSY, (SlotState.HELD_IDLE, "bob")]),
    "gpu-2:9460": SimpleNode(2, [BUSY, (SlotState.LOST, "")], "NVIDIA A100-SXM4-80GB"),
}


def read(url: str, selector: str = "") -> FleetView:
    return run(FleetSource(url, selector, PAGE).read())


def check_both(view: FleetView) -> None:
    shown = [(slot.node, slot.slot, slot.model, slot.state.value, slot.holders) for slot in view.slots]
    assert shown == [
        ("gpu-1:9460", "0", "NVIDIA H200", "free", ()),
        ("gpu-1:9460", "2", "NVIDIA H200", "held_idle", ("bob",)),
        ("gpu-1:9460", "1", "NVIDIA H200", "busy", ("alice",)),
        ("gpu-2:9460", "0", "NVIDIA A100-SXM4-80GB", "busy", ("alice",)),
        ("gpu-2:9460", "1", "NVIDIA A100-SXM4-80GB", "lost", ()),
    ]
    assert all(node.answers for node in view.nodes)
    assert view.slots[1].idle_s == 4002
    assert view.slots[0].memory_free_bytes == 140 * 2**30


def check_second_gone(view: FleetView, before_s: float) -> None:
    assert fleet_summary(view).parts[0].text == "1 node not answering"
    assert {slot.state for slot in view.slots if slot.node == "gpu-2:9460"} == {FleetState.SILENT}
    (gone,) = (node for node in view.nodes if not node.answers)
    assert gone.last_seen_wall_s is not None
    assert before_s - 5 <= gone.last_seen_wall_s <= time.time()
    assert [slot.model for slot in view.slots if slot.state is FleetState.SILENT] == ["NVIDIA A100-SXM4-80GB"] * 2


def test_a_real_prometheus_has_every_slot_and_a_node_that_went_away(tmp_path: Path) -> None:
    before_s = time.time()
    with fleet(NODES, tmp_path) as (server, prometheus):
        check_both(read(prometheus.url))
        only = read(prometheus.url, 'instance="gpu-1:9460"')
        assert [node.instance for node in only.nodes] == ["gpu-1:9460"]
        del server.texts["node-2"]
        until(lambda: prometheus.query('up{instance="gpu-2:9460"} == 0'), "the second node is down")
        check_second_gone(read(prometheus.url), before_s)
    with pytest.raises(FleetError, match=r"Prometheus at http://127.* does not answer: Connection refused; check"):
        read(prometheus.url)


@contextmanager
def running_victoria_metrics(config: Path, data: Path) -> Iterator[Prometheus]:
    needs_program("victoria-metrics")
    port = free_port()
    process = subprocess.Popen(
        [
            "victoria-metrics",
            f"-promscrape.config={config}",
            f"-storageDataPath={data}",
            f"-httpListenAddr=127.0.0.1:{port}",
            "-search.latencyOffset=0s",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    server = Prometheus(f"http://127.0.0.1:{port}")
    try:
        until(lambda: process.poll() is not None or answers(f"{server.url}/health"), "VictoriaMetrics starts")
        assert process.poll() is None, "VictoriaMetrics did not start"
        yield server
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
def test_a_real_victoria_metrics_gives_the_same_view(tmp_path: Path) -> None:
    before_s = time.time()
    paths = {instance: f"node-{node.number}" for instance, node in NODES.items()}
    with node_server({paths[instance]: node.text() for instance, node in NODES.items()}) as server:
        config = tmp_path / "scrape.yml"
        config.write_text(scrape_config(server.port, paths))
        with running_victoria_metrics(config, tmp_path / "data") as victoria:
            victoria.wait_for("count(gpucommons_slot_state) == 5 and count(gpucommons_slot_idle_seconds) == 1", 60)
            check_both(read(victoria.url))
            del server.texts["node-2"]
            gone = 'up{instance="gpu-2:9460"} == 0 unless gpucommons_snapshot_timestamp_seconds'
            until(lambda: victoria.query(gone), "the second node is down", within_s=60)
            until(lambda: len([n for n in read(victoria.url).nodes if not n.answers]) == 1, "it is silent", within_s=60)
            check_second_gone(read(victoria.url), before_s)


def test_instances_are_quoted_in_the_query() -> None:
    found = remembered_query("m", 'job="g"', ["gpu.1:9460", 'a"b\\c|d'])
    assert found == 'last_over_time(m{job="g",instance=~"gpu\\\\.1:9460|a\\"b\\\\\\\\c\\\\|d"}[1h])'


def vector(*rows: object) -> web.Response:
    return web.json_response({"status": "success", "data": {"resultType": "vector", "result": rows}})


async def begun_and_ended(reader: FleetReader) -> None:
    """One reading. Its viewer may be served the view before it; the next one is not."""
    with suppress(FleetError):
        await reader.view()
    readings = [task for task in asyncio.all_tasks() if task.get_name() == "fleet"]
    await asyncio.gather(*readings, return_exceptions=True)


def test_many_viewers_at_once_are_one_reading() -> None:
    asked: list[str] = []
    now_s = 100.0

    async def scenario() -> None:
        nonlocal now_s

        async def handler(request: web.BaseRequest) -> web.Response:
            asked.append(request.query["query"])
            return vector()

        async with standing_in(handler) as url:
            reader = FleetReader(FleetSource(url, "", PAGE), lambda: now_s)
            views = await asyncio.gather(*(reader.view() for _ in range(20)))
            assert len({id(view) for view in views}) == 1
            assert len(asked) == 14, "one request for each query"
            assert await reader.view() is views[0]
            now_s += 4.9
            assert await reader.view() is views[0]
            now_s += 0.2
            await begun_and_ended(reader)
            assert await reader.view() is not views[0]
            assert len(asked) == 28

    run(scenario())


def test_a_slow_reading_is_waited_for_briefly_and_then_the_last_view_is_served() -> None:
    async def scenario() -> None:
        now_s, release = 100.0, asyncio.Event()
        release.set()

        async def handler(request: web.BaseRequest) -> web.Response:
            await release.wait()
            return vector()

        async with standing_in(handler) as url:
            reader = FleetReader(FleetSource(url, "", PAGE), lambda: now_s)
            first = await reader.view()
            release.clear()
            now_s += 14.9
            assert await reader.view() is first
            now_s += 0.2
            with pytest.raises(TimeoutError):
                # 15 s old: too old to be served.
                await asyncio.wait_for(reader.view(), 1.0)
            release.set()
            await begun_and_ended(reader)
            second = await reader.view()
            assert second is not first
            assert second.time_wall_s > first.time_wall_s

    run(scenario())


def test_the_last_view_is_not_served_after_a_failure() -> None:
    async def scenario() -> None:
        now_s, status = 100.0, 200

        async def handler(request: web.BaseRequest) -> web.Response:
            return vector() if status == 200 else web.Response(status=status)

        async with standing_in(handler) as url:
            reader = FleetReader(FleetSource(url, "", PAGE), lambda: now_s)
            await reader.view()
            status = 503
            now_s += 5.0
            await begun_and_ended(reader)
            now_s += 5.0
            with pytest.raises(FleetError, match="503"):
                await reader.view()

    run(scenario())


def test_a_prometheus_that_hangs_does_not_hold_up_the_agent() -> None:
    """The reading is on another thread; a viewer that leaves does not end it for the next one."""
    threads: set[str] = set()

    async def scenario() -> None:
        release = asyncio.Event()

        async def handler(request: web.BaseRequest) -> web.Response:
            await release.wait()
            return vector()

        class Watched(FleetSource):
            async def read(self) -> FleetView:
                threads.add(threading.current_thread().name)
                return await FleetSource.read(self)

        async with standing_in(handler) as url:
            reader = FleetReader(Watched(url, "", PAGE))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.view(), 0.05)
            release.set()
            assert (await reader.view()).slots == ()

    run(scenario())
    assert len(threads) == 1
    assert threading.current_thread().name not in threads


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (400, json.dumps({"status": "error", "error": "parse error: bad selector"}), "parse error: bad selector"),
        (401, "", "status 401"),
        (200, "<html>", "not a vector"),
        (200, "{}", "not a vector"),
    ],
)
def test_a_failure_of_prometheus_is_one_line_and_502(status: int, body: str, says: str) -> None:
    async def scenario() -> str:
        async def handler(request: web.BaseRequest) -> web.Response:
            return web.Response(status=status, text=body)

        async with standing_in(handler) as url:
            reader = FleetReader(FleetSource(url.replace("//", "//user:secret@"), "", PAGE))
            response = await Played(fleet=reader).request("fleet")
            assert response.status == 502
            line: str = json.loads(response.body)["error"]
            return line

    line = run(scenario())
    assert says in line
    assert "\n" not in line
    assert "secret" not in line


def test_the_document_hides_other_holders_and_has_an_etag(tmp_path: Path) -> None:
    with fleet(NODES, tmp_path) as (_, prometheus):

        async def scenario() -> None:
            played = Played(fleet=FleetReader(FleetSource(prometheus.url, "", PAGE)))
            whole = await played.request("fleet", headers={"Accept-Encoding": "gzip"})
            assert whole.headers["Content-Encoding"] == "gzip"
            again = await played.request("fleet", headers={"If-None-Match": whole.headers["ETag"]})
            assert again.status == 304
            bob = json.loads((await played.request("fleet", Viewer(False, 1001, "bob"))).body)
            holders = [(slot["holders"], slot["hidden_holders"]) for slot in bob["fleet"]["slots"]]
            assert holders == [([], 0), (["bob"], 0), ([], 1), ([], 1), ([], 0)]
            assert bob["hidden"]["sections"] == ["slots"]
            unknown = (await played.request("fleet", Viewer(False))).body
            assert b"alice" not in unknown
            assert b"bob" not in unknown
            assert (await played.request("fleet?x=1")).status == 400

        run(scenario())
