"""The OpenAPI document, drawn from what the resources declare: it cannot promise what is not served."""

from collections.abc import Iterable, Mapping

from gpucommons.faces.documents import history
from gpucommons.faces.documents.parameters import Parameter
from gpucommons.faces.documents.resources import RESOURCES, SNAPSHOT
from gpucommons.faces.documents.schema import TEXT, Schema, record
from gpucommons.faces.documents.values import Json

BASE = "/api/v1"
ERROR = record(error=TEXT, parameter=TEXT)
_STREAM = (
    "Server-sent events. `snapshot` carries the document of /snapshot; each `delta` after it carries what changed: an "
    "object means look inside, a list of one is the value now, an empty list means gone. `beat` says that all is quiet."
)

_HISTORY = (
    "Up to 24 h from memory. Longer ranges come from Prometheus, where one is configured; 502 where it is not well."
)


def openapi(version: str) -> Mapping[str, Json]:
    paths: dict[str, Json] = {
        f"/{resource.name}": _get(resource.summary, resource.parameters, _json(resource.schema))
        for resource in RESOURCES
    }
    paths["/history"] = _get("one reading over time", history.PARAMETERS, _json(history.SCHEMA), _HISTORY)
    paths["/stream"] = _get(
        "everything, live", (), {"text/event-stream": {"schema": TEXT, "x-event-data-schema": SNAPSHOT}}, _STREAM
    )
    paths["/openapi.json"] = _get("this document", (), _json({"type": "object"}))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gpucommons",
            "version": version,
            "description": "One node's GPUs: what they do, who uses them, whose turn it is and what it cost. "
            "Null means that there is no reading; it is never 0.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": BASE}],
        "paths": paths,
    }


def _json(schema: Schema) -> dict[str, object]:
    return {"application/json": {"schema": schema}}


def _get(summary: str, parameters: Iterable[Parameter], content: dict[str, object], description: str = "") -> Json:
    operation: dict[str, object] = {
        "summary": summary,
        "parameters": [
            {
                "name": parameter.name,
                "in": "query",
                "required": False,
                "description": parameter.summary,
                "schema": parameter.schema,
            }
            for parameter in parameters
        ],
        "responses": {
            "200": {"description": "the answer", "content": content},
            "304": {"description": "what If-None-Match names is still current"},
            "400": {"description": "a parameter is wrong; it is named", "content": _json(ERROR)},
            "503": {"description": "no snapshot yet"},
        },
    }
    if description:
        operation["description"] = description
    return {"get": operation}  # type: ignore[dict-item]
