"""The names and pods of the processes on GPUs and the names of users, for the scheduler's clients."""

from collections.abc import Collection, Iterable, Iterator

from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.users import UsersReading
from gpucommons.scheduler.policy.limit_lookup import NO_POD, PodName
from gpucommons.scheduler.programs.jobs import GpuUser, Program, ProgramReading
from gpucommons.scheduler.service.process_names import ProcessNames


def process_names(programs: ProgramReading, users: UsersReading | None, pids: Collection[int]) -> ProcessNames:
    """Of the processes with these pids only: a node may have thousands of others on its GPUs."""
    chosen = [process for process in programs.processes if process.pid in pids]
    by_key = {one.key: Program(one.job, (one,)).display_name for one in chosen if one.key is not None}
    return ProcessNames(by_key, {} if users is None else users.names, dict(_pods(chosen)))


def _pods(processes: Iterable[GpuUser]) -> Iterator[tuple[ProcessKey, PodName]]:
    for process in processes:
        workload = process.workload
        if process.key is None:
            continue
        # In a cgroup tree that its user may write, a pod is that user's claim.
        if workload.pod is None or workload.delegated:
            yield process.key, NO_POD
        elif workload.pod.name:
            yield process.key, PodName(workload.pod.namespace, workload.pod.name)
