"""ds01_user_*: what each user holds, the user's containers, group, CPU time and memory."""

from collections.abc import Iterator

from gpucommons.faces.dialects.ds01.containers import containers_reading
from gpucommons.faces.exposition.families import Family, Point, counter, gauge, summed
from gpucommons.model.allocations import WHOLE_SHARE, AllocationReading
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.identities import account_name

MIG = gauge("ds01_user_mig_allocated", "Slots that a user holds: 1 for a MIG device, all its slots for a GPU.", "user")
GPUS = gauge("ds01_user_gpus_allocated", "Slots of which a user holds at least a part.", "user")
EQUIVALENTS = gauge("ds01_user_gpu_equivalents", "GPU-equivalents that a user holds.", "user")
CONTAINERS = gauge(
    "ds01_user_containers_count", "Containers of a user that DS01 tracks and that may use a GPU.", "user"
)
GROUP = gauge("ds01_user_group_info", "Group of a user; always 1.", "user", "group")
CPU = counter("ds01_user_cpu_usage_seconds_total", "CPU time of a user's slices.", "user", "group", optional=("group",))
MEMORY = gauge(
    "ds01_user_memory_current_bytes", "Current memory of a user's slices.", "user", "group", optional=("group",)
)

CATALOGUE = (MIG, GPUS, EQUIVALENTS, CONTAINERS, GROUP, CPU, MEMORY)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    if (allocations := snapshot.readings.allocations) is not None:
        yield from _held(allocations)
    if (reading := containers_reading(snapshot)) is not None:
        yield CONTAINERS.of(summed(((each.user,), int(each.has_gpu)) for each in reading.containers if each.user))
    users = snapshot.readings.users
    if users is None:
        return
    yield GROUP.of(((user, group), 1) for user, group in users.group_of.items())
    slices = [((each.user, each.group), each) for each in users.slices]
    yield CPU.of((labels, each.cpu_seconds) for labels, each in slices if each.cpu_seconds is not None)
    yield MEMORY.of((labels, each.memory_bytes) for labels, each in slices if each.memory_bytes is not None)


def _held(reading: AllocationReading) -> Iterator[Family]:
    held = [(account_name(each.account), each) for each in reading.allocations if not each.is_access_only]
    # A user who has a container and holds no slot holds 0.
    nothing: list[Point] = [((user,), 0) for user in sorted({each.user for each in reading.containers if each.user})]
    yield MIG.of(summed([*nothing, *(((user,), each.share / WHOLE_SHARE) for user, each in held)]))
    slots = {(user, each.slot.uuid) for user, each in held}
    yield GPUS.of(summed([*nothing, *(((user,), 1.0) for user, _ in sorted(slots))]))
    unknown = {(user,) for user, each in held if each.equivalents is None}
    sizes = [((user,), size) for user, each in held if (size := each.equivalents) is not None]
    yield EQUIVALENTS.of(summed(point for point in (*nothing, *sizes) if point[0] not in unknown))
