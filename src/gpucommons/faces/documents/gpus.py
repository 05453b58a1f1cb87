"""The GPUs, by UUID: what they are and what they do now. A lost GPU stays in the document, without readings. Pure."""

from gpucommons.faces.documents.schema import (
    FLAG,
    INTEGER,
    INTEGER_OR_NULL,
    NUMBER,
    NUMBER_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    Record,
    by_key,
    listed,
    or_null,
    record,
)
from gpucommons.faces.documents.values import Json, percent_as_ratio, rounded
from gpucommons.model.gpu import GpmReading, Gpu, MigInstance, XidRecord
from gpucommons.model.snapshot import Snapshot

_ACTIVITY = Record[GpmReading](
    graphics_ratio=(NUMBER_OR_NULL, lambda gpm: rounded(gpm.graphics_ratio, 4)),
    sm_ratio=(NUMBER_OR_NULL, lambda gpm: rounded(gpm.sm_ratio, 4)),
    sm_occupancy_ratio=(NUMBER_OR_NULL, lambda gpm: rounded(gpm.sm_occupancy_ratio, 4)),
    tensor_ratio=(NUMBER_OR_NULL, lambda gpm: rounded(gpm.tensor_ratio, 4)),
    fp64_ratio=(NUMBER_OR_NULL, lambda gpm: rounded(gpm.fp64_ratio, 4)),
    fp32_ratio=(NUMBER_OR_NULL, lambda gpm: rounded(gpm.fp32_ratio, 4)),
    fp16_ratio=(NUMBER_OR_NULL, lambda gpm: rounded(gpm.fp16_ratio, 4)),
    dram_ratio=(NUMBER_OR_NULL, lambda gpm: rounded(gpm.dram_ratio, 4)),
)
_MIG = Record[MigInstance](
    gpu_instance_id=(INTEGER, lambda mig: mig.gpu_instance_id),
    compute_instance_id=(INTEGER, lambda mig: mig.compute_instance_id),
    profile=(TEXT, lambda mig: mig.profile),
    gpu_slices=(INTEGER, lambda mig: mig.gpu_instance_slices),
    compute_slices=(INTEGER, lambda mig: mig.compute_slices),
    placement_start_slices=(INTEGER_OR_NULL, lambda mig: mig.placement_start),
    placement_size_slices=(INTEGER_OR_NULL, lambda mig: mig.placement_size),
    memory_total_bytes=(INTEGER, lambda mig: mig.memory_bytes if mig.memory is None else mig.memory.total_bytes),
    memory_used_bytes=(INTEGER_OR_NULL, lambda mig: None if mig.memory is None else mig.memory.used_bytes),
    activity=(or_null(_ACTIVITY.schema), lambda mig: _ACTIVITY.build_or_null(mig.gpm)),
)
_XID = Record[XidRecord](
    watched=(FLAG, lambda xid: xid.watched),
    counts=(by_key(INTEGER, "XID code"), lambda xid: {str(code): count for code, count in xid.counts.items()}),
    last_code=(INTEGER_OR_NULL, lambda xid: xid.last_code),
    last_unix_s=(NUMBER_OR_NULL, lambda xid: rounded(xid.last_wall_s, 3)),
)
GPU = Record[Gpu](
    index=(INTEGER, lambda gpu: gpu.identity.index),
    name=(TEXT, lambda gpu: gpu.identity.name),
    pci_bus_id=(TEXT, lambda gpu: gpu.identity.pci_bus_id),
    architecture=(TEXT_OR_NULL, lambda gpu: gpu.identity.architecture),
    compute_capability=(TEXT_OR_NULL, lambda gpu: gpu.identity.compute_capability),
    up=(FLAG, lambda gpu: gpu.up),
    since_unix_s=(NUMBER, lambda gpu: round(gpu.since_wall_s, 3)),
    down_reason=(TEXT, lambda gpu: gpu.down_reason),
    utilization_ratio=(NUMBER_OR_NULL, lambda gpu: percent_as_ratio(gpu.readings.utilization_percent)),
    memory_utilization_ratio=(NUMBER_OR_NULL, lambda gpu: percent_as_ratio(gpu.readings.memory_utilization_percent)),
    memory_total_bytes=(INTEGER_OR_NULL, lambda gpu: gpu.readings.memory_total_bytes),
    memory_used_bytes=(INTEGER_OR_NULL, lambda gpu: gpu.readings.memory_used_bytes),
    memory_reserved_bytes=(INTEGER_OR_NULL, lambda gpu: gpu.readings.memory_reserved_bytes),
    memory_free_bytes=(INTEGER_OR_NULL, lambda gpu: gpu.readings.memory_free_bytes),
    power_watts=(NUMBER_OR_NULL, lambda gpu: rounded(gpu.readings.power_watts, 3)),
    power_limit_watts=(NUMBER_OR_NULL, lambda gpu: rounded(gpu.readings.power_limit_watts, 3)),
    energy_joules_total=(NUMBER_OR_NULL, lambda gpu: _joules(gpu.readings.energy_millijoules)),
    temperature_celsius=(INTEGER_OR_NULL, lambda gpu: gpu.readings.temperature_celsius),
    temperature_slowdown_celsius=(INTEGER_OR_NULL, lambda gpu: gpu.identity.temperature_slowdown_celsius),
    memory_temperature_celsius=(INTEGER_OR_NULL, lambda gpu: gpu.readings.memory_temperature_celsius),
    fan_ratio=(NUMBER_OR_NULL, lambda gpu: percent_as_ratio(gpu.readings.fan_percent)),
    clock_sm_mhz=(INTEGER_OR_NULL, lambda gpu: gpu.readings.clock_sm_mhz),
    clock_sm_max_mhz=(INTEGER_OR_NULL, lambda gpu: gpu.identity.clock_sm_max_mhz),
    clock_memory_mhz=(INTEGER_OR_NULL, lambda gpu: gpu.readings.clock_memory_mhz),
    clock_memory_max_mhz=(INTEGER_OR_NULL, lambda gpu: gpu.identity.clock_memory_max_mhz),
    performance_state=(INTEGER_OR_NULL, lambda gpu: gpu.readings.performance_state),
    pcie_tx_bytes_per_s=(NUMBER_OR_NULL, lambda gpu: rounded(gpu.pcie_tx_bytes_per_s, 0)),
    pcie_rx_bytes_per_s=(NUMBER_OR_NULL, lambda gpu: rounded(gpu.pcie_rx_bytes_per_s, 0)),
    ecc_uncorrected_total=(INTEGER_OR_NULL, lambda gpu: gpu.readings.ecc_uncorrected_aggregate),
    throttle_reasons=(or_null(listed(TEXT)), lambda gpu: _texts(gpu.readings.throttle_reasons)),
    processes=(INTEGER_OR_NULL, lambda gpu: None if gpu.processes is None else len(gpu.processes)),
    activity=(or_null(_ACTIVITY.schema), lambda gpu: _ACTIVITY.build_or_null(gpu.gpm)),
    mig_enabled=(or_null(FLAG), lambda gpu: gpu.mig_enabled),
    mig=(by_key(_MIG.schema, "UUID of the MIG device"), lambda gpu: {mig.uuid: _MIG.build(mig) for mig in gpu.mig}),
    xid=(_XID.schema, lambda gpu: _XID.build(gpu.xid)),
)
SCHEMA = or_null(
    record(
        driver_version=TEXT,
        cuda_version=TEXT,
        expected=INTEGER,
        present=INTEGER,
        by_uuid=by_key(GPU.schema, "UUID"),
    )
)


def gpus(snapshot: Snapshot, only_uuid: str | None = None) -> Json:
    """Null where this node has no NVIDIA driver."""
    reading = snapshot.readings.gpus
    if reading is None:
        return None
    return {
        "driver_version": reading.driver_version,
        "cuda_version": reading.cuda_version,
        "expected": reading.expected,
        "present": reading.present,
        "by_uuid": {
            gpu.identity.uuid: GPU.build(gpu) for gpu in reading.gpus if only_uuid in (None, gpu.identity.uuid)
        },
    }


def _joules(millijoules: float | None) -> float | None:
    return None if millijoules is None else millijoules / 1000


def _texts(texts: tuple[str, ...] | None) -> Json:
    return None if texts is None else list(texts)
