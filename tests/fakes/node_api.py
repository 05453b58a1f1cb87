"""The node of a Kubernetes API server: one object that is read and patched, and the events that are created.

The patches are carried out as Kubernetes defines them: conditions are merged by their type, `$patch: delete` removes
one, a list of taints is replaced, and a patch with another version of the object is refused.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web

Json = dict[str, Any]


class NodeApi:
    """`before_patch` runs before the next patch, as another writer would, and is then forgotten."""

    def __init__(self, *, conditions: list[Json] | None = None, taints: list[Json] | None = None) -> None:
        self.conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}, *(conditions or [])]
        self.taints = list(taints or [])
        self.events: list[Json] = []
        self.patches: list[str] = []
        self.denied: set[str] = set()
        self.before_patch: Callable[[], None] | None = None
        self.version = 1
        self.url = ""

    def condition(self, kind: str = "GPUProblem") -> Json | None:
        return next((each for each in self.conditions if each["type"] == kind), None)

    def taint(self, taints: list[Json]) -> None:
        self.taints = taints
        self.version += 1

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["NodeApi"]:
        app = web.Application()
        app.router.add_get("/api/v1/nodes/node-1", self._get)
        app.router.add_patch("/api/v1/nodes/node-1", self._patch_spec)
        app.router.add_patch("/api/v1/nodes/node-1/status", self._patch_status)
        app.router.add_post("/api/v1/namespaces/{namespace}/events", self._create_event)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def _node(self) -> web.Response:
        return web.json_response(
            {
                "kind": "Node",
                "metadata": {"name": "node-1", "resourceVersion": str(self.version)},
                "spec": {"taints": self.taints} if self.taints else {},
                "status": {"conditions": self.conditions},
            }
        )

    async def _get(self, request: web.Request) -> web.Response:
        return self._node()

    async def _patch_spec(self, request: web.Request) -> web.Response:
        if (refused := self._refused(request, "taints")) is not None:
            return refused
        assert request.content_type == "application/merge-patch+json"
        patch = await request.json()
        if self.before_patch is not None:
            self.before_patch()
            self.before_patch = None
        if patch["metadata"]["resourceVersion"] != str(self.version):
            return web.json_response({"kind": "Status", "code": 409}, status=409)
        self.taint(patch["spec"]["taints"])
        return self._node()

    async def _patch_status(self, request: web.Request) -> web.Response:
        if (refused := self._refused(request, "condition")) is not None:
            return refused
        assert request.content_type == "application/strategic-merge-patch+json"
        for change in (await request.json())["status"]["conditions"]:
            delete = change.pop("$patch", "") == "delete"
            before = self.condition(change["type"])
            self.conditions = [each for each in self.conditions if each is not before]
            if not delete:
                self.conditions.append({**(before or {}), **change})
        self.version += 1
        return self._node()

    async def _create_event(self, request: web.Request) -> web.Response:
        if (refused := self._refused(request, "event")) is not None:
            return refused
        event = await request.json()
        assert event["metadata"]["namespace"] == request.match_info["namespace"]
        self.events.append(event)
        return web.json_response(event, status=201)

    def _refused(self, request: web.Request, what: str) -> web.Response | None:
        self.patches.append(what)
        return web.json_response({"code": 403}, status=403) if what in self.denied else None
