"""gpucommons_event_log_writing: whether the agent's own event log can be written."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot

WRITING = gauge("gpucommons_event_log_writing", "State of the agent's event log: 1 if it can be written, 0 if not.")

CATALOGUE = (WRITING,)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.ledger
    if reading is not None and reading.ledger.begun:
        yield WRITING.value(int(reading.event_log_writing))
