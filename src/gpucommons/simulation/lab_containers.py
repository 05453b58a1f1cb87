"""The containers of scenario lab: each way to start one, active and idle ones, and one that DS01 does not manage."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from gpucommons.model.workloads import (
    Container,
    ContainerReading,
    ContainerState,
    ContainerUsage,
    ContainerUsageReading,
    DeviceRequest,
)
from gpucommons.simulation.lab_gpus import LabGpus
from gpucommons.simulation.lab_jobs import JOBS
from gpucommons.simulation.lab_people import ALICE, BOB, CHEN, DANA, EMEKA, FARAH, Person
from gpucommons.simulation.scenario import wobble

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
CONTAINER_UIDS: Mapping[str, int] = {each.id: each.person.uid for each in CONTAINERS if each.running}


class LabContainers:
    """The reading of the Docker source: the same object while nothing changes, as in the real source."""

    def __init__(self, gpus: LabGpus) -> None:
        self._gpus = gpus
        found = {each.id: self._container(number, each) for number, each in enumerate(CONTAINERS)}
        self._reading = ContainerReading(found)

    def at(self, elapsed_s: float) -> ContainerReading:
        return self._reading

    def _container(self, number: int, each: LabContainer) -> Container:
        now_s = self._gpus.started_wall_s
        started_s = now_s - each.hours * _HOUR_S
        labels = dict(each.labels)
        if "ds01.managed" in labels:
            labels["ds01.gpu.allocated_at"] = datetime.fromtimestamp(started_s, UTC).isoformat()
        names = [self._uuid(device) for device in each.devices or ()]
        given = (DeviceRequest("", 0, tuple(names)),) if names else ()
        return Container(
            id=each.id,
            name=each.name,
            runtime="docker",
            state=ContainerState.RUNNING if each.running else ContainerState.EXITED,
            image=each.image,
            labels=labels,
            init_pid=_init_pid(number, each),
            created_wall_s=started_s - 2.0,
            started_wall_s=started_s,
            device_requests=_ALL if each.devices is None else given,
            cgroup_parent=each.cgroup_parent,
        )

    def _uuid(self, device: Device) -> str:
        return self._gpus.identities[device].uuid if isinstance(device, int) else self._gpus.mig_uuids[device]


def usage(elapsed_s: float) -> ContainerUsageReading:
    """CPU and memory of each running container."""
    return ContainerUsageReading(
        {each.id: _usage(number, each, elapsed_s) for number, each in enumerate(CONTAINERS) if each.running}
    )


def _usage(number: int, each: LabContainer, elapsed_s: float) -> ContainerUsage:
    memory = each.gib * 2**30 * (1 + 0.05 * wobble(elapsed_s, 67, number))
    limit = int(each.gib * 2) * 2**30 if each.sliced else None
    return ContainerUsage(each.name, "docker", each.cores * (_HOUR_S * each.hours + elapsed_s), int(memory), limit)


def _init_pid(number: int, each: LabContainer) -> int | None:
    if not each.running:
        return None
    return JOBS[each.jobs[0]].key.pid if each.jobs else 3000 + number
