"""History beyond the agent's memory: one reading over time from a Prometheus that scrapes this agent.

Queried only for a range that memory does not cover. The answer is checked as it comes: an unexpected one is an error of
one line, and takes no more memory than a right one.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from gpucommons.base.http_client import get_chunks
from gpucommons.base.result_rows import BrokenRows, ResultRows
from gpucommons.faces.history.history import NODE, NODE_SERIES, Window

_UUID = "UUID"
_PLAIN = re.compile(r"[A-Za-z0-9-]+", re.ASCII)
# Series -> PromQL, with $ for the selector in the braces after each name. A GPU can be scraped twice (main listener and
# drop-in), so take the maximum of equal series. A GPU in MIG mode reports memory by instance only, so sum them.
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
# 4,000 values of 45 characters, more than twice.
_LONGEST_ROW = 400_000
_LEAST_STEP_S = 15.0
# Prometheus takes the last reading of this time. A longer step shows the mean of its readings, as memory does.
_LOOKBACK_S = 300.0
_SERIES = re.compile(r"\w+\{[^}]*\}")


class PrometheusError(Exception):
    """One line for the viewer."""


class TimeGrid(NamedTuple):
    start_s: float
    step_s: float
    length: int


def grid(start_s: float, end_s: float, points: int) -> TimeGrid:
    """A grid that ends at `end_s`, so that the last value is the newest."""
    step_s = max(_LEAST_STEP_S, math.ceil((end_s - start_s) / points))
    length = math.floor((end_s - start_s) / step_s) + 1
    return TimeGrid(end_s - (length - 1) * step_s, step_s, length)


def query(series: str, uuids: Sequence[str], selector: str, step_s: float = _LEAST_STEP_S) -> str | None:
    """PromQL; None where no dialect exposes this series."""
    asked = _GPU_QUERIES.get(series) or _NODE_QUERIES.get(series)
    if asked is None:
        return None
    if step_s > _LOOKBACK_S:
        asked = _SERIES.sub(lambda match: f"avg_over_time({match[0]}[{step_s:.0f}s])", asked)
    if series in _GPU_QUERIES:
        plain = "|".join(uuid for uuid in uuids if _PLAIN.fullmatch(uuid))
        selector = ",".join(filter(None, (selector, f'{_UUID}=~"{plain}"')))
    return asked.replace("$", selector)


class RangeReader:
    """The values of a range query on the grid, by GPU or for the node. `feed` the bytes of its answer, then `end`.

    Rows of other GPUs than those that were asked for are left out. Raises PrometheusError.
    """

    def __init__(self, series: str, uuids: Collection[str], onto: TimeGrid) -> None:
        self._is_of_node = series in NODE_SERIES
        self._uuids = frozenset(uuids)
        self._onto = onto
        self._rows = ResultRows(_LONGEST_ROW)
        self._columns: dict[str, list[float]] = {}

    def feed(self, data: bytes) -> None:
        try:
            for row in self._rows.feed(data):
                self._put(row)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise _not_a_range() from error

    def end(self) -> dict[str, list[float]]:
        try:
            self._rows.end()
        except BrokenRows as error:
            raise _not_a_range() from error
        return self._columns

    def _put(self, row: Any) -> None:
        subject = NODE if self._is_of_node else str(row["metric"][_UUID])
        if subject in self._columns:
            raise PrometheusError(f"Prometheus has several series for {subject}: set history.prometheus_selector")
        if not self._is_of_node and subject not in self._uuids:
            return
        column = self._columns[subject] = [math.nan] * self._onto.length
        for time_s, value in row["values"]:
            place = round((float(time_s) - self._onto.start_s) / self._onto.step_s)
            if 0 <= place < self._onto.length:
                column[place] = float(value)


def _not_a_range() -> PrometheusError:
    return PrometheusError("Prometheus sent an answer that is not a range of values; check history.prometheus_url")


class Prometheus:
    def __init__(self, url: str, selector: str = "") -> None:
        self._url = f"{url.rstrip('/')}/api/v1/query_range"
        self._selector = selector

    async def window(self, series: str, uuids: Sequence[str], start_s: float, end_s: float, points: int) -> Window:
        onto = grid(start_s, end_s, points)
        expression = query(series, uuids, self._selector, onto.step_s)
        if expression is None:
            raise PrometheusError(f"no history of {series} in Prometheus: use a range of 24h at most")
        if series not in NODE_SERIES and not uuids:
            return Window(onto.step_s, onto.start_s, {})
        parameters = {
            "query": expression,
            "start": f"{onto.start_s:.3f}",
            "end": f"{onto.start_s + (onto.length - 1) * onto.step_s:.3f}",
            "step": f"{onto.step_s:g}",
        }
        rows = RangeReader(series, uuids, onto)
        async for chunk in get_chunks(
            self._url, "Prometheus", _failure, parameters=parameters, timeout_s=_TIMEOUT_S, max_bytes=_LONGEST_BYTES
        ):
            rows.feed(chunk)
        return Window(onto.step_s, onto.start_s, rows.end())


def _failure(reason: str, detail: str) -> PrometheusError:
    advice = {"oversize": "use fewer points or a shorter range", "unreachable": "check history.prometheus_url"}
    return PrometheusError(f"{detail}; {advice[reason]}" if reason in advice else detail)
