"""The batch jobs of scenario lab, as Slurm's prolog maps them to MIG devices: one works, one has not begun to."""

from gpucommons.model.job_mapping import JobMappingReading, MappedJob
from gpucommons.simulation.lab_people import EMEKA

SLURM_JOB = "48213"
# Its script still copies data: it holds its MIG device and has no process there.
IDLE_SLURM_JOB = "48220"

_MAPPING = JobMappingReading(
    {(6, 1): (MappedJob(SLURM_JOB),), (6, 6): (MappedJob(IDLE_SLURM_JOB, EMEKA.uid),)},
)


def jobs(elapsed_s: float) -> JobMappingReading:
    return _MAPPING
