"""The names of the processes on GPUs and of users, for the scheduler's clients."""

from gpucommons.model.users import UsersReading
from gpucommons.scheduler.programs.jobs import Program, ProgramReading
from gpucommons.scheduler.service.process_names import ProcessNames


def process_names(programs: ProgramReading, users: UsersReading | None) -> ProcessNames:
    by_key = {one.key: Program(one.job, (one,)).display_name for one in programs.processes if one.key is not None}
    return ProcessNames(by_key, {} if users is None else users.names)
