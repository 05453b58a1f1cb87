"""ds01_mig_*: MIG devices as slots, and whether each is mapped to an instance id of the dcgm dialect."""

from collections.abc import Iterable, Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.allocations import SlotInfo
from gpucommons.model.gpu import Gpu
from gpucommons.model.snapshot import Snapshot

SLOT = gauge("ds01_mig_slot_info", "Slot that is a MIG device; always 1.", "gpu", "gpu_i_id", "slot", "mig_uuid")
MAPPING = gauge(
    "ds01_mig_mapping_status",
    "Mapping of MIG devices to instance ids of the dcgm dialect: 1 if all are mapped, else 0; absent without MIG.",
    *("mapped", "unmapped"),
)

CATALOGUE = (SLOT, MAPPING)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    allocations, gpus = snapshot.readings.allocations, snapshot.readings.gpus
    if allocations is not None:
        yield SLOT.of((_slot(info), 1) for info in allocations.slots if info.gpu_instance_id is not None)
    if gpus is not None:
        yield from _mapping(gpus.present_gpus())


def _slot(info: SlotInfo) -> tuple[str, ...]:
    return str(info.gpu_index), str(info.gpu_instance_id), info.slot.name, info.slot.uuid


def _mapping(gpus: Iterable[Gpu]) -> Iterator[Family]:
    mapped = unmapped = 0
    for gpu in gpus:
        served = sum(instance.is_measured for instance in gpu.mig)
        mapped += served
        unmapped += len(gpu.mig) - served + gpu.mig_without_id
    if mapped or unmapped:
        yield MAPPING.value(0 if unmapped else 1, str(mapped), str(unmapped))
