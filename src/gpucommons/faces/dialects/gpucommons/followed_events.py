"""gpucommons_followed_event_*: how the agent follows DS01's event log."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.snapshot import Snapshot

LINES = counter("gpucommons_followed_event_lines_total", "Lines read from DS01's event log.")
BAD_LINES = counter(
    "gpucommons_followed_event_bad_lines_total",
    "Lines of DS01's event log that are not valid events, by reason.",
    "reason",
)
BEHIND = gauge("gpucommons_followed_event_behind_bytes", "Bytes of DS01's event log that are not read yet.")
ROTATIONS_LOST = counter(
    "gpucommons_followed_event_rotations_lost_total",
    "Rotations of DS01's event log after which the unread rest was not found.",
)

CATALOGUE = (LINES, BAD_LINES, BEHIND, ROTATIONS_LOST)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    events = snapshot.readings.events
    if events is None:
        return
    yield LINES.value(events.lines)
    yield BAD_LINES.of(((reason,), count) for reason, count in events.bad_lines.items())
    yield BEHIND.value(events.behind_bytes)
    yield ROTATIONS_LOST.value(events.rotations_lost)
