"""The pods of a Kubernetes API server: lists and watches over real TLS, with faults as the test requires."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

Json = dict[str, Any]
Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


def pod(name: str, node: str = "node-1", **changes: Any) -> Json:
    """A pod document. A change names its path: status__phase="Running"."""
    document: Json = {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "lab", "uid": f"uid-of-{name}"},
        "spec": {"nodeName": node},
        "status": {"phase": "Running"},
    }
    for place, value in changes.items():
        inner = document
        *path, last = place.split("__")
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return document


class ApiServer:
    """`list_faults` and `watch_faults` are consumed one by one, each in place of a response."""

    def __init__(self, *pods: Json) -> None:
        self.version = 100
        self.oldest = 0
        self.token: str | None = None
        self.honours_selector = True
        self.honours_limit = True
        self.expires_in_stream = False
        self.lists: list[dict[str, str]] = []
        self.watches: list[dict[str, str]] = []
        self.list_faults: list[Fault] = []
        self.watch_faults: list[Fault] = []
        self.url = ""
        self._pods: dict[str, Json] = {}
        self._log: list[tuple[int, Json]] = []
        self._changed = asyncio.Condition()
        self._open: list[web.StreamResponse] = []
        self._opened = asyncio.Condition()
        for document in pods:
            self._record("ADDED", document)

    def _record(self, kind: str, document: Json) -> None:
        self.version += 1
        stamped = {**document, "metadata": {**document["metadata"], "resourceVersion": str(self.version)}}
        if kind == "DELETED":
            self._pods.pop(document["metadata"]["uid"], None)
        elif kind != "BOOKMARK":
            self._pods[document["metadata"]["uid"]] = stamped
        self._log.append((self.version, {"type": kind, "object": stamped}))

    async def change(self, kind: str, document: Json) -> None:
        """ADDED, MODIFIED, DELETED or BOOKMARK; sent to every open watch."""
        async with self._changed:
            self._record(kind, document)
            self._changed.notify_all()

    def forget_history(self) -> None:
        """From now on, a watch from an earlier position gets 410 Gone."""
        self.version += 1
        self.oldest = self.version

    async def cut_watches(self, rest: bytes = b"") -> None:
        """Break the connection of each open watch, after these bytes."""
        for stream in self._open:
            if rest:
                await stream.write(rest)
            assert stream._req is not None
            if stream._req.transport is not None:
                stream._req.transport.close()
        self._open.clear()

    async def watched(self, times: int = 1) -> None:
        """Wait until this many watches were requested, and one is open."""
        async with asyncio.timeout(10), self._opened:
            await self._opened.wait_for(lambda: len(self.watches) >= times and bool(self._open))

    async def pods(self, request: web.Request) -> web.StreamResponse:
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        is_watch = request.query.get("watch") == "1"
        (self.watches if is_watch else self.lists).append(dict(request.query))
        faults = self.watch_faults if is_watch else self.list_faults
        if faults:
            return await faults.pop(0)(request)
        return await (self._watch(request) if is_watch else self._list(request))

    def _selected(self, request: web.Request, document: Json) -> bool:
        node_name = request.query["fieldSelector"].removeprefix("spec.nodeName=")
        return not self.honours_selector or document["spec"]["nodeName"] == node_name

    async def _list(self, request: web.Request) -> web.StreamResponse:
        found = [document for document in self._pods.values() if self._selected(request, document)]
        start = int(request.query.get("continue", "0"))
        size = int(request.query.get("limit", "500")) if self.honours_limit else len(found)
        metadata = {"resourceVersion": str(self.version)}
        if start + size < len(found):
            assert not (start and "resourceVersion" in request.query), "the API forbids both together"
            metadata["continue"] = str(start + size)
        return web.json_response({"kind": "PodList", "metadata": metadata, "items": found[start : start + size]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        position = int(request.query["resourceVersion"])
        if position < self.oldest and not self.expires_in_stream:
            return web.json_response({"kind": "Status", "code": 410, "reason": "Expired"}, status=410)
        stream = web.StreamResponse()
        await stream.prepare(request)
        if position < self.oldest:
            gone = {"kind": "Status", "code": 410, "reason": "Expired"}
            await stream.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return stream
        async with self._opened:
            self._open.append(stream)
            self._opened.notify_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(int(request.query["timeoutSeconds"])):
                while True:
                    position = await self._send_changes(stream, request, position)
                    async with self._changed:
                        if self._log[-1][0] <= position:
                            await self._changed.wait()
        if stream in self._open:
            self._open.remove(stream)
        return stream

    async def _send_changes(self, stream: web.StreamResponse, request: web.Request, position: int) -> int:
        """Sends every event after `position`; returns the new position."""
        for version, event in self._log:
            if version > position:
                position = version
                if event["type"] == "BOOKMARK" or self._selected(request, event["object"]):
                    await stream.write(json.dumps(event).encode() + b"\n")
        return position

    async def kubelet_pods(self, request: web.Request) -> web.StreamResponse:
        self.lists.append(dict(request.query))
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, text="Unauthorized")
        if self.list_faults:
            return await self.list_faults.pop(0)(request)
        return web.json_response({"kind": "PodList", "items": list(self._pods.values())})

    @contextlib.asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None, port: int = 0) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/api/v1/pods", self.pods)
        app.router.add_get("/pods", self.kubelet_pods)
        runner = web.AppRunner(app, shutdown_timeout=0.01)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
        await site.start()
        host, bound = runner.addresses[0][:2]
        self.url = f"{'https' if tls else 'http'}://{host}:{bound}"
        try:
            yield
        finally:
            await runner.cleanup()


def status(code: int) -> Fault:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"kind": "Status", "code": code, "message": "set by the test"}, status=code)

    return answer


def body(data: bytes, promised: int | None = None) -> Fault:
    """These bytes with status 200; fewer than the content length: the response is cut off."""

    async def answer(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Length": str(promised or len(data))})
        await stream.prepare(request)
        await stream.write(data)
        if request.transport is not None and promised:
            request.transport.close()
        return stream

    return answer


async def silence(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def trickle(request: web.Request) -> web.StreamResponse:
    """A response that sends one space at a time and never ends."""
    stream = web.StreamResponse()
    await stream.prepare(request)
    while True:
        await stream.write(b" ")
        await asyncio.sleep(0.02)
