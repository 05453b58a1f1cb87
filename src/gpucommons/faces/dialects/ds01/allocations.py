"""ds01_gpu_*, ds01_containers_total, ds01_user_*, ds01_unmanaged_*: who holds what, by slot, container and user."""

from collections.abc import Iterable, Iterator

from gpucommons.faces.exposition.families import Family, Point, gauge
from gpucommons.model.allocations import Access, Allocation, AllocationReading, UnmanagedContainer
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.usage import WHOLE_SHARE
from gpucommons.rules.identities import account_name

ALLOCATED = gauge(
    "ds01_gpu_allocated",
    "1 for each slot that a container, pod or process holds, running or kept for it.",
    "gpu_slot",
    "container",
    "user",
    "interface",
    "profile",
    optional=("profile",),
)
EQUIVALENTS = gauge(
    "ds01_gpu_equivalents",
    "GPU-equivalents held: 1 for a whole GPU, a MIG device's slices over the GPU's; a shared slot is divided.",
    "gpu_slot",
    "user",
    "interface",
    "profile",
    optional=("profile",),
)
CONTAINERS = gauge("ds01_containers_total", "Containers that DS01 tracks.", "status", "interface")
USER_MIG = gauge(
    "ds01_user_mig_allocated", "Slots that a user holds: a MIG device is 1, a whole GPU its slots.", "user"
)
USER_GPUS = gauge("ds01_user_gpus_allocated", "Slots on which a user holds anything.", "user")
USER_EQUIVALENTS = gauge("ds01_user_gpu_equivalents", "GPU-equivalents that a user holds.", "user")
USER_CONTAINERS = gauge(
    "ds01_user_containers_count", "Containers of a user that DS01 tracks and that may use a GPU.", "user"
)
UNMANAGED = gauge(
    "ds01_unmanaged_gpu_container",
    "1 for each container that may use GPUs which were not allocated to it.",
    "container",
    "user",
    "gpu_count",
    "access_type",
    "running",
)
UNMANAGED_COUNT = gauge("ds01_unmanaged_gpu_count", "Containers that may use GPUs which were not allocated to them.")
UNMANAGED_RUNNING = gauge(
    "ds01_unmanaged_gpu_running", "Running containers that may use GPUs which were not allocated to them."
)
UNMANAGED_ALL = gauge("ds01_unmanaged_gpu_all_access", "Containers that may use every GPU without an allocation.")

CATALOGUE = (
    ALLOCATED,
    EQUIVALENTS,
    CONTAINERS,
    USER_MIG,
    USER_GPUS,
    USER_EQUIVALENTS,
    USER_CONTAINERS,
    UNMANAGED,
    UNMANAGED_COUNT,
    UNMANAGED_RUNNING,
    UNMANAGED_ALL,
)

_INTERFACES = ("orchestration", "atomic", "api", "other", "docker")


def collect(snapshot: Snapshot) -> Iterator[Family]:
    readings = snapshot.readings
    if readings.allocations is None:
        return
    yield from _held(readings.allocations)
    # Without anybody to ask for containers there are none known, which is not the same as none.
    if readings.docker is not None or readings.podman is not None or readings.ds01 is not None:
        yield from _containers(readings.allocations)


def _held(reading: AllocationReading) -> Iterator[Family]:
    held = [each for each in reading.allocations if not each.is_access_only]
    yield ALLOCATED.of((labels, 1) for labels in dict.fromkeys(map(_allocated, held)))
    sized = [(each, each.equivalents) for each in held]
    yield EQUIVALENTS.of(_summed((_equivalents(each), size) for each, size in sized if size is not None))
    # Whoever has a container and holds nothing holds 0.
    nothing: list[Point] = [((user,), 0) for user in sorted({each.user for each in reading.containers if each.user})]
    yield USER_MIG.of(
        _summed([*nothing, *(((account_name(each.account),), each.share / WHOLE_SHARE) for each in held)])
    )
    slots = {(account_name(each.account), each.slot.uuid) for each in held}
    yield USER_GPUS.of(_summed([*nothing, *(((user,), 1.0) for user, _ in sorted(slots))]))
    unknown = {(account_name(each.account),) for each, size in sized if size is None}
    sizes = [((account_name(each.account),), size) for each, size in sized if size is not None]
    yield USER_EQUIVALENTS.of(_summed(point for point in (*nothing, *sizes) if point[0] not in unknown))


def _containers(reading: AllocationReading) -> Iterator[Family]:
    none: list[Point] = [((status, each), 0) for status in ("running", "stopped") for each in _INTERFACES]
    counted = ((("running" if each.running else "stopped", each.interface), 1.0) for each in reading.containers)
    yield CONTAINERS.of(_summed([*none, *counted]))
    yield USER_CONTAINERS.of(_summed(((each.user,), int(each.has_gpu)) for each in reading.containers if each.user))
    yield UNMANAGED.of((labels, 1) for labels in dict.fromkeys(map(_unmanaged, reading.unmanaged)))
    yield UNMANAGED_COUNT.value(len(reading.unmanaged))
    yield UNMANAGED_RUNNING.value(sum(each.running for each in reading.unmanaged))
    yield UNMANAGED_ALL.value(sum(each.access is Access.ALL for each in reading.unmanaged))


def _allocated(each: Allocation) -> tuple[str, ...]:
    return each.slot.name, each.workload, account_name(each.account), each.interface, _profile(each)


def _equivalents(each: Allocation) -> tuple[str, ...]:
    return each.slot.name, account_name(each.account), each.interface, _profile(each)


def _profile(each: Allocation) -> str:
    """A name that this node has no slot for may be a GPU's or a MIG device's: it has no profile."""
    return each.profile or ("" if each.slot.slices is None else "full")


def _unmanaged(each: UnmanagedContainer) -> tuple[str, ...]:
    count = "ALL" if each.access is Access.ALL else str(each.gpu_count)
    return each.name, each.user or "unknown", count, each.access.value, "true" if each.running else "false"


def _summed(points: Iterable[Point]) -> Iterable[Point]:
    sums: dict[tuple[str, ...], float] = {}
    for labels, value in points:
        sums[labels] = sums.get(labels, 0) + value
    return sums.items()
