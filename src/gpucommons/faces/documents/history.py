"""One reading over time, of the node or of every GPU: from memory, or from Prometheus for longer ranges.

A document is encoded column by column, so that a long one does not delay other requests.
"""

import asyncio
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpucommons.faces.documents.parameters import BadParameter, Parameter, Value, text, whole, word
from gpucommons.faces.documents.schema import INTEGER, NUMBER, Record, Schema, by_key, list_of, one_of, or_null, record
from gpucommons.faces.documents.values import Json, encode
from gpucommons.faces.documents.view import ENVELOPE, View
from gpucommons.faces.history.history import COARSE_SPAN_S, FINE_SPAN_S, NODE, NODE_SERIES, SERIES, History, Window
from gpucommons.faces.history.prometheus import Prometheus

_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RANGE = re.compile(r"([1-9][0-9]{0,7})([smhd])", re.ASCII)
_LONGEST_S = 366 * 86400
_SIGNIFICANT = 6


def _read_range(given: str) -> Value:
    match = _RANGE.fullmatch(given)
    if match is None:
        raise ValueError(f"invalid range {given[:64]!r}: use a length such as 15m, 1h, 24h or 7d")
    seconds = int(match[1]) * _UNIT_S[match[2]]
    if seconds > _LONGEST_S:
        raise ValueError("expected at most 366d")
    return seconds


PARAMETERS: tuple[Parameter, ...] = (
    word("series", "which reading", SERIES),
    Parameter(
        "range",
        "length of the range before its end: 15m, 1h, 24h, 7d",
        {"type": "string", "pattern": f"^{_RANGE.pattern}$"},
        _read_range,
    ),
    whole("end_unix_s", "end of the range; default: now", 0, 10**11),
    text("gpu", "only this GPU: its index or UUID"),
    whole("points", "number of values per column at most", 10, 4000),
)


class HistoryQuery(NamedTuple):
    series: str
    range_s: float
    points: int
    end_wall_s: float | None
    gpu_uuid: str | None


class _Answer(NamedTuple):
    """What is known before the values are encoded. `beyond`: Prometheus has what is older."""

    query: HistoryQuery
    source: str
    window: Window
    history: History
    beyond: bool


_KEPT = Record[_Answer](
    fine_step_s=(NUMBER, lambda answer: answer.history.fine_step_s),
    fine_span_s=(NUMBER, lambda answer: FINE_SPAN_S),
    coarse_step_s=(NUMBER, lambda answer: answer.history.coarse_step_s),
    coarse_span_s=(NUMBER, lambda answer: COARSE_SPAN_S),
    bytes=(INTEGER, lambda answer: answer.history.memory_bytes),
    beyond=(or_null(one_of("prometheus")), lambda answer: "prometheus" if answer.beyond else None),
)
_HEAD = Record[_Answer](
    series=(one_of(*SERIES), lambda answer: answer.query.series),
    source=(one_of("memory", "prometheus"), lambda answer: answer.source),
    step_s=(NUMBER, lambda answer: answer.window.step_s),
    start_unix_s=(NUMBER, lambda answer: round(answer.window.start_wall_s, 3)),
    kept=(_KEPT.schema, _KEPT.build),
)
SCHEMA: Schema = record(
    **ENVELOPE,
    **{name: schema for name, (schema, _) in _HEAD.fields.items()},
    values=by_key(list_of(or_null(NUMBER)), "UUID of the GPU, or node"),
)


def read(view: View, given: Mapping[str, Value]) -> HistoryQuery:
    series = str(given.get("series", "gpu_utilization_ratio"))
    if "gpu" in given and series in NODE_SERIES:
        raise BadParameter("gpu", f"{series} is a reading of the node and not of a GPU")
    end = given.get("end_unix_s")
    return HistoryQuery(
        series,
        float(given.get("range", 3600)),
        int(given.get("points", 720)),
        None if end is None else float(end),
        view.gpu_uuid(str(given["gpu"])) if "gpu" in given else None,
    )


async def answer(view: View, query: HistoryQuery, history: History, prometheus: Prometheus | None) -> bytes:
    """Raises BadParameter for a range that is not kept, and PrometheusError if Prometheus fails."""
    end_s = view.snapshot.wall_s if query.end_wall_s is None else query.end_wall_s
    if history.covers(end_s - query.range_s):
        source, window = "memory", history.window(query.series, query.range_s, query.points, query.end_wall_s)
    elif prometheus is None:
        kept = f"{COARSE_SPAN_S / 3600:g} h"
        raise BadParameter(
            "range" if query.end_wall_s is None else "end_unix_s",
            f"the agent keeps {kept} in memory; for longer ranges, set history.prometheus_url",
        )
    else:
        uuids = [uuid for uuid in history.subjects if uuid != NODE]
        source = "prometheus"
        window = await prometheus.window(query.series, uuids, end_s - query.range_s, end_s, query.points)
    head = {
        **view.envelope(),
        **_HEAD.build(_Answer(query, source, window, history, beyond=prometheus is not None)),
    }
    return await _encode(head, window, query.gpu_uuid)


async def _encode(head: Mapping[str, Json], window: Window, only_uuid: str | None) -> bytes:
    columns = []
    for subject, values in window.columns.items():
        if only_uuid in (None, subject):
            columns.append(f"{json.dumps(subject)}:[{_numbers(values)}]")
            await asyncio.sleep(0)
    return b'%s,"values":{%s}}' % (encode(head)[:-1], ",".join(columns).encode())


def _numbers(values: Sequence[float]) -> str:
    # The stored values have single precision: about seven digits.
    return ",".join("null" if math.isnan(value) else f"{value:.{_SIGNIFICANT}g}" for value in values)
