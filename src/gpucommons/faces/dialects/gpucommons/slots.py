"""gpucommons_slot_* and gpucommons_allocation_*: the holders and the state of each slot, quotas, and DS01's events."""

from collections.abc import Callable, Iterator, Mapping

from gpucommons.faces.exposition.families import Family, Metric, counter, gauge, sum_points
from gpucommons.model.allocations import WHOLE_SHARE, Allocation, AllocationState, SlotStatus
from gpucommons.model.cost import quota_states
from gpucommons.model.gpu import Gpu
from gpucommons.model.names import account_name
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.workloads import ContainerUsage

# gpucommons_container_*: CPU time and host memory of containers.

_LABELS = ("container", "runtime")

CPU = counter("gpucommons_container_cpu_seconds_total", "CPU time of a running container.", *_LABELS)
CONTAINER_MEMORY = gauge(
    "gpucommons_container_memory_bytes", "Memory of a running container without reclaimable file cache.", *_LABELS
)
LIMIT = gauge(
    "gpucommons_container_memory_limit_bytes", "Memory limit of a running container; absent without a limit.", *_LABELS
)

CONTAINERS_CATALOGUE = (CPU, CONTAINER_MEMORY, LIMIT)


def collect_containers(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.container_usage
    if reading is None:
        return
    rows = reading.by_id.values()

    def family(metric: Metric, value: Callable[[ContainerUsage], float | None]) -> Family:
        numbers = ((row, value(row)) for row in rows)
        return metric.of(((row.name, row.runtime), number) for row, number in numbers if number is not None)

    yield family(CPU, lambda row: row.cpu_seconds)
    yield family(CONTAINER_MEMORY, lambda row: row.memory_bytes)
    yield family(LIMIT, lambda row: row.memory_limit_bytes)


# gpucommons_allocation*: every allocation with its state.

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

ALLOCATIONS_CATALOGUE = (SHARE, RUNNING, ACTIVE, COMPLETE)


def collect_allocations(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.allocations
    if reading is not None:
        rows = {_labels(allocation): allocation for allocation in reading.allocations if not allocation.is_access_only}
        yield SHARE.of((labels, allocation.share / WHOLE_SHARE) for labels, allocation in rows.items())
        yield RUNNING.of(
            (labels, int(allocation.state is not AllocationState.HELD)) for labels, allocation in rows.items()
        )
        yield ACTIVE.of(
            (labels, int(allocation.active)) for labels, allocation in rows.items() if allocation.active is not None
        )
        yield COMPLETE.value(int(reading.complete))


def _labels(allocation: Allocation) -> tuple[str, ...]:
    return (
        allocation.slot.name,
        allocation.slot.uuid,
        allocation.workload,
        allocation.kind.value,
        allocation.account.user,
        allocation.account.owner,
        allocation.interface,
        "true" if allocation.managed else "false",
    )


# gpucommons_slot_*: the state of each slot, its holders, and what it uses. The view of a fleet is made from these.

_SLOT = ("slot", "uuid")

STATE = gauge(
    "gpucommons_slot_state",
    "State of a slot (free, held_idle, busy, reserved, lost or unknown), as a label; always 1.",
    *_SLOT,
    "gpu",
    "gpu_uuid",
    "profile",
    "state",
    optional=("profile",),
)
HOLDER = gauge(
    "gpucommons_slot_holder_share_ratio",
    "Share of a slot that a user or pod is billed for, 0 to 1.",
    *_SLOT,
    "holder",
)
SINCE = gauge(
    "gpucommons_slot_since_timestamp_seconds",
    "Unix time at which a slot was taken, freed or lost; absent if that was before the agent started.",
    *_SLOT,
)
IDLE = gauge(
    "gpucommons_slot_idle_seconds", "Time for which the holders of a slot have not used it; absent if they do.", *_SLOT
)
UTILIZATION = gauge(
    "gpucommons_slot_utilization_ratio",
    "Share of time in which a slot was busy, 0 to 1: of a MIG device, the activity of its GPU instance.",
    *_SLOT,
)
SLOT_MEMORY = gauge("gpucommons_slot_memory_bytes", "Memory of a slot, total and free.", *_SLOT, "which")

SLOTS_CATALOGUE = (STATE, HOLDER, SINCE, IDLE, UTILIZATION, SLOT_MEMORY)


def collect_slots(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.slots
    if reading is None:
        return
    slots = [((status.slot.name, status.slot.uuid), status) for status in reading.slots]
    yield STATE.of(((*labels, *_state(status)), 1) for labels, status in slots)
    yield HOLDER.of(
        sum_points(
            ((*labels, account_name(holder.account)), holder.share / WHOLE_SHARE)
            for labels, status in slots
            for holder in status.holders
        )
    )
    yield SINCE.of((labels, status.since_wall_s) for labels, status in slots if status.since_wall_s is not None)
    yield IDLE.of((labels, status.idle_s) for labels, status in slots if status.idle_s is not None)
    busy = _utilization(snapshot.readings.gpus.gpus if snapshot.readings.gpus else ())
    yield UTILIZATION.of((labels, ratio) for labels, _ in slots if (ratio := busy.get(labels[1])) is not None)
    yield SLOT_MEMORY.of(
        ((*labels, which), size) for labels, status in slots for which, size in _memory(status) if size is not None
    )


def _state(status: SlotStatus) -> tuple[str, str, str, str]:
    return str(status.gpu_index), status.slot.gpu_uuid, status.profile, status.state.value


def _memory(status: SlotStatus) -> tuple[tuple[str, int | None], ...]:
    return ("total", status.memory_total_bytes), ("free", status.memory_free_bytes)


def _utilization(gpus: tuple[Gpu, ...]) -> Mapping[str, float | None]:
    """By the UUID of the slot. None where it was not read."""
    ratios: dict[str, float | None] = {}
    for gpu in gpus:
        percent = gpu.readings.utilization_percent
        ratios[gpu.identity.uuid] = None if percent is None else percent / 100
        ratios.update((mig.uuid, None if mig.gpm is None else mig.gpm.graphics_ratio) for mig in gpu.mig)
    return ratios


# gpucommons_followed_event_*: how the agent follows DS01's event log.

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

FOLLOWED_EVENTS_CATALOGUE = (LINES, BAD_LINES, BEHIND, ROTATIONS_LOST)


def collect_followed_events(snapshot: Snapshot) -> Iterator[Family]:
    events = snapshot.readings.events
    if events is None:
        return
    yield LINES.value(events.lines)
    yield BAD_LINES.of(((reason,), count) for reason, count in events.bad_lines.items())
    yield BEHIND.value(events.behind_bytes)
    yield ROTATIONS_LOST.value(events.rotations_lost)


# gpucommons_quota_*: each user's quota, and what the user holds of it.

QUOTA = gauge("gpucommons_quota_gpu_equivalents", "Quota of a user in GPU-equivalents.", "user")
USED = gauge("gpucommons_quota_used_gpu_equivalents", "GPU-equivalents that a user with a quota holds.", "user")
EXCEEDED = gauge("gpucommons_quota_exceeded", "State of a user's quota: 1 if exceeded, 0 if not.", "user")

QUOTAS_CATALOGUE = (QUOTA, USED, EXCEEDED)


def collect_quotas(snapshot: Snapshot) -> Iterator[Family]:
    ledger = snapshot.readings.ledger
    if ledger is None:
        return
    states = quota_states(ledger.quotas, snapshot.readings.allocations)
    yield QUOTA.of(((state.user,), state.limit) for state in states)
    yield USED.of(((state.user,), state.used) for state in states if state.used is not None)
    yield EXCEEDED.of(((state.user,), int(state.exceeded)) for state in states if state.exceeded is not None)


CATALOGUE = (
    *CONTAINERS_CATALOGUE,
    *ALLOCATIONS_CATALOGUE,
    *SLOTS_CATALOGUE,
    *FOLLOWED_EVENTS_CATALOGUE,
    *QUOTAS_CATALOGUE,
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield from collect_containers(snapshot)
    yield from collect_allocations(snapshot)
    yield from collect_slots(snapshot)
    yield from collect_followed_events(snapshot)
    yield from collect_quotas(snapshot)
