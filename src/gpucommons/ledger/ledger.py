"""The accounts as the agent sees them: samples in on the event loop, durable totals out. Never blocks."""

from collections.abc import Mapping

from gpucommons.ledger.batch import NS, Moment
from gpucommons.ledger.integrate import Integrator
from gpucommons.ledger.query import Totals
from gpucommons.ledger.writer import LedgerWriter
from gpucommons.model.accounts import Amounts, HoldingQuota, LedgerReading, OwnerKey
from gpucommons.model.usage import UsageSample

# The counters of whoever was not seen for this long end; they go on where they were on their return.
LATELY_S = 3600.0


class Ledger:
    def __init__(
        self,
        writer: LedgerWriter,
        *,
        longest_gap_s: float,
        flush_s: float = 10.0,
        quotas: Mapping[str, HoldingQuota] | None = None,
    ) -> None:
        self._writer = writer
        self._integrator = Integrator(longest_gap_s)
        self._flush_ns = round(flush_s * NS)
        self._flushed_ns: int | None = None
        self._latest: Moment | None = None
        self._quotas = quotas or {}

    def observe(self, sample: UsageSample) -> None:
        """Account for the time since the last sample; hand over to the writer when a flush is due."""
        self._integrator.step(sample)
        self._latest = Moment(sample.monotonic_ns, sample.wall_s)
        if self._flushed_ns is None:
            self._flushed_ns = sample.monotonic_ns
            self._writer.start(self._latest)
        elif sample.monotonic_ns - self._flushed_ns >= self._flush_ns:
            self._flush(self._latest)

    def reading(self) -> LedgerReading:
        state, totals = self._writer.told
        return LedgerReading(state, None if totals is None else self._lately(totals), self._quotas)

    def close(self, timeout_s: float = 2.0) -> bool:
        """Write what is pending. False if the disk did not take it in time."""
        if self._latest is not None:
            self._flush(self._latest)
        return self._writer.close(timeout_s)

    def _flush(self, now: Moment) -> None:
        self._flushed_ns = now.monotonic_ns
        self._writer.submit(self._integrator.take(), now)

    def _lately(self, totals: Mapping[OwnerKey, Totals]) -> dict[OwnerKey, Amounts]:
        earliest_s = self._latest.wall_s - LATELY_S if self._latest else 0.0
        return {key: known.amounts for key, known in totals.items() if known.last_wall_s >= earliest_s}
