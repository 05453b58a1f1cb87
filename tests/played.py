"""The demo node as snapshots, and an API that serves them."""

import json
from collections.abc import Mapping
from typing import Any

from demo_node import DemoNode
from gpucommons.faces.fleet.reader import FleetReader
from gpucommons.faces.history.history import History
from gpucommons.faces.history.prometheus import Prometheus
from gpucommons.faces.web.routes.api import Api
from gpucommons.faces.web.routes.request import Request, Response
from gpucommons.faces.web.routes.table import App, api_routes
from gpucommons.model.snapshot import Readings, Snapshot, SourceState
from gpucommons.model.viewer import SEES_ALL, Viewer
from peers import run


def snapshot_of(readings: Readings, elapsed_s: float = 0.0, *, sequence: int = 0, wall_s: float = 1.76e9) -> Snapshot:
    return Snapshot(
        sequence=sequence or int(elapsed_s) + 1,
        monotonic_s=1000.0 + elapsed_s,
        wall_s=wall_s + elapsed_s,
        hostname="node-1",
        scenario="demo",
        readings=readings,
        sources={
            "cpu": SourceState("cpu", True, True, False, 0.001, 1000.0 + elapsed_s, wall_s, stale_after_s=10),
            "docker": SourceState("docker", absent=True, detail="no socket", remedy="start Docker"),
        },
    )


class Played:
    """An API that gets one second of a node after the other."""

    def __init__(
        self, node: DemoNode | None = None, prometheus: Prometheus | None = None, fleet: FleetReader | None = None
    ) -> None:
        self.node = node or DemoNode()
        self.now: Snapshot | None = None
        self.api = Api(lambda: self.now, History(), "1.2.3", prometheus, fleet=fleet)
        self.app = App(api_routes(self.api), lambda: self.now)

    def show(self, snapshot: Snapshot) -> None:
        self.now = snapshot
        self.api.observe(snapshot)

    def play(self, seconds: int, start_s: int = 0) -> "Played":
        for elapsed_s in range(start_s, start_s + seconds):
            self.show(snapshot_of(self.node.readings(float(elapsed_s)), elapsed_s))
        return self

    async def request(self, path: str, viewer: Viewer = SEES_ALL, headers: Mapping[str, str] | None = None) -> Response:
        name, _, text = path.partition("?")
        query = tuple((key, value) for key, _, value in (pair.partition("=") for pair in text.split("&") if pair))
        given = headers or {}
        response = self.app(
            Request(
                "GET",
                f"/api/v1/{name}",
                accept_encoding=given.get("Accept-Encoding", ""),
                if_none_match=given.get("If-None-Match", ""),
                query=query,
                viewer=viewer,
            )
        )
        return response if isinstance(response, Response) else await response

    def response(self, path: str, viewer: Viewer = SEES_ALL, headers: Mapping[str, str] | None = None) -> Response:
        """Usable within an event loop too: only history and the fleet wait for anything."""
        coroutine = self.request(path, viewer, headers)
        if path.startswith(("history", "fleet")):
            return run(coroutine)
        try:
            coroutine.send(None)
        except StopIteration as done:
            response: Response = done.value
            return response
        raise AssertionError(f"{path} waits")

    def get(self, path: str, viewer: Viewer = SEES_ALL) -> Any:
        response = self.response(path, viewer)
        assert response.status == 200, response.body
        return json.loads(response.body)
