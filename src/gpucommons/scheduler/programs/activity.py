"""Whether a process used its GPU, and which device that is, from one GPU reading. Pure.

The driver samples a process from its first use of the GPU on, and reports 0 while it is idle later. So where other
processes of the GPU have samples, one without has not used it yet. Where none has (MIG, a driver without samples), the
activity of the whole GPU only shows whether any of them did. Clients of MPS have no samples: their server has.
"""

from collections.abc import Iterable
from enum import StrEnum

from gpucommons.model.gpu import Gpu, GpuProcess
from gpucommons.model.ownership import ProcessShare


class ProgramActivity(StrEnum):
    """Whether the GPU was used. Unknown is not idle."""

    ACTIVE = "active"
    IDLE = "idle"
    UNKNOWN = "unknown"


def combined(activities: Iterable[ProgramActivity]) -> ProgramActivity:
    """Of several processes: active if one is, idle only if all are."""
    found = set(activities)
    if ProgramActivity.ACTIVE in found:
        return ProgramActivity.ACTIVE
    return ProgramActivity.IDLE if found == {ProgramActivity.IDLE} else ProgramActivity.UNKNOWN


def activity_of(gpu: Gpu, process: GpuProcess, share: ProcessShare | None) -> ProgramActivity:
    """`share` is what attribution found of this process; it rejects samples of the last process with this pid."""
    if process.sm_percent is not None:
        if share is None or share.sm is None:
            return ProgramActivity.UNKNOWN
        return ProgramActivity.ACTIVE if process.sm_percent > 0 else ProgramActivity.IDLE
    if _is_quiet(gpu, process.gpu_instance_id):
        return ProgramActivity.IDLE
    if "mps" in process.kind.split("+"):
        return ProgramActivity.UNKNOWN
    neighbours = (one for one in gpu.processes or () if one.gpu_instance_id == process.gpu_instance_id)
    return ProgramActivity.IDLE if any(one.sm_percent is not None for one in neighbours) else ProgramActivity.UNKNOWN


def device_of(gpu: Gpu, process: GpuProcess) -> str:
    """The UUID of the GPU, or of the MIG device that the process is on."""
    instance_id = process.gpu_instance_id
    if instance_id is None:
        return gpu.identity.uuid
    inside = [one for one in gpu.mig if one.gpu_instance_id == instance_id]
    exact = [one for one in inside if one.compute_instance_id == process.compute_instance_id]
    return next((one.uuid for one in (*exact, *inside)), f"{gpu.identity.uuid}/{instance_id}")


def _is_quiet(gpu: Gpu, gpu_instance_id: int | None) -> bool:
    """Whether the GPU, or that instance of it, was measured and did nothing."""
    if gpu_instance_id is None:
        ratio = gpu.gpm.graphics_ratio if gpu.gpm else None
        return gpu.readings.utilization_percent == 0 and not ratio
    gpm = next((one.gpm for one in gpu.mig if one.gpu_instance_id == gpu_instance_id), None)
    return gpm is not None and gpm.graphics_ratio == 0
