"""What is divided of one GPU, as integers for apportioning. Pure."""

from collections.abc import Sequence

from gpucommons.attribution.apportion import DeviceTotals, Resident
from gpucommons.model.gpu import Gpu, GpuProcess
from gpucommons.model.ownership import WHOLE_SM, Reason
from gpucommons.model.process_identity import PidScope, PidView

_PERCENT = WHOLE_SM // 100


def device_of(gpu: Gpu, view: PidView) -> DeviceTotals:
    readings = gpu.readings
    watts = readings.power_watts
    return DeviceTotals(
        memory_used_bytes=readings.memory_used_bytes,
        memory_total_bytes=readings.memory_total_bytes,
        sm_millionths=_busy(gpu),
        power_milliwatts=None if watts is None else round(watts * 1000),
        instances=_instances(gpu) or None if gpu.mig else None,
        unlisted=_unlisted(gpu, view),
    )


def residents_of(processes: Sequence[GpuProcess]) -> list[Resident]:
    return [
        Resident(
            process.used_memory_bytes,
            None if process.sm_percent is None else process.sm_percent * _PERCENT,
            process.gpu_instance_id,
        )
        for process in processes
    ]


def _busy(gpu: Gpu) -> int | None:
    """The busy time of the GPU, as the driver or its performance counters report it."""
    percent = gpu.readings.utilization_percent
    if percent is not None:
        return percent * _PERCENT
    ratio = gpu.gpm.graphics_ratio if gpu.gpm else None
    return None if ratio is None else round(ratio * WHOLE_SM)


def _instances(gpu: Gpu) -> dict[int, int]:
    """The busy time of each MIG GPU instance that reports it, weighted by its slices of the GPU."""
    instances = list(gpu.gpu_instances())
    slices = sum(instance.gpu_instance_slices for instance in instances)
    return {
        instance.gpu_instance_id: round(ratio * WHOLE_SM * instance.gpu_instance_slices / slices)
        for instance in instances
        if slices and instance.gpm and (ratio := instance.gpm.graphics_ratio) is not None
    }


def _unlisted(gpu: Gpu, view: PidView) -> Reason:
    if gpu.processes is None:
        return Reason.NO_PROCESS_LIST
    return Reason.NOT_VISIBLE if view.scope is PidScope.NAMESPACE else Reason.DRIVER_RESERVED
