"""The API's endpoints: each viewer's documents, made once per snapshot, with ETags and compression."""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from typing import Any

from gpucommons.base.threads import in_daemon_thread
from gpucommons.faces.documents import fleet_report as fleet_report_document
from gpucommons.faces.documents import history as history_document
from gpucommons.faces.documents import job as job_document
from gpucommons.faces.documents import report as report_document
from gpucommons.faces.documents.fleet import fleet_document
from gpucommons.faces.documents.openapi import index, openapi
from gpucommons.faces.documents.parameters import BadParameter, Value, read_query
from gpucommons.faces.documents.resources import SNAPSHOT, Resource
from gpucommons.faces.documents.values import Json, encode
from gpucommons.faces.documents.view import View, view_for
from gpucommons.faces.fleet.queries import FleetError
from gpucommons.faces.fleet.reader import FleetReader
from gpucommons.faces.history.history import History, TurnLog
from gpucommons.faces.history.prometheus import Prometheus, PrometheusError
from gpucommons.faces.web.routes.request import (
    NOT_SAMPLED_YET,
    Request,
    Response,
    accepts_gzip,
    gzip_body,
    matches_etag,
    text,
)
from gpucommons.faces.web.routes.stream import Broadcaster
from gpucommons.model.fleet import FleetView
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.viewer import Viewer

_JSON = "application/json; charset=utf-8"
_WORTH_GZIP_BYTES = 1024
# Bodies that are cached within one snapshot; further variants are made for each request.
_MAX_CACHED = 128
# Reports of one viewer that are made or wait at once: they are made one after the other, from the disk.
_MAX_REPORTS = 4

_TOO_MANY_REPORTS = text("too many reports at once: try again in a second\n", 503, {"Retry-After": "1"})


class Api:
    """Pass every snapshot to `observe`; `close` it before the listeners drain."""

    def __init__(
        self,
        latest: Callable[[], Snapshot | None],
        history: History,
        version: str,
        prometheus: Prometheus | None = None,
        ledger: report_document.ReadLedger | None = None,
        jobs: job_document.ReadJob | None = None,
        fleet: FleetReader | None = None,
    ) -> None:
        self._latest = latest
        self._history = history
        self._prometheus = prometheus
        self._ledger = ledger
        self._fleet = fleet
        # Of the newest view, by viewer: the document, plain and compressed.
        self._fleet_view: FleetView | None = None
        self._fleet_bodies: dict[Viewer, tuple[bytes, bytes]] = {}
        self._jobs = jobs
        self._reports: Counter[Viewer] = Counter()
        self._turn_log = TurnLog()
        self._index = encode(index(version))
        self._version = version
        # Part of every ETag: sequence numbers start again with each agent.
        self._life = secrets.token_hex(4)
        self._sequence = -1
        self._views: dict[Viewer, View] = {}
        self._snapshots: dict[Viewer, Mapping[str, Json]] = {}
        self._bodies: dict[tuple[object, ...], bytes] = {}
        self.broadcaster = Broadcaster(self.document)

    def observe(self, snapshot: Snapshot) -> None:
        self._history.observe(snapshot)
        self._turn_log.observe(snapshot)
        self.broadcaster.publish()

    def close(self) -> None:
        self.broadcaster.close()

    def document(self, viewer: Viewer) -> Mapping[str, Json] | None:
        """The snapshot document of this viewer, made once per snapshot; None before the first snapshot."""
        view = self._view(viewer)
        if view is None:
            return None
        document = self._snapshots.get(viewer)
        if document is None:
            document = self._snapshots[viewer] = SNAPSHOT.build(view)
        return document

    def index(self, request: Request) -> Response:
        return Response(self._index, _JSON)

    def openapi(self, request: Request) -> Response:
        return Response(_encode_openapi(self._version), _JSON)

    def resource(self, resource: Resource, request: Request) -> Response:
        view = self._view(request.viewer)
        if view is None:
            return NOT_SAMPLED_YET
        try:
            values = read_query(request.query, resource.parameters)
            etag = self._etag(request.viewer)
            if matches_etag(request.if_none_match, etag):
                return _not_modified(etag)
            key = (resource.name, *sorted(values.items()), request.viewer)
            body = self._get_or_make(key, lambda: self._make(resource, view, request.viewer, values))
        except BadParameter as error:
            return _bad_parameter(error)
        return _response(request, body, etag, lambda: self._get_or_make((*key, "gzip"), lambda: gzip_body(body)))

    async def history(self, request: Request) -> Response:
        view = self._view(request.viewer)
        if view is None:
            return NOT_SAMPLED_YET
        etag = self._etag(request.viewer)
        try:
            query = history_document.read(view, read_query(request.query, history_document.PARAMETERS))
            if matches_etag(request.if_none_match, etag):
                return _not_modified(etag)
            body = await history_document.answer(view, query, self._history, self._prometheus)
        except BadParameter as error:
            return _bad_parameter(error)
        except PrometheusError as error:
            return _failure(str(error))
        return _response(request, body, etag, lambda: gzip_body(body))

    async def report(self, request: Request) -> Response:
        view = self._view(request.viewer)
        if view is None:
            return NOT_SAMPLED_YET
        try:
            query = report_document.read(read_query(request.query, report_document.PARAMETERS), view.snapshot.wall_s)
        except BadParameter as error:
            return _bad_parameter(error)
        if self._ledger is None:
            return _NO_LEDGER
        return await self._of_ledger(request, report_document.document(view, request.viewer, query, self._ledger))

    async def job(self, request: Request) -> Response:
        view = self._view(request.viewer)
        if view is None:
            return NOT_SAMPLED_YET
        try:
            id = job_document.read(read_query(request.query, job_document.PARAMETERS))
        except BadParameter as error:
            return _bad_parameter(error)
        if self._jobs is None:
            return _NO_LEDGER
        return await self._of_ledger(request, job_document.document(view, request.viewer, id, self._jobs))

    async def _of_ledger(self, request: Request, document: Coroutine[Any, Any, Json]) -> Response:
        if self._reports[request.viewer] >= _MAX_REPORTS:
            document.close()
            return _TOO_MANY_REPORTS
        self._reports[request.viewer] += 1
        try:
            body = encode(await document)
        except report_document.LedgerUnreadable as error:
            return _failure(str(error))
        finally:
            self._reports[request.viewer] -= 1
            # A viewer without reports is forgotten.
            self._reports += Counter()
        return _response(request, body, self._etag(request.viewer), lambda: gzip_body(body))

    @property
    def has_fleet(self) -> bool:
        return self._fleet is not None

    async def fleet(self, request: Request) -> Response:
        try:
            read_query(request.query, ())
            view = None if self._fleet is None else await self._fleet.view()
        except BadParameter as error:
            return _bad_parameter(error)
        except FleetError as error:
            return _failure(str(error))
        etag = self._etag(request.viewer, f"fleet-{view.time_wall_s}" if view else "fleet")
        if matches_etag(request.if_none_match, etag):
            return _not_modified(etag)
        body, zipped = await self._fleet_body(view, request.viewer)
        return _response(request, body, etag, lambda: zipped)

    async def fleet_report(self, request: Request) -> Response:
        try:
            by, names = fleet_report_document.read(
                read_query(request.query, fleet_report_document.PARAMETERS), time.time()
            )
            document = (
                fleet_report_document.no_fleet()
                if self._fleet is None
                else await fleet_report_document.document(by, names, request.viewer, self._fleet.month)
            )
        except BadParameter as error:
            return _bad_parameter(error)
        except FleetError as error:
            return _failure(str(error))
        body = encode(document)
        return _response(request, body, self._etag(request.viewer), lambda: gzip_body(body))

    async def _fleet_body(self, view: FleetView | None, viewer: Viewer) -> tuple[bytes, bytes]:
        """Encoded in a thread, once for all viewers that see the same: a large fleet takes as long as a few scrapes."""
        if view is not self._fleet_view:
            self._fleet_view = view
            self._fleet_bodies.clear()
        bodies = self._fleet_bodies.get(viewer)
        if bodies is None:
            bodies = await in_daemon_thread(lambda: _fleet_bodies(view, viewer))
            if view is self._fleet_view and len(self._fleet_bodies) < _MAX_CACHED:
                self._fleet_bodies[viewer] = bodies
        return bodies

    def stream(self, request: Request) -> Response:
        try:
            read_query(request.query, ())
        except BadParameter as error:
            return _bad_parameter(error)
        content_type = "text/event-stream; charset=utf-8"
        return Response(b"", content_type, stream=lambda: self.broadcaster.events(request.viewer))

    def _view(self, viewer: Viewer) -> View | None:
        now = self._latest()
        if now is None:
            return None
        if now.sequence != self._sequence:
            self._sequence = now.sequence
            self._views.clear()
            self._snapshots.clear()
            self._bodies.clear()
        view = self._views.get(viewer)
        if view is None:
            view = self._views[viewer] = view_for(viewer, now, self._turn_log.timeline)
        return view

    def _make(self, resource: Resource, view: View, viewer: Viewer, values: Mapping[str, Value]) -> bytes:
        if resource.name == "snapshot":
            return encode(self.document(viewer))
        return encode(resource.make(view, values))

    def _get_or_make(self, key: tuple[object, ...], make: Callable[[], bytes]) -> bytes:
        body = self._bodies.get(key)
        if body is None:
            body = make()
            if len(self._bodies) < _MAX_CACHED:
                self._bodies[key] = body
        return body

    def _etag(self, viewer: Viewer, version: str = "") -> str:
        scope = "all" if viewer.sees_all else f"{'names' if viewer.sees_names else 'own'}-{viewer.uid}"
        return f'"{self._life}-{version or self._sequence}-{scope}"'


def _fleet_bodies(view: FleetView | None, viewer: Viewer) -> tuple[bytes, bytes]:
    body = encode(fleet_document(view, viewer))
    return body, gzip_body(body)


def _response(request: Request, body: bytes, etag: str, compress: Callable[[], bytes]) -> Response:
    headers = _headers(etag)
    if len(body) >= _WORTH_GZIP_BYTES and accepts_gzip(request.accept_encoding):
        return Response(compress(), _JSON, headers={**headers, "Content-Encoding": "gzip"})
    return Response(body, _JSON, headers=headers)


@cache
def _encode_openapi(version: str) -> bytes:
    """Made when it is first asked for, which is rare: 0.2 MB."""
    return encode(openapi(version))


def _not_modified(etag: str) -> Response:
    return Response(b"", _JSON, 304, _headers(etag))


def _headers(etag: str) -> dict[str, str]:
    return {"ETag": etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}


def _failure(line: str) -> Response:
    """What the document needs cannot be read."""
    return Response(encode({"error": line, "parameter": ""}), _JSON, 502)


_NO_LEDGER = _failure("no ledger is kept; set [ledger] enabled = true")


def _bad_parameter(error: BadParameter) -> Response:
    return Response(encode({"error": error.line, "parameter": error.parameter}), _JSON, 400)
