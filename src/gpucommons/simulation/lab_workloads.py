"""The workloads of scenario lab: containers, pods, DS01's state, and their processes as procfs would show them.

There is one of each way to start a container, active and idle ones; two pods share a GPU. The real attribution parses
what the processes show.
"""

import hashlib
import uuid
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from gpucommons.model.events import EventsReading
from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import PidScope, PidView, ProcessDetails, ProcessKey
from gpucommons.model.workloads import (
    CORE_LIMIT_ANNOTATIONS,
    MEMORY_LIMIT_ANNOTATIONS,
    Container,
    ContainerReading,
    ContainerState,
    ContainerUsage,
    ContainerUsageReading,
    DeviceId,
    DeviceRequest,
    Ds01Reading,
    Pod,
    PodDevices,
    PodDevicesReading,
    PodReading,
)
from gpucommons.simulation.day import DAY_S, daylight, wobble
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.lab_jobs import JOBS, FixedLoad, LabJob, LabLoad
from gpucommons.simulation.lab_people import (
    ALICE,
    BOB,
    CHEN,
    DANA,
    EMEKA,
    FARAH,
    OLLAMA_UID,
    RUNS,
    SLURM_JOB,
    LabNames,
    Person,
)

# The containers of scenario lab: each way to start one, active and idle ones, and one that DS01 does not manage.

_ALL = (DeviceRequest("", -1),)
_HOUR_S = 3600.0

# A whole GPU by its index, or one MIG device by GPU and GPU instance.
Device = int | tuple[int, int]


class LabContainer(NamedTuple):
    """`devices` is None for a container with all GPUs. `jobs` are the numbers of its jobs on them, if any."""

    name: str
    person: Person
    image: str
    hours: float
    devices: tuple[Device, ...] | None
    labels: Mapping[str, str] = {}
    jobs: tuple[int, ...] = ()
    sliced: bool = True
    running: bool = True
    cores: float = 0.1
    gib: float = 1.0

    @property
    def id(self) -> str:
        return hashlib.sha256(self.name.encode()).hexdigest()

    @property
    def cgroup_parent(self) -> str:
        """DS01 puts managed containers into a slice of the user; others are where Docker puts them."""
        return f"ds01-{self.person.group}-{self.person.name}.slice" if self.sliced else ""

    @property
    def cgroup(self) -> str:
        group = self.person.group
        within = f"ds01.slice/ds01-{group}.slice/{self.cgroup_parent}" if self.sliced else "system.slice"
        return f"0::/{within}/docker-{self.id}.scope\n"


def _ds01(person: Person, **labels: str) -> dict[str, str]:
    return {"ds01.user": person.name, **{f"ds01.{name}": value for name, value in labels.items()}}


TRAINING = LabContainer(
    "train-vit",
    ALICE,
    "registry.lab/vision/train:2.7",
    31.0,
    (0, 1, 2),
    _ds01(ALICE, interface="orchestration", managed="true", container_type="training"),
    jobs=(0, 1, 2),
    cores=18.0,
    gib=96.0,
)
FORGOTTEN = LabContainer(
    "thesis._.1005",
    EMEKA,
    "aimehub/pytorch-2.7-cuda12.6",
    52.0,
    (3,),
    {"aime.mlc.USER": EMEKA.name},
    jobs=(3,),
    gib=14.0,
)
FINETUNE = LabContainer(
    "finetune-7b",
    BOB,
    "registry.lab/vision/finetune:1.4",
    6.0,
    (4,),
    _ds01(BOB, interface="api", managed="true"),
    jobs=(4,),
    cores=4.0,
    gib=44.0,
)
NOTEBOOK = LabContainer(
    "jupyter-dana",
    DANA,
    "quay.io/jupyter/pytorch-notebook:cuda12",
    4.0,
    (4,),
    {"hub.jupyter.org/username": DANA.name},
    jobs=(5,),
    cores=0.8,
    gib=12.0,
)
DEVCONTAINER = LabContainer(
    "vscode-segmentation",
    CHEN,
    "mcr.microsoft.com/devcontainers/python:3.12",
    9.0,
    ((6, 5),),
    {"devcontainer.local_folder": "/home/chen/segmentation"},
    jobs=(10,),
    cores=0.6,
    gib=8.0,
)
STOPPED = LabContainer(
    "sweep-lr",
    CHEN,
    "registry.lab/vision/sweep:0.9",
    40.0,
    ((6, 3),),
    _ds01(CHEN, managed="true"),
    running=False,
)
IDLE = LabContainer(
    "annotate",
    FARAH,
    "registry.lab/students/annotate:3.1",
    20.0,
    ((7, 8),),
    _ds01(FARAH, interface="orchestration", managed="true"),
    gib=3.0,
)
UNMANAGED = LabContainer(
    "focused_curie",
    FARAH,
    "nvcr.io/nvidia/pytorch:25.06-py3",
    2.0,
    None,
    jobs=(11,),
    sliced=False,
    cores=2.4,
    gib=9.0,
)
NO_GPU = LabContainer("mlflow", BOB, "ghcr.io/mlflow/mlflow:v2.20", 700.0, (), sliced=False, cores=0.05, gib=0.7)

CONTAINERS = (
    TRAINING,
    FORGOTTEN,
    FINETUNE,
    NOTEBOOK,
    DEVCONTAINER,
    STOPPED,
    IDLE,
    UNMANAGED,
    NO_GPU,
)
CONTAINER_UIDS: Mapping[str, int] = {
    container.id: container.person.uid for container in CONTAINERS if container.running
}


class LabContainers:
    """The reading of the Docker source: the same object while nothing changes, as in the real source."""

    def __init__(self, gpus: LabGpus) -> None:
        self._gpus = gpus
        containers = {container.id: self._container(number, container) for number, container in enumerate(CONTAINERS)}
        self._reading = ContainerReading(containers)

    def at(self, elapsed_s: float) -> ContainerReading:
        return self._reading

    def _container(self, number: int, container: LabContainer) -> Container:
        now_s = self._gpus.started_wall_s
        started_s = now_s - container.hours * _HOUR_S
        labels = dict(container.labels)
        if "ds01.managed" in labels:
            labels["ds01.gpu.allocated_at"] = datetime.fromtimestamp(started_s, UTC).isoformat()
        names = [self._uuid(device) for device in container.devices or ()]
        given = (DeviceRequest("", 0, tuple(names)),) if names else ()
        return Container(
            id=container.id,
            name=container.name,
            runtime="docker",
            state=ContainerState.RUNNING if container.running else ContainerState.EXITED,
            image=container.image,
            labels=labels,
            init_pid=_init_pid(number, container),
            created_wall_s=started_s - 2.0,
            started_wall_s=started_s,
            device_requests=_ALL if container.devices is None else given,
            cgroup_parent=container.cgroup_parent,
        )

    def _uuid(self, device: Device) -> str:
        return self._gpus.identities[device].uuid if isinstance(device, int) else self._gpus.mig_uuids[device]


def usage(elapsed_s: float) -> ContainerUsageReading:
    """CPU and memory of each running container."""
    return ContainerUsageReading(
        {
            container.id: _usage(number, container, elapsed_s)
            for number, container in enumerate(CONTAINERS)
            if container.running
        }
    )


def _usage(number: int, container: LabContainer, elapsed_s: float) -> ContainerUsage:
    memory = container.gib * 2**30 * (1 + 0.05 * wobble(elapsed_s, 67, number))
    limit = int(container.gib * 2) * 2**30 if container.sliced else None
    return ContainerUsage(
        container.name, "docker", container.cores * (_HOUR_S * container.hours + elapsed_s), int(memory), limit
    )


def _init_pid(number: int, container: LabContainer) -> int | None:
    if not container.running:
        return None
    return JOBS[container.jobs[0]].key.pid if container.jobs else 3000 + number


# The pods of scenario lab: two pods of a service that share a GPU, which the device plugin hands out in halves, and
# one that has a MIG device and waits for requests.

NAMESPACE = "inference"
SHARED_GPU = 5
_SHARES = 2
_OWN_DEVICE = (7, 9)
_RESOURCE, _MIG_RESOURCE = "nvidia.com/gpu.shared", "nvidia.com/mig-1g.18gb"


def _pod(name: str, container: str, core_limit: str, memory_limit: str) -> Pod:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return Pod(
        uid=str(uuid.UUID(digest[:32])),
        name=name,
        namespace=NAMESPACE,
        phase="Running",
        labels={"app": container},
        annotations={CORE_LIMIT_ANNOTATIONS[0]: core_limit, MEMORY_LIMIT_ANNOTATIONS[0]: memory_limit},
        containers={digest: container},
    )


SERVE = _pod("llm-serve-6d9f7c5b8-x2x4k", "llm-serve", "60", "64Gi")
WORKER = _pod("ray-worker-0", "ray-worker", "25", "16Gi")
EMBEDDINGS = _pod("embeddings-0", "embeddings", "100", "16Gi")
_SHARING = (SERVE, WORKER)
PODS = (*_SHARING, EMBEDDINGS)
_READING = PodReading.of(PODS)


def pods(elapsed_s: float) -> PodReading:
    return _READING


def cgroup(pod: Pod) -> str:
    container = next(iter(pod.containers))
    inside = f"kubepods-burstable-pod{pod.uid.replace('-', '_')}.slice/cri-containerd-{container}.scope"
    return f"0::/kubepods.slice/kubepods-burstable.slice/{inside}\n"


def _pod_devices(pod: Pod, device: DeviceId) -> PodDevices:
    return PodDevices(NAMESPACE, pod.name, next(iter(pod.containers.values())), (device,))


class LabPodDevices:
    """The reading of the kubelet source: the same object while nothing changes."""

    def __init__(self, gpus: LabGpus) -> None:
        uuid = gpus.identities[SHARED_GPU].uuid
        shares = tuple(DeviceId(f"{uuid}::{n}", gpu_uuid=uuid, replica=n) for n in range(_SHARES))
        own_uuid = gpus.mig_uuids[_OWN_DEVICE]
        own = DeviceId(own_uuid, mig_uuid=own_uuid)
        self._reading = PodDevicesReading(
            (
                *(_pod_devices(pod, share) for pod, share in zip(_SHARING, shares, strict=True)),
                _pod_devices(EMBEDDINGS, own),
            ),
            {_RESOURCE: shares, _MIG_RESOURCE: (own,)},
        )

    def at(self, elapsed_s: float) -> PodDevicesReading:
        return self._reading


# DS01 in scenario lab: the events of the last day, and the disk that holds its state.

_GIB = 2**30
# Events per day by type: most occur during working hours, some at night.
_BY_DAY = {
    "container.created": 34,
    "container.started": 41,
    "container.stopped": 29,
    "gpu.allocated": 38,
    "gpu.released": 31,
    "gpu.reject": 6,
    "auth.denied": 3,
}
_BY_NIGHT = {
    "maintenance.idle_kill": 9,
    "maintenance.runtime_kill": 2,
    "maintenance.cleanup": 12,
    "resource.oom_kill": 1,
}


def events(elapsed_s: float) -> EventsReading:
    """All days are alike, so the counts of a day change little; the number of lines only grows."""
    sun = daylight(elapsed_s)
    counts = {type: round(count * (0.85 + 0.15 * sun)) for type, count in _BY_DAY.items()}
    counts |= {type: round(count * (1.15 - 0.15 * sun)) for type, count in _BY_NIGHT.items()}
    a_day = sum(_BY_DAY.values()) + sum(_BY_NIGHT.values())
    return EventsReading(counts, lines=a_day + int(a_day * elapsed_s / DAY_S), bad_lines={"not_json": 1})


def state(elapsed_s: float) -> Ds01Reading:
    used = int((61 + elapsed_s / DAY_S) * _GIB) % (180 * _GIB)
    return Ds01Reading(None, 200 * _GIB, 200 * _GIB - used, used)


# The processes of scenario lab as procfs would show them, for the real attribution to parse.

UNIT = "ollama.service"

# uid and cgroup of the jobs outside Docker's containers, by the job's number
_ELSEWHERE: dict[int, tuple[int, str]] = {
    6: (0, cgroup(SERVE)),
    7: (0, cgroup(WORKER)),
    8: (CHEN.uid, f"0::/user.slice/user-{CHEN.uid}.slice/session-41.scope\n"),
    9: (DANA.uid, f"0::/system.slice/slurmstepd.scope/job_{SLURM_JOB}/step_0/user/task_0\n"),
    12: (OLLAMA_UID, f"0::/system.slice/{UNIT}\n"),
}


def _places() -> dict[int, tuple[int, str]]:
    in_containers = {
        job: (container.person.uid, container.cgroup) for container in CONTAINERS for job in container.jobs
    }
    return in_containers | _ELSEWHERE


def _details(job: LabJob, uid: int, cgroup: str) -> ProcessDetails:
    pid = job.key.pid
    inner = f"\t{pid % 97 + 1}" if "docker-" in cgroup or "kubepods" in cgroup else ""
    status = f"Name:\t{job.name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pid}{inner}\n"
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
        self._by_pid = {job.key.pid: job.command for job in JOBS} | {run.pid: run.command for run in RUNS}

    def name(self, pid: int) -> str | None:
        return self._by_pid.get(pid)

    def command_line(self, key: ProcessKey) -> tuple[str, ...]:
        return tuple(self._by_pid.get(key.pid, "").split())


class LabWorld(NamedTuple):
    """Stand-ins for what reads processes and users, and which processes are visible."""

    reader: LabProcessReader
    view: PidView
    users: LabNames
    commands: LabCommands


def lab_world(load: LabLoad | None = None) -> LabWorld:
    view = PidView(PidScope.HOST, "the scenario shows every process of its host")
    return LabWorld(LabProcessReader(load or FixedLoad()), view, LabNames(), LabCommands())
