"""The ds01_* vocabulary of DS01's exporter: slots, containers, events and users.

DS01 manages containers on a shared GPU server. The agent reads its state, its event log and its container labels.
"""

from collections.abc import Iterable, Iterator

from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.exposition.families import Family, Point, counter, gauge, sum_points
from gpucommons.model.allocations import (
    WHOLE_SHARE,
    Access,
    Allocation,
    AllocationReading,
    SlotInfo,
    UnmanagedContainer,
)
from gpucommons.model.gpu import Gpu
from gpucommons.model.names import account_name
from gpucommons.model.snapshot import Snapshot

# ds01_exporter_info: the version of gpucommons.

INFO = gauge("ds01_exporter_info", "Version of the program that serves these metrics; always 1.", "version", "type")

EXPORTER_CATALOGUE = (INFO,)


def collect_exporter(snapshot: Snapshot) -> Iterator[Family]:
    if snapshot.readings.agent is not None:
        yield INFO.value(1, snapshot.readings.agent.version, "gpucommons")


# ds01_state_disk_bytes: the disk of DS01's state directory.

DISK = gauge(
    "ds01_state_disk_bytes",
    "Size of the disk of DS01's state directory; free includes the blocks reserved for root.",
    "type",
)

STATE_CATALOGUE = (DISK,)


def collect_state(snapshot: Snapshot) -> Iterator[Family]:
    state = snapshot.readings.ds01
    if state is not None:
        sizes = (("total", state.disk_total_bytes), ("used", state.disk_used_bytes), ("free", state.disk_free_bytes))
        yield DISK.of(((name,), size) for name, size in sizes if size is not None)


# ds01_gpu_*: whole GPUs as slots, and which container and user hold each slot.

GPU_SLOT = gauge(
    "ds01_gpu_slot_info", "Slot that is a whole GPU without MIG; always 1.", "gpu", "slot", "gpu_uuid", "mig_enabled"
)
ALLOCATED = gauge(
    "ds01_gpu_allocated",
    "Slot that a container, pod or process holds, running or reserved; always 1.",
    *("gpu_slot", "container", "user", "interface", "profile"),
    optional=("profile",),
)
GPU_EQUIVALENTS = gauge(
    "ds01_gpu_equivalents",
    "GPU-equivalents held: 1 for a whole GPU, the fraction of slices for a MIG device, divided if shared.",
    *("gpu_slot", "user", "interface", "profile"),
    optional=("profile",),
)

GPUS_CATALOGUE = (GPU_SLOT, ALLOCATED, GPU_EQUIVALENTS)


def collect_gpus(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.allocations
    if reading is None:
        return
    yield GPU_SLOT.of((_gpu_slot(info), 1) for info in reading.slots if not info.mig_enabled)
    held = [allocation for allocation in reading.allocations if not allocation.is_access_only]
    yield ALLOCATED.of((labels, 1) for labels in dict.fromkeys(map(_allocation_labels, held)))
    sized = ((allocation, allocation.equivalents) for allocation in held)
    yield GPU_EQUIVALENTS.of(
        sum_points((_equivalents(allocation), size) for allocation, size in sized if size is not None)
    )


def _gpu_slot(info: SlotInfo) -> tuple[str, ...]:
    index = str(info.gpu_index)
    return index, index, info.slot.gpu_uuid, "false"


def _allocation_labels(allocation: Allocation) -> tuple[str, ...]:
    return (
        allocation.slot.name,
        allocation.workload,
        account_name(allocation.account),
        allocation.interface,
        _profile(allocation),
    )


def _equivalents(allocation: Allocation) -> tuple[str, ...]:
    return allocation.slot.name, account_name(allocation.account), allocation.interface, _profile(allocation)


def _profile(allocation: Allocation) -> str:
    """Empty for a name without a slot on this node: it may mean a GPU or a MIG device."""
    return allocation.profile or ("" if allocation.slot.slices is None else "full")


# ds01_mig_*: MIG devices as slots, and whether each is mapped to an instance id of the dcgm dialect.

MIG_SLOT = gauge("ds01_mig_slot_info", "Slot that is a MIG device; always 1.", "gpu", "gpu_i_id", "slot", "mig_uuid")
MAPPING = gauge(
    "ds01_mig_mapping_status",
    "Mapping of MIG devices to instance ids of the dcgm dialect: 1 if all are mapped, else 0; absent without MIG.",
    *("mapped", "unmapped"),
)

MIG_CATALOGUE = (MIG_SLOT, MAPPING)


def collect_mig(snapshot: Snapshot) -> Iterator[Family]:
    allocations, gpus = snapshot.readings.allocations, snapshot.readings.gpus
    if allocations is not None:
        yield MIG_SLOT.of((_mig_slot(info), 1) for info in allocations.slots if info.gpu_instance_id is not None)
    if gpus is not None:
        yield from _mapping(gpus.present_gpus())


def _mig_slot(info: SlotInfo) -> tuple[str, ...]:
    return str(info.gpu_index), str(info.gpu_instance_id), info.slot.name, info.slot.uuid


def _mapping(gpus: Iterable[Gpu]) -> Iterator[Family]:
    mapped = unmapped = 0
    for gpu in gpus:
        served = sum(instance.is_measured for instance in gpu.mig)
        mapped += served
        unmapped += len(gpu.mig) - served + gpu.mig_without_id
    if mapped or unmapped:
        yield MAPPING.value(0 if unmapped else 1, str(mapped), str(unmapped))


# ds01_containers_total: the containers that DS01 tracks.

CONTAINERS_CONTAINERS = gauge("ds01_containers_total", "Containers that DS01 tracks.", "status", "interface")

CONTAINERS_CATALOGUE = (CONTAINERS_CONTAINERS,)

_INTERFACES = ("orchestration", "atomic", "api", "other", "docker")


def collect_containers(snapshot: Snapshot) -> Iterator[Family]:
    reading = containers_reading(snapshot)
    if reading is not None:
        none: list[Point] = [((status, interface), 0) for status in ("running", "stopped") for interface in _INTERFACES]
        counted = (
            (("running" if container.running else "stopped", container.interface), 1.0)
            for container in reading.containers
        )
        yield CONTAINERS_CONTAINERS.of(sum_points([*none, *counted]))


def containers_reading(snapshot: Snapshot) -> AllocationReading | None:
    """None without a source of containers: their number is then unknown, not 0."""
    readings = snapshot.readings
    has_source = readings.docker is not None or readings.podman is not None or readings.ds01 is not None
    return readings.allocations if has_source else None


# ds01_unmanaged_*: containers with access to GPUs that were not allocated to them.

CONTAINER = gauge(
    "ds01_unmanaged_gpu_container",
    "Container with access to GPUs that were not allocated to it; always 1.",
    *("container", "user", "gpu_count", "access_type", "running"),
)
COUNT = gauge("ds01_unmanaged_gpu_count", "Containers with access to GPUs that were not allocated to them.")
RUNNING = gauge("ds01_unmanaged_gpu_running", "Running containers with access to GPUs that were not allocated to them.")
ALL_ACCESS = gauge("ds01_unmanaged_gpu_all_access", "Containers with access to every GPU without an allocation.")

UNMANAGED_CATALOGUE = (CONTAINER, COUNT, RUNNING, ALL_ACCESS)


def collect_unmanaged(snapshot: Snapshot) -> Iterator[Family]:
    reading = containers_reading(snapshot)
    if reading is not None:
        unmanaged = reading.unmanaged
        yield CONTAINER.of((labels, 1) for labels in dict.fromkeys(map(_labels, unmanaged)))
        yield COUNT.value(len(unmanaged))
        yield RUNNING.value(sum(container.running for container in unmanaged))
        yield ALL_ACCESS.value(sum(container.access is Access.ALL for container in unmanaged))


def _labels(container: UnmanagedContainer) -> tuple[str, ...]:
    count = "ALL" if container.access is Access.ALL else str(container.gpu_count)
    return (
        container.name,
        container.user or "unknown",
        count,
        container.access.value,
        "true" if container.running else "false",
    )


# ds01_events_*, ds01_lifecycle_events_total: the events of DS01's event log in the last 24 hours.

EVENTS = gauge("ds01_events_24h_total", "Events of a type in a sliding window of 24 hours.", "event_type")
LIFECYCLE = gauge(
    "ds01_lifecycle_events_total",
    "Enforcement events (kills and warnings) in a sliding window of 24 hours; 0 if there were none.",
    "action",
)

EVENTS_CATALOGUE = (EVENTS, LIFECYCLE)

# DS01's panels add these up as enforcements: no other action may be added.
_ACTIONS = {
    "idle_kill": "maintenance.idle_kill",
    "runtime_kill": "maintenance.runtime_kill",
    "oom_kill": "resource.oom_kill",
    "gpu_warning": "alert.gpu_warning",
    "memory_warning": "alert.memory_warning",
    "container_warning": "alert.container_warning",
    "bare_metal_warning": "bare_metal.warning",
}


def collect_events(snapshot: Snapshot) -> Iterator[Family]:
    reading, source = snapshot.readings.events, snapshot.sources.get("events")
    if reading is not None:
        counts = reading.counts_24h
        yield EVENTS.of(((type,), count) for type, count in counts.items())
    elif source is not None and source.absent:
        # DS01 creates the log with its first event, so no log means no events. An unreadable log means unknown.
        counts = {}
    else:
        return
    yield LIFECYCLE.of(((action,), counts.get(type, 0)) for action, type in _ACTIONS.items())


# ds01_user_*: what each user holds, the user's containers, group, CPU time and memory.

MIG = gauge("ds01_user_mig_allocated", "Slots that a user holds: 1 for a MIG device, all its slots for a GPU.", "user")
GPUS = gauge("ds01_user_gpus_allocated", "Slots of which a user holds at least a part.", "user")
USER_EQUIVALENTS = gauge("ds01_user_gpu_equivalents", "GPU-equivalents that a user holds.", "user")
USER_CONTAINERS = gauge(
    "ds01_user_containers_count", "Containers of a user that DS01 tracks and that may use a GPU.", "user"
)
GROUP = gauge("ds01_user_group_info", "Group of a user; always 1.", "user", "group")
CPU = counter("ds01_user_cpu_usage_seconds_total", "CPU time of a user's slices.", "user", "group", optional=("group",))
MEMORY = gauge(
    "ds01_user_memory_current_bytes", "Current memory of a user's slices.", "user", "group", optional=("group",)
)

USERS_CATALOGUE = (MIG, GPUS, USER_EQUIVALENTS, USER_CONTAINERS, GROUP, CPU, MEMORY)


def collect_users(snapshot: Snapshot) -> Iterator[Family]:
    if (allocations := snapshot.readings.allocations) is not None:
        yield from _collect_held(allocations)
    if (reading := containers_reading(snapshot)) is not None:
        yield USER_CONTAINERS.of(
            sum_points(
                ((container.user,), int(container.has_gpu)) for container in reading.containers if container.user
            )
        )
    users = snapshot.readings.users
    if users is None:
        return
    yield GROUP.of(((user, group), 1) for user, group in users.group_of.items())
    slices = [((slice.user, slice.group), slice) for slice in users.slices]
    yield CPU.of((labels, slice.cpu_seconds) for labels, slice in slices if slice.cpu_seconds is not None)
    yield MEMORY.of((labels, slice.memory_bytes) for labels, slice in slices if slice.memory_bytes is not None)


def _collect_held(reading: AllocationReading) -> Iterator[Family]:
    held = [
        (account_name(allocation.account), allocation)
        for allocation in reading.allocations
        if not allocation.is_access_only
    ]
    # A user who has a container and holds no slot holds 0.
    nothing: list[Point] = [
        ((user,), 0) for user in sorted({container.user for container in reading.containers if container.user})
    ]
    yield MIG.of(sum_points([*nothing, *(((user,), allocation.share / WHOLE_SHARE) for user, allocation in held)]))
    slots = {(user, allocation.slot.uuid) for user, allocation in held}
    yield GPUS.of(sum_points([*nothing, *(((user,), 1.0) for user, _ in sorted(slots))]))
    unknown = {(user,) for user, allocation in held if allocation.equivalents is None}
    sizes = [((user,), size) for user, allocation in held if (size := allocation.equivalents) is not None]
    yield USER_EQUIVALENTS.of(sum_points(point for point in (*nothing, *sizes) if point[0] not in unknown))


# ds01_group_members_total: the users of each group.

MEMBERS = gauge("ds01_group_members_total", "Users in a group.", "group")

GROUPS_CATALOGUE = (MEMBERS,)


def collect_groups(snapshot: Snapshot) -> Iterator[Family]:
    users = snapshot.readings.users
    if users is not None:
        yield MEMBERS.of(((group,), len(people)) for group, people in users.members.items())


# ds01_ssh_sessions_*: open SSH sessions. Without a record of sessions the total is 0, as in DS01's exporter.

ACTIVE = gauge("ds01_ssh_sessions_active", "Open SSH sessions of a user.", "user")
TOTAL = gauge("ds01_ssh_sessions_total", "Open SSH sessions of all users.")

SSH_SESSIONS_CATALOGUE = (ACTIVE, TOTAL)


def collect_ssh_sessions(snapshot: Snapshot) -> Iterator[Family]:
    users = snapshot.readings.users
    if users is not None:
        sessions = users.ssh_sessions or {}
        yield ACTIVE.of(((user,), count) for user, count in sessions.items())
        yield TOTAL.value(sum(sessions.values()))


CATALOGUE = (
    *EXPORTER_CATALOGUE,
    *STATE_CATALOGUE,
    *GPUS_CATALOGUE,
    *MIG_CATALOGUE,
    *CONTAINERS_CATALOGUE,
    *UNMANAGED_CATALOGUE,
    *EVENTS_CATALOGUE,
    *USERS_CATALOGUE,
    *GROUPS_CATALOGUE,
    *SSH_SESSIONS_CATALOGUE,
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield from collect_exporter(snapshot)
    yield from collect_state(snapshot)
    yield from collect_gpus(snapshot)
    yield from collect_mig(snapshot)
    yield from collect_containers(snapshot)
    yield from collect_unmanaged(snapshot)
    yield from collect_events(snapshot)
    yield from collect_users(snapshot)
    yield from collect_groups(snapshot)
    yield from collect_ssh_sessions(snapshot)


DS01 = Dialect(
    catalogue=CATALOGUE,
    collect=collect,
    name="ds01",
    port=9101,
    summary="allocations, containers, events and users in the names of DS01's exporter",
)
