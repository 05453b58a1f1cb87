"""ds01_gpu_*: whole GPUs as slots, and which container and user hold each slot."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge, summed
from gpucommons.model.allocations import Allocation, SlotInfo
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.identities import account_name

SLOT = gauge(
    "ds01_gpu_slot_info", "Slot that is a whole GPU without MIG; always 1.", "gpu", "slot", "gpu_uuid", "mig_enabled"
)
ALLOCATED = gauge(
    "ds01_gpu_allocated",
    "Slot that a container, pod or process holds, running or reserved; always 1.",
    *("gpu_slot", "container", "user", "interface", "profile"),
    optional=("profile",),
)
EQUIVALENTS = gauge(
    "ds01_gpu_equivalents",
    "GPU-equivalents held: 1 for a whole GPU, the fraction of slices for a MIG device, divided if shared.",
    *("gpu_slot", "user", "interface", "profile"),
    optional=("profile",),
)

CATALOGUE = (SLOT, ALLOCATED, EQUIVALENTS)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.allocations
    if reading is None:
        return
    yield SLOT.of((_slot(info), 1) for info in reading.slots if not info.mig_enabled)
    held = [each for each in reading.allocations if not each.is_access_only]
    yield ALLOCATED.of((labels, 1) for labels in dict.fromkeys(map(_allocated, held)))
    sized = ((each, each.equivalents) for each in held)
    yield EQUIVALENTS.of(summed((_equivalents(each), size) for each, size in sized if size is not None))


def _slot(info: SlotInfo) -> tuple[str, ...]:
    index = str(info.gpu_index)
    return index, index, info.slot.gpu_uuid, "false"


def _allocated(each: Allocation) -> tuple[str, ...]:
    return each.slot.name, each.workload, account_name(each.account), each.interface, _profile(each)


def _equivalents(each: Allocation) -> tuple[str, ...]:
    return each.slot.name, account_name(each.account), each.interface, _profile(each)


def _profile(each: Allocation) -> str:
    """Empty for a name without a slot on this node: it may mean a GPU or a MIG device."""
    return each.profile or ("" if each.slot.slices is None else "full")
