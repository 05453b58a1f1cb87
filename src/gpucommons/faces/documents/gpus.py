"""The GPUs, by UUID: what they are and what they do now. A lost one stays, without readings. Pure."""

from gpucommons.faces.documents.schema import FLAG, INTEGER, NUMBER, TEXT, by_key, listed, or_null, record
from gpucommons.faces.documents.values import Json, percent_as_ratio, rounded
from gpucommons.model.gpu import GpmReading, Gpu, MigInstance
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.identities import mig_slot_names

_NUMBER, _INTEGER, _TEXT = or_null(NUMBER), or_null(INTEGER), or_null(TEXT)
_ACTIVITY_RATIOS = ("graphics", "sm", "sm_occupancy", "tensor", "fp64", "fp32", "fp16", "dram")
_ACTIVITY = or_null(record(**{f"{name}_ratio": _NUMBER for name in _ACTIVITY_RATIOS}))
_MIG = record(
    slot=TEXT,
    gpu_instance_id=INTEGER,
    compute_instance_id=INTEGER,
    profile=TEXT,
    gpu_slices=INTEGER,
    compute_slices=INTEGER,
    placement_start_slices=_INTEGER,
    placement_size_slices=_INTEGER,
    memory_total_bytes=INTEGER,
    memory_used_bytes=_INTEGER,
    activity=_ACTIVITY,
)
GPU = record(
    index=INTEGER,
    name=TEXT,
    pci_bus_id=TEXT,
    architecture=_TEXT,
    compute_capability=_TEXT,
    up=FLAG,
    since_unix_s=NUMBER,
    down_reason=TEXT,
    utilization_ratio=_NUMBER,
    memory_utilization_ratio=_NUMBER,
    memory_total_bytes=_INTEGER,
    memory_used_bytes=_INTEGER,
    memory_reserved_bytes=_INTEGER,
    memory_free_bytes=_INTEGER,
    power_watts=_NUMBER,
    power_limit_watts=_NUMBER,
    energy_joules_total=_NUMBER,
    temperature_celsius=_INTEGER,
    temperature_slowdown_celsius=_INTEGER,
    memory_temperature_celsius=_INTEGER,
    fan_ratio=_NUMBER,
    clock_sm_mhz=_INTEGER,
    clock_sm_max_mhz=_INTEGER,
    clock_memory_mhz=_INTEGER,
    clock_memory_max_mhz=_INTEGER,
    performance_state=_INTEGER,
    pcie_tx_bytes_per_s=_NUMBER,
    pcie_rx_bytes_per_s=_NUMBER,
    ecc_uncorrected_total=_INTEGER,
    throttle_reasons=or_null(listed(TEXT)),
    processes=_INTEGER,
    activity=_ACTIVITY,
    mig_enabled=or_null(FLAG),
    mig=by_key(_MIG, "UUID of the MIG device"),
    xid=record(watched=FLAG, counts=by_key(INTEGER, "XID code"), last_code=_INTEGER, last_unix_s=_NUMBER),
)
SCHEMA = or_null(
    record(
        driver_version=TEXT,
        cuda_version=TEXT,
        expected=INTEGER,
        present=INTEGER,
        by_uuid=by_key(GPU, "UUID"),
    )
)


def gpus(snapshot: Snapshot, only_uuid: str | None = None) -> Json:
    """Null where this node has no driver that could be asked."""
    reading = snapshot.readings.gpus
    if reading is None:
        return None
    return {
        "driver_version": reading.driver_version,
        "cuda_version": reading.cuda_version,
        "expected": reading.expected,
        "present": reading.present,
        "by_uuid": {gpu.identity.uuid: _gpu(gpu) for gpu in reading.gpus if only_uuid in (None, gpu.identity.uuid)},
    }


def _gpu(gpu: Gpu) -> Json:
    identity, now = gpu.identity, gpu.readings
    energy = now.energy_millijoules
    reasons = now.throttle_reasons
    slots = mig_slot_names(gpu)
    return {
        "index": identity.index,
        "name": identity.name,
        "pci_bus_id": identity.pci_bus_id,
        "architecture": identity.architecture,
        "compute_capability": identity.compute_capability,
        "up": gpu.up,
        "since_unix_s": round(gpu.since_wall_s, 3),
        "down_reason": gpu.down_reason,
        "utilization_ratio": percent_as_ratio(now.utilization_percent),
        "memory_utilization_ratio": percent_as_ratio(now.memory_utilization_percent),
        "memory_total_bytes": now.memory_total_bytes,
        "memory_used_bytes": now.memory_used_bytes,
        "memory_reserved_bytes": now.memory_reserved_bytes,
        "memory_free_bytes": now.memory_free_bytes,
        "power_watts": rounded(now.power_watts, 3),
        "power_limit_watts": rounded(now.power_limit_watts, 3),
        "energy_joules_total": None if energy is None else energy / 1000,
        "temperature_celsius": now.temperature_celsius,
        "temperature_slowdown_celsius": identity.temperature_slowdown_celsius,
        "memory_temperature_celsius": now.memory_temperature_celsius,
        "fan_ratio": percent_as_ratio(now.fan_percent),
        "clock_sm_mhz": now.clock_sm_mhz,
        "clock_sm_max_mhz": identity.clock_sm_max_mhz,
        "clock_memory_mhz": now.clock_memory_mhz,
        "clock_memory_max_mhz": identity.clock_memory_max_mhz,
        "performance_state": now.performance_state,
        "pcie_tx_bytes_per_s": rounded(gpu.pcie_tx_bytes_per_s, 0),
        "pcie_rx_bytes_per_s": rounded(gpu.pcie_rx_bytes_per_s, 0),
        "ecc_uncorrected_total": now.ecc_uncorrected_aggregate,
        "throttle_reasons": None if reasons is None else list(reasons),
        "processes": None if gpu.processes is None else len(gpu.processes),
        "activity": _activity(gpu.gpm),
        "mig_enabled": gpu.mig_enabled,
        "mig": {instance.uuid: _mig(instance, slots[instance.uuid]) for instance in gpu.mig},
        "xid": {
            "watched": gpu.xid.watched,
            "counts": {str(code): count for code, count in gpu.xid.counts.items()},
            "last_code": gpu.xid.last_code,
            "last_unix_s": rounded(gpu.xid.last_wall_s, 3),
        },
    }


def _activity(gpm: GpmReading | None) -> Json:
    if gpm is None:
        return None
    return {f"{name}_ratio": rounded(getattr(gpm, f"{name}_ratio"), 4) for name in _ACTIVITY_RATIOS}


def _mig(instance: MigInstance, slot: str) -> Json:
    return {
        "slot": slot,
        "gpu_instance_id": instance.gpu_instance_id,
        "compute_instance_id": instance.compute_instance_id,
        "profile": instance.profile,
        "gpu_slices": instance.gpu_instance_slices,
        "compute_slices": instance.compute_slices,
        "placement_start_slices": instance.placement_start,
        "placement_size_slices": instance.placement_size,
        "memory_total_bytes": instance.memory_bytes if instance.memory is None else instance.memory.total_bytes,
        "memory_used_bytes": None if instance.memory is None else instance.memory.used_bytes,
        "activity": _activity(instance.gpm),
    }
