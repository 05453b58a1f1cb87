"""What the jobs of the lab do on its GPUs. Without sharing it is a function of the time alone."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from gpucommons.model.gpu import DeviceActivity
from gpucommons.simulation.gpu_model import GpuLoad
from gpucommons.simulation.lab_jobs import JOBS, LabJob

# Training and inference of the lab, at full load.
DENSE: Final = GpuLoad(DeviceActivity(0.95, 0.62, 0.27), 1.0)


class JobUse(NamedTuple):
    """A job's part of its GPU: the share of time in which its kernels run, and the activity that is due to it."""

    busy: float = 0.0
    sm: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0


class LabLoad(Protocol):
    """What the jobs do. `memory_bytes` is on the GPU, without the driver's context; `resident_bytes` on the host."""

    def jobs(self) -> Sequence[LabJob]: ...
    def use(self, job: LabJob, elapsed_s: float) -> JobUse: ...
    def memory_bytes(self, job: LabJob, elapsed_s: float) -> int: ...
    def cpu_seconds(self, job: LabJob, elapsed_s: float) -> float: ...
    def resident_bytes(self, job: LabJob, elapsed_s: float) -> int: ...


def job_use(load: GpuLoad) -> JobUse:
    return JobUse(load.kernels, *load.activity.work)


def total_use(uses: Sequence[JobUse]) -> JobUse:
    """At most the whole GPU."""
    return JobUse(*(min(1.0, sum(values)) for values in zip(*uses, strict=True))) if uses else JobUse()


class FixedLoad:
    """The jobs run as they like, and take the turns of their fixed rounds."""

    def jobs(self) -> Sequence[LabJob]:
        return JOBS

    def use(self, job: LabJob, elapsed_s: float) -> JobUse:
        return job_use(DENSE.at_level(job.activity(elapsed_s)))

    def memory_bytes(self, job: LabJob, elapsed_s: float) -> int:
        return job.memory_bytes(elapsed_s)

    def cpu_seconds(self, job: LabJob, elapsed_s: float) -> float:
        return job.cpu_cores * (1800 + elapsed_s)

    def resident_bytes(self, job: LabJob, elapsed_s: float) -> int:
        return int(job.rss_gib * 2**30)
