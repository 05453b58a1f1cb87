"""ds01_exporter_info, ds01_state_disk_bytes, ds01_*_slot_info: the exporter, its disk and the slots there are."""

from collections.abc import Iterator

from gpucommons import __version__
from gpucommons.exposition.families import Family, gauge
from gpucommons.model.allocations import SlotInfo
from gpucommons.model.snapshot import Snapshot

INFO = gauge("ds01_exporter_info", "1; the version of what serves these.", "version", "type")
DISK = gauge("ds01_state_disk_bytes", "The disk that DS01's state directory lies on.", "type")
GPU_SLOT = gauge("ds01_gpu_slot_info", "1 for each GPU that is present.", "gpu", "slot", "gpu_uuid", "mig_enabled")
MIG_SLOT = gauge("ds01_mig_slot_info", "1 for each MIG device.", "gpu", "gpu_i_id", "slot", "mig_uuid")

CATALOGUE = (INFO, DISK, GPU_SLOT, MIG_SLOT)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield INFO.value(1, __version__, "gpucommons")
    state = snapshot.readings.ds01
    if state is not None:
        sizes = (("total", state.disk_total_bytes), ("used", state.disk_used_bytes), ("free", state.disk_free_bytes))
        yield DISK.of(((name,), size) for name, size in sizes if size is not None)
    reading = snapshot.readings.allocations
    if reading is not None:
        yield GPU_SLOT.of((labels, 1) for labels in dict.fromkeys(map(_gpu, reading.slots)))
        yield MIG_SLOT.of((_mig(info), 1) for info in reading.slots if info.gpu_instance_id is not None)


def _gpu(info: SlotInfo) -> tuple[str, ...]:
    index = str(info.gpu_index)
    return index, index, info.slot.gpu_uuid, "true" if info.mig_enabled else "false"


def _mig(info: SlotInfo) -> tuple[str, ...]:
    return str(info.gpu_index), str(info.gpu_instance_id), info.slot.name, info.slot.uuid
