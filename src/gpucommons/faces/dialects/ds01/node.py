"""ds01_exporter_info, ds01_state_disk_bytes, ds01_*_slot_info, ds01_mig_mapping_status: exporter, disk and slots."""

from collections.abc import Iterable, Iterator

from gpucommons import __version__
from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.allocations import SlotInfo
from gpucommons.model.gpu import Gpu
from gpucommons.model.snapshot import Snapshot

INFO = gauge("ds01_exporter_info", "1; the version of what serves these.", "version", "type")
DISK = gauge(
    "ds01_state_disk_bytes",
    "Size of the disk that DS01's state directory lies on; free includes the blocks reserved for root.",
    "type",
)
GPU_SLOT = gauge(
    "ds01_gpu_slot_info", "Whole GPUs as slots: 1 for each GPU without MIG.", "gpu", "slot", "gpu_uuid", "mig_enabled"
)
MIG_SLOT = gauge("ds01_mig_slot_info", "MIG devices as slots: 1 for each.", "gpu", "gpu_i_id", "slot", "mig_uuid")
MIG_MAPPING = gauge(
    "ds01_mig_mapping_status",
    "Mapping of MIG devices to instance ids of the dcgm dialect: 1 if all are mapped, else 0; absent without MIG.",
    "mapped",
    "unmapped",
)

CATALOGUE = (INFO, DISK, GPU_SLOT, MIG_SLOT, MIG_MAPPING)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield INFO.value(1, __version__, "gpucommons")
    state = snapshot.readings.ds01
    if state is not None:
        sizes = (("total", state.disk_total_bytes), ("used", state.disk_used_bytes), ("free", state.disk_free_bytes))
        yield DISK.of(((name,), size) for name, size in sizes if size is not None)
    reading = snapshot.readings.allocations
    if reading is not None:
        yield GPU_SLOT.of((_gpu(info), 1) for info in reading.slots if not info.mig_enabled)
        yield MIG_SLOT.of((_mig(info), 1) for info in reading.slots if info.gpu_instance_id is not None)
    gpus = snapshot.readings.gpus
    if gpus is not None:
        yield from _mapping(gpus.present_gpus())


def _gpu(info: SlotInfo) -> tuple[str, ...]:
    index = str(info.gpu_index)
    return index, index, info.slot.gpu_uuid, "false"


def _mig(info: SlotInfo) -> tuple[str, ...]:
    return str(info.gpu_index), str(info.gpu_instance_id), info.slot.name, info.slot.uuid


def _mapping(gpus: Iterable[Gpu]) -> Iterator[Family]:
    mapped = unmapped = 0
    for gpu in gpus:
        served = sum(instance.is_measured for instance in gpu.mig)
        mapped += served
        unmapped += len(gpu.mig) - served + gpu.mig_without_id
    if mapped or unmapped:
        yield MIG_MAPPING.value(0 if unmapped else 1, str(mapped), str(unmapped))
