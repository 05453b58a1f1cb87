"""A node with processes on its GPUs, attributed by the real rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attribution.builders import GIB, HOST, gpu, identity, reading, table
from gpucommons.model.gpu import GpuProcess, MigInstance
from gpucommons.model.leases import LeasesReading
from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import PidView, ProcessContext, ProcessKey
from gpucommons.model.snapshot import Readings
from gpucommons.model.workloads import Container, ContainerReading, Pod, PodReading, UsersReading
from gpucommons.owners.attribute import Attributor
from gpucommons.owners.workload import Surroundings
from gpucommons.scheduler.programs.jobs import GpuUser, Program, ProgramReading, group, read_programs

USERS = {0: "root", 1000: "alice", 1001: "bob", 998: "ollama"}
GROUPS = {"vision": frozenset({"alice"}), "students": frozenset({"bob"}), "lab": frozenset({"alice", "bob"})}


def docker(number: int) -> str:
    return f"0::/system.slice/docker-{number:064x}.scope"


def kubernetes(pod: int, container: int) -> str:
    return f"0::/kubepods/pod{pod_uid(pod)}/{container:064x}"


def pod_uid(number: int) -> str:
    return f"{number:08x}-0000-0000-0000-000000000000"


def slurm(job: int) -> str:
    return f"0::/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0"


def unit(name: str) -> str:
    return f"0::/system.slice/{name}"


def rootless(uid: int, container: int) -> str:
    """A container in a tree that its user may write: the id in it may be another's."""
    return f"0::/user.slice/user-{uid}.slice/user@{uid}.service/user.slice/libpod-{container:064x}.scope"


BARE = "0::/user.slice"


@dataclass(frozen=True, slots=True)
class Proc:
    """One process: where it runs, and on which GPUs. `unseen` is why the agent cannot see it."""

    pid: int
    cgroup: str = BARE
    uid: int = 1000
    name: str = "python3"
    gpus: tuple[int, ...] = (0,)
    kind: str = "compute"
    memory: int | None = GIB
    sm: int | None = 50
    instance: int | None = None
    start_ticks: int = 100
    unseen: Reason | None = None
    context: ProcessContext | None = None

    @property
    def key(self) -> ProcessKey:
        return ProcessKey(self.pid, self.start_ticks)


@dataclass(slots=True)
class Node:
    processes: Sequence[Proc] = ()
    gpus: int = 1
    containers: Sequence[Container] = ()
    pods: Sequence[Pod] = ()
    mig: Mapping[int, tuple[MigInstance, ...]] = field(default_factory=dict)
    percent: int | None = 50
    unlisted: tuple[int, ...] = ()
    view: PidView = HOST
    lease_clients: Mapping[str, ProcessKey] = field(default_factory=dict)

    def readings(self) -> Readings:
        gpus = [
            gpu(
                index,
                None if index in self.unlisted else [_listed(p) for p in self.processes if index in p.gpus],
                percent=self.percent,
                mig=self.mig.get(index, ()),
            )
            for index in range(self.gpus)
        ]
        seen = [p for p in self.processes if p.unseen is None]
        identities = table(
            *(identity(p.pid, p.cgroup, uid=p.uid, start_ticks=p.start_ticks, name=p.name) for p in seen),
            view=self.view,
            failures={p.pid: p.unseen for p in self.processes if p.unseen is not None},
        )
        containers = {one.id: one for one in self.containers}
        pods = PodReading.of(self.pods) if self.pods else None
        around = Surroundings(containers, pods, user_names=USERS)
        gpu_reading = reading(*gpus)
        return Readings(
            gpus=gpu_reading,
            attribution=Attributor().attribute(gpu_reading, identities, around),
            docker=ContainerReading(containers),
            pods=pods,
            users=UsersReading(members=GROUPS),
            process_contexts={p.key: p.context for p in self.processes if p.context is not None},
            leases=LeasesReading(clients=self.lease_clients),
        )

    def read(self, as_of_s: float = 0.0) -> ProgramReading:
        found = read_programs(self.readings(), as_of_s)
        assert found is not None
        return found

    def programs(self) -> tuple[Program, ...]:
        return group(self.read().processes)


def programs_of(*processes: Proc, **given: object) -> tuple[Program, ...]:
    gpus = 1 + max((index for p in processes for index in p.gpus), default=0)
    return Node(processes, **{"gpus": gpus, **given}).programs()  # type: ignore[arg-type]


def program_of(*processes: Proc, **given: object) -> Program:
    (program,) = programs_of(*processes, **given)
    return program


def user_of(process: Proc, **given: object) -> GpuUser:
    return program_of(process, **given).first


def _listed(process: Proc) -> GpuProcess:
    key = None if process.unseen else process.key
    return GpuProcess(process.pid, key, process.kind, process.memory, process.sm, gpu_instance_id=process.instance)
