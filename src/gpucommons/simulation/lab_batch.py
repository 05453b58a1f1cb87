"""The batch jobs of scenario lab, as Slurm's prolog maps them to MIG devices: one is active, one has not started."""

from gpucommons.model.workloads import JobMappingReading, MappedJob
from gpucommons.simulation.lab_people import EMEKA

SLURM_JOB = "48213"
# Its script still copies data: it holds its MIG device without a process on it.
IDLE_SLURM_JOB = "48220"

_MAPPING = JobMappingReading(
    {(6, 1): (MappedJob(SLURM_JOB),), (6, 6): (MappedJob(IDLE_SLURM_JOB, EMEKA.uid),)},
)


def jobs(elapsed_s: float) -> JobMappingReading:
    return _MAPPING
