"""The OpenAPI document and the index of the API, both from what the resources declare."""

from collections.abc import Mapping
from typing import NamedTuple

from gpucommons.faces.documents import fleet, fleet_report, history, job, report
from gpucommons.faces.documents.parameters import Parameter
from gpucommons.faces.documents.resources import RESOURCES, SNAPSHOT
from gpucommons.faces.documents.schema import TEXT, Schema, by_key, record
from gpucommons.faces.documents.values import Json

BASE = "/api/v1"
ERROR = record(error=TEXT, parameter=TEXT)
_INDEX = record(
    version=TEXT,
    resources=by_key(record(summary=TEXT, parameters=by_key(TEXT, "name")), "path"),
)
_STREAM = (
    "Server-sent events. `snapshot` carries the document of /snapshot. Each `delta` after it carries what changed: an "
    "object is a change inside that object, a list of one is the new value, an empty list is a removal. `beat` is sent "
    "when nothing else is."
)
_REPORT = "The ledger is read for each request; 502 where it cannot be read."
_FLEET = "Queried at most every 5 s; 502 where Prometheus fails."
_FLEET_REPORT = "Queried at most once a minute for each month; 502 where Prometheus fails."
_HISTORY = "Up to 24 h from memory. Longer ranges come from Prometheus, where one is configured; 502 where it fails."


class _Operation(NamedTuple):
    """One GET of the API. `content` is by media type."""

    path: str
    summary: str
    parameters: tuple[Parameter, ...]
    content: dict[str, object]
    description: str = ""


def _json(schema: Schema) -> dict[str, object]:
    return {"application/json": {"schema": schema}}


_OPERATIONS = (
    _Operation("/", "index of the API", (), _json(_INDEX)),
    *(
        _Operation(f"/{resource.name}", resource.summary, resource.parameters, _json(resource.schema))
        for resource in RESOURCES
    ),
    _Operation("/report", report.SUMMARY, report.PARAMETERS, _json(report.SCHEMA), _REPORT),
    _Operation("/fleet", fleet.SUMMARY, (), _json(fleet.SCHEMA), _FLEET),
    _Operation(
        "/fleet/report", fleet_report.SUMMARY, fleet_report.PARAMETERS, _json(fleet_report.SCHEMA), _FLEET_REPORT
    ),
    _Operation("/job", job.SUMMARY, job.PARAMETERS, _json(job.SCHEMA), _REPORT),
    _Operation("/history", "one reading over time", history.PARAMETERS, _json(history.SCHEMA), _HISTORY),
    _Operation(
        "/stream",
        "all sections, live",
        (),
        {"text/event-stream": {"schema": TEXT, "x-event-data-schema": SNAPSHOT.schema}},
        _STREAM,
    ),
    _Operation("/openapi.json", "OpenAPI description of the API", (), _json({"type": "object"})),
)


def index(version: str) -> Mapping[str, Json]:
    return {
        "version": version,
        "resources": {
            f"{BASE}{operation.path}": {
                "summary": operation.summary,
                "parameters": {parameter.name: parameter.summary for parameter in operation.parameters},
            }
            for operation in _OPERATIONS
        },
    }


def openapi(version: str) -> Mapping[str, Json]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gpucommons",
            "version": version,
            "description": "The GPUs of one node: readings, use by owner, turns and accounts. "
            "Null means no reading; it is never 0.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": BASE}],
        "paths": {operation.path: _get(operation) for operation in _OPERATIONS},
    }


def _get(operation: _Operation) -> Json:
    described: dict[str, object] = {
        "summary": operation.summary,
        "parameters": [_parameter(parameter) for parameter in operation.parameters],
        "responses": {
            "200": {"description": "the document", "content": operation.content},
            "304": {"description": "the document that If-None-Match names is current"},
            "400": {"description": "an invalid parameter, which is named", "content": _json(ERROR)},
            "503": {"description": "no snapshot yet"},
        },
    }
    if operation.description:
        described["description"] = operation.description
    return {"get": described}  # type: ignore[dict-item]


def _parameter(parameter: Parameter) -> dict[str, object]:
    return {
        "name": parameter.name,
        "in": "query",
        "required": False,
        "description": parameter.summary,
        "schema": parameter.schema,
    }
