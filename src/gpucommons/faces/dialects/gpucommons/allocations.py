"""gpucommons_allocation_*, _event_log_*: every allocation with its state, and how the event log is followed."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, counter, gauge
from gpucommons.model.allocations import Allocation, AllocationState
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.usage import WHOLE_SHARE

_WORKLOAD = ("slot", "uuid", "workload", "kind", "user", "owner", "interface", "managed")

SHARE = gauge(
    "gpucommons_allocation_share_ratio",
    "What part of a slot a workload is billed for, 0 to 1; 0 if the slot is kept for it and another runs there.",
    *_WORKLOAD,
    optional=("user",),
)
RUNNING = gauge(
    "gpucommons_allocation_running",
    "1 if the workload runs, 0 if the slot is only kept for it.",
    *_WORKLOAD,
    optional=("user",),
)
ACTIVE = gauge(
    "gpucommons_allocation_active",
    "1 if the workload works on the GPU, 0 if it does not; absent where that is not known.",
    *_WORKLOAD,
    optional=("user",),
)
COMPLETE = gauge(
    "gpucommons_allocations_complete",
    "0 while somebody who knows of holders (Docker, the kubelet) did answer before and does not now.",
)
LINES = counter("gpucommons_followed_event_lines_total", "Lines read of DS01's event log.")
BAD_LINES = counter("gpucommons_followed_event_bad_lines_total", "Lines of it that are no events, by reason.", "reason")
BEHIND = gauge("gpucommons_followed_event_behind_bytes", "What of DS01's event log is not read yet.")
ROTATIONS_LOST = counter(
    "gpucommons_followed_event_rotations_lost_total", "Rotations of it whose unread rest was not found."
)

CATALOGUE = (SHARE, RUNNING, ACTIVE, COMPLETE, LINES, BAD_LINES, BEHIND, ROTATIONS_LOST)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.allocations
    if reading is not None:
        rows = {_labels(each): each for each in reading.allocations if not each.is_access_only}
        yield SHARE.of((labels, each.share / WHOLE_SHARE) for labels, each in rows.items())
        yield RUNNING.of((labels, int(each.state is not AllocationState.HELD)) for labels, each in rows.items())
        yield ACTIVE.of((labels, int(each.active)) for labels, each in rows.items() if each.active is not None)
        yield COMPLETE.value(int(reading.complete))
    events = snapshot.readings.events
    if events is not None:
        yield LINES.value(events.lines)
        yield BAD_LINES.of(((reason,), count) for reason, count in events.bad_lines.items())
        yield BEHIND.value(events.behind_bytes)
        yield ROTATIONS_LOST.value(events.rotations_lost)


def _labels(each: Allocation) -> tuple[str, ...]:
    return (
        each.slot.name,
        each.slot.uuid,
        each.workload,
        each.kind.value,
        each.account.user,
        each.account.owner,
        each.interface,
        "true" if each.managed else "false",
    )
