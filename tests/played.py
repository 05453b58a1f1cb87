"""The demo node as snapshots, and an API over them: what the tests of the faces ask."""

import json
from collections.abc import Mapping
from typing import Any

from demo_node import DemoNode
from gpucommons.faces.history.history import History
from gpucommons.faces.history.prometheus import Prometheus
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.source_state import SourceState
from gpucommons.rules.privacy import SEES_ALL, Viewer
from gpucommons.web.routes.api import Api
from gpucommons.web.routes.app import Request
from gpucommons.web.routes.response import Response
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
    """An API that is shown one second of a node after the other."""

    def __init__(self, node: DemoNode | None = None, prometheus: Prometheus | None = None) -> None:
        self.node = node or DemoNode()
        self.now: Snapshot | None = None
        self.api = Api(lambda: self.now, History(), "1.2.3", prometheus)
        self.routes = self.api.routes()

    def show(self, snapshot: Snapshot) -> None:
        self.now = snapshot
        self.api.observe(snapshot)

    def play(self, seconds: int, start_s: int = 0) -> "Played":
        for elapsed_s in range(start_s, start_s + seconds):
            self.show(snapshot_of(self.node.readings(float(elapsed_s)), elapsed_s))
        return self

    def reply(self, path: str, viewer: Viewer = SEES_ALL, headers: Mapping[str, str] | None = None) -> Response:
        name, _, text = path.partition("?")
        query = tuple((key, value) for key, _, value in (pair.partition("=") for pair in text.split("&") if pair))
        given = headers or {}
        asked = Request(
            "GET",
            f"/api/v1/{name}",
            accept_encoding=given.get("Accept-Encoding", ""),
            if_none_match=given.get("If-None-Match", ""),
            query=query,
            viewer=viewer,
        )
        reply = self.routes[f"/api/v1/{name}"].answer(asked)
        return reply if reply.later is None else run(_awaited(reply))

    def get(self, path: str, viewer: Viewer = SEES_ALL) -> Any:
        reply = self.reply(path, viewer)
        assert reply.status == 200, reply.body
        return json.loads(reply.body)


async def _awaited(reply: Response) -> Response:
    assert reply.later is not None
    return await reply.later()
