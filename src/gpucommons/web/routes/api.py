"""The API's routes: which view a viewer gets, answers made once per snapshot, ETags, and what a wrong request gets."""

import gzip
import secrets
from collections.abc import Callable, Mapping
from functools import partial

from gpucommons.faces.documents import history as history_resource
from gpucommons.faces.documents.openapi import BASE, openapi
from gpucommons.faces.documents.parameters import BadParameter, Value, read_query
from gpucommons.faces.documents.resources import RESOURCES, Resource, snapshot
from gpucommons.faces.documents.values import Json, encoded
from gpucommons.faces.documents.view import View, view_for
from gpucommons.faces.history.history import History
from gpucommons.faces.history.prometheus import Prometheus, PrometheusError
from gpucommons.faces.history.turn_log import TurnLog
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.privacy import Viewer
from gpucommons.web.routes.app import Request, Route
from gpucommons.web.routes.negotiation import wants_gzip
from gpucommons.web.routes.response import Response, matches_etag, text
from gpucommons.web.routes.stream import Broadcaster

_JSON = "application/json; charset=utf-8"
_WORTH_GZIP_BYTES = 1024
_GZIP_LEVEL = 1
# Answers that are remembered within one snapshot; who asks for more variants gets them made anew.
_MOST_REMEMBERED = 128
_NOT_SAMPLED_YET = text("no sample yet, come back in a moment\n", 503, {"Retry-After": "1"})


class Api:
    """Give it every snapshot by `observe`; mount its `routes`; `close` it before the listeners drain."""

    def __init__(
        self,
        latest: Callable[[], Snapshot | None],
        history: History,
        version: str,
        prometheus: Prometheus | None = None,
    ) -> None:
        self._latest = latest
        self._history = history
        self._prometheus = prometheus
        self._turn_log = TurnLog()
        self._openapi = encoded(openapi(version))
        # An ETag must not outlive the agent whose snapshots it counts.
        self._life = secrets.token_hex(4)
        self._sequence = -1
        self._views: dict[Viewer, View] = {}
        self._documents: dict[Viewer, Mapping[str, Json]] = {}
        self._bodies: dict[tuple[object, ...], bytes] = {}
        self.stream = Broadcaster(self.document)

    def observe(self, snapshot: Snapshot) -> None:
        self._history.observe(snapshot)
        self._turn_log.observe(snapshot)
        self.stream.publish()

    def close(self) -> None:
        self.stream.close()

    def document(self, viewer: Viewer) -> Mapping[str, Json] | None:
        """Everything that this viewer may see now, made once per snapshot."""
        view = self.view(viewer)
        if view is None:
            return None
        document = self._documents.get(viewer)
        if document is None:
            document = self._documents[viewer] = snapshot(view)
        return document

    def view(self, viewer: Viewer) -> View | None:
        now = self._latest()
        if now is None:
            return None
        if now.sequence != self._sequence:
            self._sequence = now.sequence
            self._views.clear()
            self._documents.clear()
            self._bodies.clear()
        view = self._views.get(viewer)
        if view is None:
            view = self._views[viewer] = view_for(viewer, now, self._turn_log.timeline)
        return view

    def routes(self) -> dict[str, Route]:
        routes = {
            f"{BASE}/{resource.name}": Route(f"api/{resource.name}", resource.summary, partial(self._answer, resource))
            for resource in RESOURCES
        }
        routes[f"{BASE}/history"] = Route("api/history", "one reading over time", self._answer_history)
        routes[f"{BASE}/stream"] = Route("api/stream", "everything, live (server-sent events)", self._answer_stream)
        routes[f"{BASE}/openapi.json"] = Route("api/openapi", "how to talk to this API", self._answer_openapi)
        return routes

    def _answer(self, resource: Resource, asked: Request) -> Response:
        view = self.view(asked.viewer)
        if view is None:
            return _NOT_SAMPLED_YET
        try:
            values = read_query(asked.query, resource.parameters)
            etag = self._etag(asked.viewer)
            if matches_etag(asked.if_none_match, etag):
                return _not_modified(etag)
            return self._reply(
                asked,
                (resource.name, *sorted(values.items())),
                etag,
                lambda: self._make(resource, view, asked.viewer, values),
            )
        except BadParameter as wrong:
            return _bad_parameter(wrong)

    def _make(self, resource: Resource, view: View, viewer: Viewer, values: Mapping[str, Value]) -> bytes:
        if resource.name == "snapshot":
            return encoded(self.document(viewer))
        return encoded(resource.make(view, values))

    def _reply(self, asked: Request, what: tuple[object, ...], etag: str, make: Callable[[], bytes]) -> Response:
        body = self._remembered((*what, asked.viewer), make)
        headers = {"ETag": etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if len(body) >= _WORTH_GZIP_BYTES and wants_gzip(asked.accept_encoding):
            plain = body
            body = self._remembered((*what, asked.viewer, "gzip"), lambda: _compressed(plain))
            headers["Content-Encoding"] = "gzip"
        return Response(body, _JSON, headers=headers)

    def _remembered(self, key: tuple[object, ...], make: Callable[[], bytes]) -> bytes:
        body = self._bodies.get(key)
        if body is None:
            body = make()
            if len(self._bodies) < _MOST_REMEMBERED:
                self._bodies[key] = body
        return body

    def _etag(self, viewer: Viewer) -> str:
        scope = "all" if viewer.sees_all else f"{viewer.uid}"
        return f'"{self._life}-{self._sequence}-{scope}"'

    def _answer_history(self, asked: Request) -> Response:
        view = self.view(asked.viewer)
        if view is None:
            return _NOT_SAMPLED_YET
        try:
            wanted = history_resource.read(view, read_query(asked.query, history_resource.PARAMETERS))
        except BadParameter as wrong:
            return _bad_parameter(wrong)
        etag = self._etag(asked.viewer)
        if matches_etag(asked.if_none_match, etag):
            return _not_modified(etag)
        return Response(b"", later=lambda: self._history_reply(asked, view, wanted, etag))

    async def _history_reply(
        self, asked: Request, view: View, wanted: history_resource.HistoryQuery, etag: str
    ) -> Response:
        try:
            body = await history_resource.answer(view, wanted, self._history, self._prometheus)
        except BadParameter as wrong:
            return _bad_parameter(wrong)
        except PrometheusError as error:
            return Response(encoded({"error": str(error), "parameter": ""}), _JSON, 502)
        headers = {"ETag": etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if len(body) >= _WORTH_GZIP_BYTES and wants_gzip(asked.accept_encoding):
            body, headers["Content-Encoding"] = _compressed(body), "gzip"
        return Response(body, _JSON, headers=headers)

    def _answer_stream(self, asked: Request) -> Response:
        try:
            read_query(asked.query, ())
        except BadParameter as wrong:
            return _bad_parameter(wrong)
        return Response(b"", "text/event-stream; charset=utf-8", live=lambda: self.stream.events(asked.viewer))

    def _answer_openapi(self, asked: Request) -> Response:
        return Response(self._openapi, _JSON)


def _compressed(body: bytes) -> bytes:
    return gzip.compress(body, compresslevel=_GZIP_LEVEL, mtime=0)


def _not_modified(etag: str) -> Response:
    return Response(b"", _JSON, 304, {"ETag": etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"})


def _bad_parameter(wrong: BadParameter) -> Response:
    line = f"parameter {wrong.parameter[:64]!r}: {wrong}"
    return Response(encoded({"error": line, "parameter": wrong.parameter[:64]}), _JSON, 400)
