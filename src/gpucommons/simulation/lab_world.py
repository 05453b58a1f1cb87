"""The processes of scenario lab as procfs would show them, for the real attribution to parse."""

from collections.abc import Collection

from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import PidScope, PidView, ProcessDetails, ProcessKey
from gpucommons.owners.attribution_stage import ProcessWorld
from gpucommons.simulation import lab_pods
from gpucommons.simulation.lab_batch import SLURM_JOB
from gpucommons.simulation.lab_containers import CONTAINERS
from gpucommons.simulation.lab_jobs import JOBS, LabJob
from gpucommons.simulation.lab_load import FixedLoad, LabLoad
from gpucommons.simulation.lab_people import CHEN, DANA, OLLAMA_UID, LabNames
from gpucommons.simulation.lab_runs import RUNS

UNIT = "ollama.service"

# uid and cgroup of the jobs outside Docker's containers, by the job's number
_ELSEWHERE: dict[int, tuple[int, str]] = {
    6: (0, lab_pods.cgroup(lab_pods.SERVE)),
    7: (0, lab_pods.cgroup(lab_pods.WORKER)),
    8: (CHEN.uid, f"0::/user.slice/user-{CHEN.uid}.slice/session-41.scope\n"),
    9: (DANA.uid, f"0::/system.slice/slurmstepd.scope/job_{SLURM_JOB}/step_0/user/task_0\n"),
    12: (OLLAMA_UID, f"0::/system.slice/{UNIT}\n"),
}


def _places() -> dict[int, tuple[int, str]]:
    in_containers = {job: (each.person.uid, each.cgroup) for each in CONTAINERS for job in each.jobs}
    return in_containers | _ELSEWHERE


def _details(job: LabJob, uid: int, cgroup: str) -> ProcessDetails:
    pid = job.key.pid
    inner = f"\t{pid % 97 + 1}" if "docker-" in cgroup or "kubepods" in cgroup else ""
    status = f"Name:\t{job.name[:15]}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pid}{inner}\n"
    return ProcessDetails(job.key, job.name, status, cgroup, holds_gpu=True, session_id=pid)


class LabProcessReader:
    """Returns the lab's jobs; every other pid is a process that has ended."""

    def __init__(self, load: LabLoad) -> None:
        self._load = load
        self._places = {JOBS[number].key.pid: place for number, place in _places().items()}
        self._places |= {run.pid: (run.person.uid, run.cgroup) for run in RUNS}

    def read(self, pid: int, look_for_gpu: bool = False) -> ProcessDetails | Reason:
        job = next((job for job in self._load.jobs() if job.key.pid == pid), None)
        return Reason.PROCESS_GONE if job is None else _details(job, *self._places[pid])

    def is_alive(self, key: ProcessKey) -> bool:
        return any(job.key == key for job in self._load.jobs())

    def keep(self, keys: Collection[ProcessKey]) -> None:
        """Nothing is held open."""


class LabCommands:
    """The command lines of the lab's jobs."""

    def __init__(self) -> None:
        self._by_pid = {job.key.pid: job.name for job in JOBS} | {run.pid: run.command for run in RUNS}

    def name(self, pid: int) -> str | None:
        return self._by_pid.get(pid)

    def command_line(self, key: ProcessKey) -> tuple[str, ...]:
        return tuple(self._by_pid.get(key.pid, "").split())


def lab_world(load: LabLoad | None = None) -> ProcessWorld:
    view = PidView(PidScope.HOST, "the scenario shows every process of its host")
    return ProcessWorld(LabProcessReader(load or FixedLoad()), view, LabNames(), LabCommands())
