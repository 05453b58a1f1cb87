"""The GPUs, by UUID: what they are and what they do now. A lost GPU stays in the document, without readings. Pure."""

from typing import NamedTuple

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
    describe,
    list_of,
    one_of,
    or_null,
    record,
)
from gpucommons.faces.documents.values import Json, percent_as_ratio, round_value
from gpucommons.model.gpu import GpmReading, Gpu, GpuProcess, MigInstance, XidRecord
from gpucommons.model.names import mig_slot_names
from gpucommons.model.problems import HealthLevel
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.health import GpuHealth, HealthReason, gpu_health_of


class _MigOfGpu(NamedTuple):
    gpu: Gpu
    mig: MigInstance


class _GpuAndHealth(NamedTuple):
    gpu: Gpu
    health: GpuHealth


_ACTIVITY = Record[GpmReading](
    graphics_ratio=(NUMBER_OR_NULL, lambda gpm: round_value(gpm.graphics_ratio, 4)),
    sm_ratio=(NUMBER_OR_NULL, lambda gpm: round_value(gpm.sm_ratio, 4)),
    sm_occupancy_ratio=(NUMBER_OR_NULL, lambda gpm: round_value(gpm.sm_occupancy_ratio, 4)),
    tensor_ratio=(NUMBER_OR_NULL, lambda gpm: round_value(gpm.tensor_ratio, 4)),
    fp64_ratio=(NUMBER_OR_NULL, lambda gpm: round_value(gpm.fp64_ratio, 4)),
    fp32_ratio=(NUMBER_OR_NULL, lambda gpm: round_value(gpm.fp32_ratio, 4)),
    fp16_ratio=(NUMBER_OR_NULL, lambda gpm: round_value(gpm.fp16_ratio, 4)),
    dram_ratio=(NUMBER_OR_NULL, lambda gpm: round_value(gpm.dram_ratio, 4)),
)
_MIG = Record[_MigOfGpu](
    slot=(TEXT, lambda at: mig_slot_names(at.gpu)[at.mig.uuid]),
    gpu_instance_id=(INTEGER, lambda at: at.mig.gpu_instance_id),
    compute_instance_id=(INTEGER, lambda at: at.mig.compute_instance_id),
    profile=(TEXT, lambda at: at.mig.profile),
    gpu_slices=(INTEGER, lambda at: at.mig.gpu_instance_slices),
    compute_slices=(INTEGER, lambda at: at.mig.compute_slices),
    placement_start_slices=(INTEGER_OR_NULL, lambda at: at.mig.placement_start),
    placement_size_slices=(INTEGER_OR_NULL, lambda at: at.mig.placement_size),
    memory_total_bytes=(
        INTEGER,
        lambda at: at.mig.memory_bytes if at.mig.memory is None else at.mig.memory.total_bytes,
    ),
    memory_used_bytes=(INTEGER_OR_NULL, lambda at: None if at.mig.memory is None else at.mig.memory.used_bytes),
    processes=(INTEGER_OR_NULL, lambda at: _process_count(at.gpu, at.mig)),
    activity=(or_null(_ACTIVITY.schema), lambda at: _ACTIVITY.build_or_null(at.mig.gpm)),
)
_XID = Record[XidRecord](
    watched=(FLAG, lambda xid: xid.watched),
    counts=(by_key(INTEGER, "XID code"), lambda xid: {str(code): count for code, count in xid.counts.items()}),
    last_code=(INTEGER_OR_NULL, lambda xid: xid.last_code),
    last_unix_s=(NUMBER_OR_NULL, lambda xid: round_value(xid.last_wall_s, 3)),
)
_LEVEL = one_of(*(level.name.lower() for level in HealthLevel))
_REASON = Record[HealthReason](
    level=(_LEVEL, lambda reason: reason.level.name.lower()),
    sentence=(TEXT, lambda reason: reason.sentence),
)
_HEALTH = Record[GpuHealth](
    level=(_LEVEL, lambda health: health.level.name.lower()),
    reasons=(
        by_key(_REASON.schema, "reason"),
        lambda health: {reason.name: _REASON.build(reason) for reason in health.reasons},
    ),
)
GPU = Record[_GpuAndHealth](
    index=(INTEGER, lambda at: at.gpu.identity.index),
    name=(TEXT, lambda at: at.gpu.identity.name),
    pci_bus_id=(TEXT, lambda at: at.gpu.identity.pci_bus_id),
    architecture=(TEXT_OR_NULL, lambda at: at.gpu.identity.architecture),
    compute_capability=(TEXT_OR_NULL, lambda at: at.gpu.identity.compute_capability),
    up=(FLAG, lambda at: at.gpu.up),
    since_unix_s=(NUMBER, lambda at: round(at.gpu.since_wall_s, 3)),
    down_reason=(TEXT, lambda at: at.gpu.down_reason),
    health=(_HEALTH.schema, lambda at: _HEALTH.build(at.health)),
    utilization_ratio=(NUMBER_OR_NULL, lambda at: percent_as_ratio(at.gpu.readings.utilization_percent)),
    use_ratio=(
        describe(NUMBER_OR_NULL, "utilization_ratio; with MIG the activity of its instances, by their slices"),
        lambda at: round_value(at.gpu.use_ratio, 4),
    ),
    memory_utilization_ratio=(NUMBER_OR_NULL, lambda at: percent_as_ratio(at.gpu.readings.memory_utilization_percent)),
    memory_total_bytes=(INTEGER_OR_NULL, lambda at: at.gpu.readings.memory_total_bytes),
    memory_used_bytes=(INTEGER_OR_NULL, lambda at: at.gpu.readings.memory_used_bytes),
    memory_reserved_bytes=(INTEGER_OR_NULL, lambda at: at.gpu.readings.memory_reserved_bytes),
    memory_free_bytes=(INTEGER_OR_NULL, lambda at: at.gpu.readings.memory_free_bytes),
    power_watts=(NUMBER_OR_NULL, lambda at: round_value(at.gpu.readings.power_watts, 3)),
    power_limit_watts=(NUMBER_OR_NULL, lambda at: round_value(at.gpu.readings.power_limit_watts, 3)),
    energy_joules_total=(NUMBER_OR_NULL, lambda at: _joules(at.gpu.readings.energy_millijoules)),
    temperature_celsius=(INTEGER_OR_NULL, lambda at: at.gpu.readings.temperature_celsius),
    temperature_slowdown_celsius=(INTEGER_OR_NULL, lambda at: at.gpu.identity.temperature_slowdown_celsius),
    memory_temperature_celsius=(INTEGER_OR_NULL, lambda at: at.gpu.readings.memory_temperature_celsius),
    fan_ratio=(NUMBER_OR_NULL, lambda at: percent_as_ratio(at.gpu.readings.fan_percent)),
    clock_sm_mhz=(INTEGER_OR_NULL, lambda at: at.gpu.readings.clock_sm_mhz),
    clock_sm_max_mhz=(INTEGER_OR_NULL, lambda at: at.gpu.identity.clock_sm_max_mhz),
    clock_memory_mhz=(INTEGER_OR_NULL, lambda at: at.gpu.readings.clock_memory_mhz),
    clock_memory_max_mhz=(INTEGER_OR_NULL, lambda at: at.gpu.identity.clock_memory_max_mhz),
    performance_state=(INTEGER_OR_NULL, lambda at: at.gpu.readings.performance_state),
    pcie_tx_bytes_per_s=(NUMBER_OR_NULL, lambda at: round_value(at.gpu.pcie_tx_bytes_per_s, 0)),
    pcie_rx_bytes_per_s=(NUMBER_OR_NULL, lambda at: round_value(at.gpu.pcie_rx_bytes_per_s, 0)),
    ecc_uncorrected_total=(INTEGER_OR_NULL, lambda at: at.gpu.readings.ecc_uncorrected_aggregate),
    throttle_reasons=(or_null(list_of(TEXT)), lambda at: _texts(at.gpu.readings.throttle_reasons)),
    processes=(INTEGER_OR_NULL, lambda at: _process_count(at.gpu)),
    activity=(or_null(_ACTIVITY.schema), lambda at: _ACTIVITY.build_or_null(at.gpu.gpm)),
    mig_enabled=(or_null(FLAG), lambda at: at.gpu.mig_enabled),
    mig=(
        by_key(_MIG.schema, "UUID of the MIG device"),
        lambda at: {mig.uuid: _MIG.build(_MigOfGpu(at.gpu, mig)) for mig in at.gpu.mig},
    ),
    xid=(_XID.schema, lambda at: _XID.build(at.gpu.xid)),
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
            gpu.identity.uuid: GPU.build(_GpuAndHealth(gpu, gpu_health_of(gpu, snapshot.wall_s)))
            for gpu in reading.gpus
            if only_uuid in (None, gpu.identity.uuid)
        },
    }


def _joules(millijoules: float | None) -> float | None:
    return None if millijoules is None else millijoules / 1000


def _texts(texts: tuple[str, ...] | None) -> Json:
    return None if texts is None else list(texts)


def _process_count(gpu: Gpu, mig: MigInstance | None = None) -> int | None:
    """Processes of the GPU, or of one MIG device. A process that is listed twice counts once."""
    if gpu.processes is None:
        return None
    return len({process.pid for process in gpu.processes if mig is None or _is_on(process, mig)})


def _is_on(process: GpuProcess, mig: MigInstance) -> bool:
    """The driver may not know the compute instance of a process."""
    same_instance = process.gpu_instance_id == mig.gpu_instance_id
    return same_instance and process.compute_instance_id in (None, mig.compute_instance_id)
