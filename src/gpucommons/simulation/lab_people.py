"""The people of scenario lab: six users in two groups, their containers through every interface, and who runs what.

Whose a process is comes out of the real attribution and the real allocation rules: here is only what they read.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from gpucommons.attribution.stage import ProcessWorld
from gpucommons.model.containers import Container, ContainerReading, ContainerState, DeviceRequest
from gpucommons.model.process_identity import PidScope, PidView, ProcessDetails
from gpucommons.model.processes import ProcessKey
from gpucommons.model.reasons import Reason
from gpucommons.model.users import UserSlice, UsersReading
from gpucommons.simulation.lab_jobs import JOBS, LabJob
from gpucommons.simulation.scenario import daylight, wobble

GROUPS: dict[str, tuple[str, ...]] = {"vision": ("alice", "bob", "chen"), "students": ("dana", "emeka", "farah")}
UIDS = {name: 1001 + number for number, name in enumerate(name for names in GROUPS.values() for name in names)}
_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}
_SESSIONS = {"alice": 2, "chen": 1, "farah": 1}
_MIB = 2**20


class _Lab(NamedTuple):
    """One container: whose processes run as `user`, on `devices`, with the jobs of these numbers in it."""

    name: str
    user: str
    devices: tuple[str, ...]
    jobs: tuple[int, ...]
    labels: Mapping[str, str] = MappingProxyType({})
    running: bool = True
    all_gpus: bool = False
    image: str = "registry.lab/pytorch:2.9"


def _ds01(user: str, interface: str) -> dict[str, str]:
    return {"ds01.user": user, "ds01.interface": interface, "ds01.managed": "true"}


_CONTAINERS = (
    _Lab("llm-pretrain", "alice", ("0", "1", "2", "3"), (0, 1, 2, 3), _ds01("alice", "orchestration")),
    # AIME's way to name a container: its user's number is in it.
    _Lab(f"finetune._.{UIDS['bob']}", "bob", ("4",), (4,)),
    _Lab("jupyter-chen", "chen", ("4",), (5,), {"ds01.user": "chen", "hub.jupyter.org/username": "chen"}),
    _Lab("serving", "dana", ("5",), (6, 7), _ds01("dana", "api"), image="registry.lab/serve:1.4"),
    # Past the allocator: nobody gave it these GPUs.
    _Lab("quick-eval", "emeka", (), (8,), all_gpus=True),
    _Lab("assignment2", "farah", ("6:0",), (9,), _ds01("farah", "orchestration")),
    _Lab("notebook", "emeka", ("6:2",), (10,), _ds01("emeka", "atomic")),
    _Lab("inference", "bob", ("7:0",), (11,), _ds01("bob", "orchestration")),
    # Waste: one that runs and does nothing, and a stopped one that its slot is still kept for.
    _Lab("debug-session", "chen", ("7:1",), (), _ds01("chen", "atomic")),
    _Lab("thesis-old", "dana", ("6:1",), (), _ds01("dana", "orchestration"), running=False),
    _Lab("grafana", "alice", (), (), {"com.docker.compose.project.working_dir": "/opt/monitoring"}, image="grafana"),
)


def _id(lab: _Lab) -> str:
    return lab.name.encode().hex().ljust(64, "0")[:64]


_CONTAINER_OF_JOB = {JOBS[number].key.pid: lab for lab in _CONTAINERS for number in lab.jobs}
_JOB_OF_PID = {job.key.pid: job for job in JOBS}


def containers(started_wall_s: float) -> ContainerReading:
    """The same all day long."""
    return ContainerReading(
        MappingProxyType({_id(lab): _container(lab, started_wall_s, number) for number, lab in enumerate(_CONTAINERS)})
    )


def _container(lab: _Lab, started_wall_s: float, number: int) -> Container:
    begun_s = started_wall_s - 3600.0 * (2 + 7 * number)
    requests = (DeviceRequest("", -1 if lab.all_gpus else 0, lab.devices, frozenset({"gpu"})),)
    return Container(
        id=_id(lab),
        name=lab.name,
        runtime="docker",
        state=ContainerState.RUNNING if lab.running else ContainerState.EXITED,
        image=lab.image,
        labels=lab.labels,
        init_pid=JOBS[lab.jobs[0]].key.pid if lab.jobs else None,
        created_wall_s=begun_s,
        started_wall_s=begun_s + 2,
        finished_wall_s=None if lab.running else begun_s + 3600,
        device_requests=requests if lab.devices or lab.all_gpus else (),
        cgroup_parent=f"ds01-{_GROUP_OF[lab.user]}-{lab.user}.slice" if "ds01.user" in lab.labels else "",
    )


_NAMES = {0: "root", **{uid: name for name, uid in UIDS.items()}}
_MEMBERS = {group: frozenset(names) for group, names in GROUPS.items()}
_CONTAINER_UIDS = {_id(lab): UIDS[lab.user] for lab in _CONTAINERS if lab.running}


def users(elapsed_s: float) -> UsersReading:
    return UsersReading(
        _NAMES,
        _GROUP_OF,
        _MEMBERS,
        tuple(_slice(name, number, elapsed_s) for number, name in enumerate(UIDS)),
        {name: count for name, count in _SESSIONS.items() if daylight(elapsed_s) > 0.2 or name == "alice"},
        _CONTAINER_UIDS,
    )


def _slice(name: str, number: int, elapsed_s: float) -> UserSlice:
    cores = 0.4 + 1.3 * (number % 4)
    memory = (6 + 9 * (number % 3)) * 1024 * _MIB * (1 + 0.05 * wobble(elapsed_s, 71, number))
    return UserSlice(name, _GROUP_OF[name], 3600 * cores + cores * elapsed_s, int(memory))


class LabProcesses:
    """What procfs would tell of the lab's jobs."""

    def read(self, pid: int, look_for_gpu: bool = False) -> ProcessDetails | Reason:
        job, lab = _JOB_OF_PID.get(pid), _CONTAINER_OF_JOB.get(pid)
        return Reason.PROCESS_GONE if job is None or lab is None else _details(job, lab)

    def is_alive(self, key: ProcessKey) -> bool:
        job = _JOB_OF_PID.get(key.pid)
        return job is not None and job.key == key

    def keep(self, keys: Collection[ProcessKey]) -> None:
        """There is nothing to let go of."""


def _details(job: LabJob, lab: _Lab) -> ProcessDetails:
    uid, pid = UIDS[lab.user], job.key.pid
    return ProcessDetails(
        job.key,
        job.name,
        status=f"Name:\t{job.name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pid}\t{1 + pid % 7}\n",
        cgroup=f"0::/system.slice/docker-{_id(lab)}.scope\n",
        holds_gpu=True,
    )


class LabNames:
    """User names that are always at hand."""

    known: Mapping[int, str] = MappingProxyType(_NAMES)

    def see(self, uids: Iterable[int]) -> Mapping[int, str]:
        return self.known


def world() -> ProcessWorld:
    return ProcessWorld(LabProcesses(), PidView(PidScope.HOST, "every process of the host can be seen"), LabNames())
