"""The names of the processes on GPUs and of users, for the scheduler's clients."""

from gpucommons.model.snapshot import Readings
from gpucommons.scheduler.programs.jobs import Program, read_programs
from gpucommons.scheduler.service.process_names import ProcessNames


def process_names(readings: Readings) -> ProcessNames | None:
    """None while the GPUs or the owners of processes cannot be read: then the last known names stay."""
    programs = read_programs(readings, 0.0)
    if programs is None:
        return None
    by_key = {one.key: Program(one.job, (one,)).display_name for one in programs.processes if one.key is not None}
    return ProcessNames(by_key, {} if readings.users is None else readings.users.names)
