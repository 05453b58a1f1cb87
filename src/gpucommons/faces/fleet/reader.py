"""Reads the fleet from Prometheus: in a thread of its own, at most once every few seconds for all viewers."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gpucommons.base.http_client import get_chunks
from gpucommons.base.periods import month
from gpucommons.base.threads import in_daemon_thread
from gpucommons.faces.fleet import months, queries
from gpucommons.faces.fleet.queries import FleetAnswers, FleetError, Sample, SampleStore, VectorReader
from gpucommons.faces.fleet.view import fleet_view, silent_targets
from gpucommons.model.fleet import FleetMonth, FleetView

_FRESH_S = 5.0
# A newer view is waited for so long; then the last one is served, if its reading began at most so long ago. It has its
# time. A reading of 1,000 nodes takes seconds.
_PATIENCE_S = 0.25
_MAX_AGE_S = 15.0
# The recorded series of the accounts have a value every 4 minutes.
_FRESH_MONTH_S = 60.0
_MAX_MONTHS = 24
_TIMEOUT_S = 10.0
_MAX_BYTES = 64 * 2**20
# What a job on 1,000 nodes with 8 GPUs has is 29,000 samples.
_MAX_ASKED = 50_000
_PASSWORD = re.compile(r"//[^/@]*@")


class FleetSource(NamedTuple):
    """`url` is that of a Prometheus, or of a program with its API. `page_pattern` is the setting `fleet.page_url`."""

    url: str
    selector: str
    page_pattern: str
    timeout_s: float = _TIMEOUT_S

    async def read(self) -> FleetView:
        """Raises FleetError."""
        select, store = self.selector, SampleStore()
        states, seen, down, *rows = await asyncio.gather(
            self._query(queries.states_query(select), queries.STATE_LABELS, store),
            self._query(queries.seen_query(select), queries.TARGET_LABELS, store),
            self._query(queries.down_query(select), queries.TARGET_LABELS, store),
            *(
                self._query(queries.reading_query(metric, select), labels, store)
                for metric, labels in queries.READINGS.items()
            ),
        )
        readings = dict(zip(queries.READINGS, rows, strict=True))
        answers = FleetAnswers(time.time(), readings, states, seen, down, selected=bool(select))
        silent = silent_targets(answers)
        if silent:
            # Only then: reading an hour of every node's series each time would be a load.
            remembered_states, remembered_gpus = await asyncio.gather(
                self._query_remembered(queries.SLOT_STATE, queries.STATE_LABELS, silent, store),
                self._query_remembered(queries.GPU_INFO, queries.READINGS[queries.GPU_INFO], silent, store),
            )
            answers = answers._replace(remembered_states=remembered_states, remembered_gpus=remembered_gpus)
        return fleet_view(answers, self.page_pattern)

    async def read_month(self, name: str, now_s: float) -> FleetMonth:
        """What was billed on all nodes in this month. Raises FleetError, and ValueError for what is not a month."""
        time_s = months.query_time(month(name, now_s, None), now_s)
        store = SampleStore()
        answers = await asyncio.gather(
            *(
                self._query(months.month_query(quantity, name), months.LABELS, store, time_s)
                for quantity in months.QUANTITIES
            )
        )
        return months.fleet_month(name, now_s, dict(zip(months.QUANTITIES, answers, strict=True)))

    async def ask_all(self, expressions: Mapping[str, str], labels: Sequence[str]) -> dict[str, list[Sample]]:
        """The answers to instant queries, with these labels, by the same names. Raises FleetError."""
        store = SampleStore(_MAX_ASKED)
        return {name: await self._query(expression, labels, store) for name, expression in expressions.items()}

    async def _query_remembered(
        self, metric: str, labels: Sequence[str], silent: Sequence[str], store: SampleStore
    ) -> list[Sample]:
        return await self._query(queries.remembered_query(metric, self.selector, silent), labels, store)

    async def _query(
        self, expression: str, labels: Sequence[str], store: SampleStore, time_s: float | None = None
    ) -> list[Sample]:
        """At `time_s`, or now."""
        rows = VectorReader(labels, store)
        at = {} if time_s is None else {"time": f"{time_s:.3f}"}
        async for chunk in get_chunks(
            f"{self.url.rstrip('/')}/api/v1/query",
            "Prometheus",
            self._failure,
            parameters={"query": expression, **at},
            timeout_s=self.timeout_s,
            max_bytes=_MAX_BYTES,
        ):
            rows.feed(chunk)
        return rows.end()

    def _failure(self, reason: str, detail: str) -> FleetError:
        server = f"Prometheus at {_without_password(self.url)}"
        if reason == "unreachable":
            return FleetError(f"{server} does not answer: {detail.rpartition(': ')[2]}; check fleet.prometheus_url")
        if reason == "timeout":
            return FleetError(f"{server} does not answer within {self.timeout_s:g} s; check its load")
        return FleetError(f"{server}: {detail}")


class FleetReader:
    """The newest view, and the accounts of months.

    A failure is kept for as long as a view, so that many viewers do not repeat it.
    """

    def __init__(self, source: FleetSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._begun_s = 0.0
        self._reading: asyncio.Task[FleetView] | None = None
        # The view before the one that is read now, and when its reading began.
        self._last: tuple[float, FleetView] | None = None
        self._months: dict[str, tuple[float, asyncio.Task[FleetMonth]]] = {}

    async def view(self) -> FleetView:
        """Raises FleetError."""
        if self._reading is None or (self._reading.done() and self._clock() - self._begun_s >= _FRESH_S):
            if self._reading is not None:
                failed = self._reading.cancelled() or self._reading.exception() is not None
                self._last = None if failed else (self._begun_s, self._reading.result())
            self._begun_s = self._clock()
            self._reading = asyncio.create_task(in_daemon_thread(self._read), name="fleet")
            self._reading.add_done_callback(_retrieve_failure)
        if self._last is not None and self._clock() - self._last[0] < _MAX_AGE_S:
            done, _ = await asyncio.wait([self._reading], timeout=_PATIENCE_S)
            if not done:
                return self._last[1]
        # A viewer that leaves does not end the reading for the others.
        return await asyncio.shield(self._reading)

    async def month(self, name: str) -> FleetMonth:
        """Raises FleetError, and ValueError for what is not a month."""
        begun_s, reading = self._months.get(name, (0.0, None))
        if reading is None or (reading.done() and self._clock() - begun_s >= _FRESH_MONTH_S):
            while len(self._months) >= _MAX_MONTHS:
                del self._months[next(iter(self._months))]
            reading = asyncio.create_task(in_daemon_thread(lambda: self._read_month(name)), name="fleet-month")
            reading.add_done_callback(_retrieve_failure)
            self._months[name] = self._clock(), reading
        return await asyncio.shield(reading)

    def _read_month(self, name: str) -> FleetMonth:
        return asyncio.run(self._source.read_month(name, time.time()))

    def _read(self) -> FleetView:
        return asyncio.run(self._source.read())


def _retrieve_failure(task: "asyncio.Task[FleetView] | asyncio.Task[FleetMonth]") -> None:
    """The failure is reported to the viewers; without one it needs no line in the log."""
    if not task.cancelled():
        task.exception()


def _without_password(url: str) -> str:
    return _PASSWORD.sub("//", url)
