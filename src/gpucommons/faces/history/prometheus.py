"""Longer ago than memory reaches: one reading over time from a Prometheus that scrapes this agent.

Asked only when somebody looks at such a range; never in the way of anything else. What it answers is
checked: whatever is not what was asked for is one clear line.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import aiohttp

from gpucommons.faces.history.history import NODE, NODE_SERIES, Window

_UUID = "UUID"
_PLAIN = re.compile(r"[A-Za-z0-9-]+", re.ASCII)
# Our series -> PromQL, where $ stands for the selector. A GPU may be scraped by two ways (our port and a drop-in):
# the greatest of the equal. Of a GPU that is split by MIG only the instances tell their memory: their sum.
_NODE_QUERIES: Mapping[str, str] = {
    "cpu_utilization_ratio": "node_cpu_utilization_ratio{$}",
    "memory_used_ratio": "1 - node_memory_available_bytes{$} / node_memory_total_bytes{$}",
    "cpu_pressure_percent": "node_cpu_pressure_avg10{$}",
    "memory_pressure_percent": "node_memory_pressure_avg10{$}",
    "health_score": "node_health_score{$}",
}
_GPU_QUERIES: Mapping[str, str] = {
    "gpu_utilization_ratio": 'max by (UUID) (DCGM_FI_DEV_GPU_UTIL{$,GPU_I_ID=""}) / 100',
    "gpu_sm_active_ratio": 'max by (UUID) (DCGM_FI_PROF_SM_ACTIVE{$,GPU_I_ID=""})',
    "gpu_memory_used_bytes": "sum by (UUID) (max by (UUID, GPU_I_ID) (DCGM_FI_DEV_FB_USED{$})) * 1048576",
    "gpu_power_watts": 'max by (UUID) (DCGM_FI_DEV_POWER_USAGE{$,GPU_I_ID=""})',
    "gpu_temperature_celsius": 'max by (UUID) (DCGM_FI_DEV_GPU_TEMP{$,GPU_I_ID=""})',
    "gpu_clock_sm_mhz": 'max by (UUID) (DCGM_FI_DEV_SM_CLOCK{$,GPU_I_ID=""})',
}
_TIMEOUT_S = 10.0
_LONGEST_BYTES = 8 * 2**20
_LEAST_STEP_S = 15.0


class PrometheusError(Exception):
    """One line for whoever asked."""


@dataclass(frozen=True, slots=True)
class TimeGrid:
    start_s: float
    step_s: float
    length: int


def grid(start_s: float, end_s: float, points: int) -> TimeGrid:
    """It ends where it was asked to end: the last value is the newest there is."""
    step_s = max(_LEAST_STEP_S, math.ceil((end_s - start_s) / points))
    length = math.floor((end_s - start_s) / step_s) + 1
    return TimeGrid(end_s - (length - 1) * step_s, step_s, length)


def query(series: str, uuids: Sequence[str], selector: str) -> str | None:
    """PromQL; None where no dialect names this reading."""
    if series in _GPU_QUERIES:
        plain = "|".join(uuid for uuid in uuids if _PLAIN.fullmatch(uuid))
        matchers = ",".join(filter(None, (selector, f'{_UUID}=~"{plain}"')))
        return _GPU_QUERIES[series].replace("$", matchers)
    return _NODE_QUERIES[series].replace("$", selector) if series in _NODE_QUERIES else None


def columns(answer: object, series: str, onto: TimeGrid) -> dict[str, list[float]]:
    """The values of a range answer on the grid that was asked for. Raises PrometheusError."""
    try:
        rows = answer["data"]["result"]  # type: ignore[index]
        found: dict[str, list[float]] = {}
        for row in rows:
            subject = NODE if series in NODE_SERIES else str(row["metric"][_UUID])
            if subject in found:
                raise PrometheusError(
                    f"Prometheus has several series for {subject}; narrow them by history.prometheus_selector"
                )
            column = found[subject] = [math.nan] * onto.length
            for time_s, value in row["values"]:
                place = round((float(time_s) - onto.start_s) / onto.step_s)
                if 0 <= place < onto.length:
                    column[place] = float(value)
    except (KeyError, TypeError, ValueError) as error:
        raise PrometheusError("Prometheus answered something that is no range of values") from error
    return found


class Prometheus:
    def __init__(self, url: str, selector: str = "") -> None:
        self._url = f"{url.rstrip('/')}/api/v1/query_range"
        self._selector = selector

    async def window(self, series: str, uuids: Sequence[str], start_s: float, end_s: float, points: int) -> Window:
        onto = grid(start_s, end_s, points)
        expression = query(series, uuids, self._selector)
        if expression is None:
            raise PrometheusError(f"{series} is kept in memory only; ask for 24h at most")
        if series not in NODE_SERIES and not uuids:
            return Window(onto.step_s, onto.start_s, {})
        asked = {
            "query": expression,
            "start": f"{onto.start_s:.3f}",
            "end": f"{onto.start_s + (onto.length - 1) * onto.step_s:.3f}",
            "step": f"{onto.step_s:g}",
        }
        return Window(onto.step_s, onto.start_s, columns(await self._ask(asked), series, onto))

    async def _ask(self, asked: Mapping[str, str]) -> object:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(self._url, params=asked, allow_redirects=False) as answer,
            ):
                body = await _whole(answer.content)
                if answer.status != 200:
                    raise PrometheusError(f"Prometheus refused: {_reason(body) or f'status {answer.status}'}")
                return json.loads(body)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise PrometheusError(
                f"Prometheus does not answer ({type(error).__name__}); check history.prometheus_url"
            ) from error
        except ValueError as error:
            raise PrometheusError("Prometheus answered something that is no JSON") from error


async def _whole(content: aiohttp.StreamReader) -> bytes:
    pieces, size = [], 0
    async for piece in content.iter_chunked(2**16):
        pieces.append(piece)
        size += len(piece)
        if size > _LONGEST_BYTES:
            raise PrometheusError("Prometheus answered more than can be shown; ask for fewer points")
    return b"".join(pieces)


def _reason(body: bytes) -> str:
    with suppress(ValueError, TypeError, KeyError):
        return str(json.loads(body)["error"])[:200]
    return ""
