"""gpucommons_allocation*: every allocation with its state."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.allocations import WHOLE_SHARE, Allocation, AllocationState
from gpucommons.model.snapshot import Snapshot

_WORKLOAD = ("slot", "uuid", "workload", "kind", "user", "owner", "interface", "managed")

SHARE = gauge(
    "gpucommons_allocation_share_ratio",
    "Share of a slot that a workload is billed for, 0 to 1; 0 if it only reserves a slot that another workload uses.",
    *_WORKLOAD,
    optional=("user",),
)
RUNNING = gauge(
    "gpucommons_allocation_running",
    "State of an allocation: 1 if its workload runs, 0 if the slot is only reserved for it.",
    *_WORKLOAD,
    optional=("user",),
)
ACTIVE = gauge(
    "gpucommons_allocation_active",
    "Activity of an allocation: 1 if its workload uses the GPU, 0 if not; absent if unknown.",
    *_WORKLOAD,
    optional=("user",),
)
COMPLETE = gauge(
    "gpucommons_allocations_complete",
    "Completeness of the allocations: 0 while Docker, Podman or the kubelet stopped answering, else 1.",
)

CATALOGUE = (SHARE, RUNNING, ACTIVE, COMPLETE)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.allocations
    if reading is not None:
        rows = {_labels(each): each for each in reading.allocations if not each.is_access_only}
        yield SHARE.of((labels, each.share / WHOLE_SHARE) for labels, each in rows.items())
        yield RUNNING.of((labels, int(each.state is not AllocationState.HELD)) for labels, each in rows.items())
        yield ACTIVE.of((labels, int(each.active)) for labels, each in rows.items() if each.active is not None)
        yield COMPLETE.value(int(reading.complete))


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
