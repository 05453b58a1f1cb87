"""gpucommons_ledger_*: whether the ledger is written, what waits, and what is missing from it."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.snapshot import Snapshot

WRITING = gauge("gpucommons_ledger_writing", "Result of the last flush of the ledger: 1 if on disk, 0 if it failed.")
DURABLE = gauge("gpucommons_ledger_durable", "Durability of the owners' totals: 1 if they survive a restart, 0 if not.")
LAST_FLUSH = gauge("gpucommons_ledger_last_flush_timestamp_seconds", "Unix time of the last successful flush.")
BACKLOG = gauge("gpucommons_ledger_backlog_seconds", "Usage in memory that is not written yet.")
LOST = counter("gpucommons_ledger_lost_seconds_total", "Usage dropped because it could not be written for an hour.")
FAILURES = counter("gpucommons_ledger_failures_total", "Flushes of the ledger that failed, by reason.", "reason")
GAPS = counter(
    "gpucommons_ledger_gap_seconds_total", "Time not billed to any owner, by the reason it was not observed.", "reason"
)
SIZE = gauge("gpucommons_ledger_file_bytes", "Size of the ledger file.")

CATALOGUE = (WRITING, DURABLE, LAST_FLUSH, BACKLOG, LOST, FAILURES, GAPS, SIZE)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.ledger
    # A node on which no GPU was ever seen keeps no ledger.
    if reading is None or not reading.ledger.begun:
        return
    ledger = reading.ledger
    yield WRITING.value(int(ledger.writing))
    yield DURABLE.value(int(ledger.durable))
    yield LAST_FLUSH.value(ledger.last_flush_wall_s)
    yield BACKLOG.value(ledger.backlog_s)
    yield LOST.value(ledger.lost_s)
    yield FAILURES.of(((reason,), count) for reason, count in ledger.failures.items())
    yield GAPS.of(((reason,), ns / 1e9) for reason, ns in ledger.gap_ns.items())
    yield SIZE.value(ledger.file_bytes)
