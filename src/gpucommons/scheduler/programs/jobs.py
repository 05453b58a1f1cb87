"""From a snapshot's readings to programs: every process on a GPU belongs to exactly one. Pure.

A program has a short name, as people know it, and is active or not on each of its devices.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from gpucommons.base.text import printable
from gpucommons.model.gpu import Gpu, GpuProcess
from gpucommons.model.names import process_name, short_command
from gpucommons.model.ownership import WHOLE_SM, Owner, OwnerKind, ProcessShare, Reason, Workload
from gpucommons.model.process_identity import ProcessContext, ProcessKey
from gpucommons.model.snapshot import Readings
from gpucommons.model.workloads import Container, all_containers
from gpucommons.rules.placement import lease_of_ancestors, leases_by_client, leases_of_processes, memory_shares

# Whether a process used its GPU, and which device that is, from one GPU reading. Pure.
#
# The driver samples a process from its first use of the GPU on, and reports 0 while it is idle later. So where other
# processes of the GPU have samples, one without has not used it yet. Where none has (MIG, a driver without samples),
# the activity of the whole GPU only shows whether any of them did. Clients of MPS have no samples: their server has.


class ProgramActivity(StrEnum):
    """Whether the GPU was used. Unknown is not idle."""

    ACTIVE = "active"
    IDLE = "idle"
    UNKNOWN = "unknown"


def combine(activities: Iterable[ProgramActivity]) -> ProgramActivity:
    """Of several processes: active if one is, idle only if all are."""
    distinct = set(activities)
    if ProgramActivity.ACTIVE in distinct:
        return ProgramActivity.ACTIVE
    return ProgramActivity.IDLE if distinct == {ProgramActivity.IDLE} else ProgramActivity.UNKNOWN


def activity_of(gpu: Gpu, process: GpuProcess, share: ProcessShare | None) -> ProgramActivity:
    """`share` is what attribution found of this process; it rejects samples of the last process with this pid."""
    if process.sm_percent is not None:
        if share is None or share.sm is None:
            return ProgramActivity.UNKNOWN
        return ProgramActivity.ACTIVE if process.sm_percent > 0 else ProgramActivity.IDLE
    if _is_quiet(gpu, process.gpu_instance_id):
        return ProgramActivity.IDLE
    if "mps" in process.kind.split("+"):
        return ProgramActivity.UNKNOWN
    neighbours = (
        neighbour for neighbour in gpu.processes or () if neighbour.gpu_instance_id == process.gpu_instance_id
    )
    return (
        ProgramActivity.IDLE
        if any(neighbour.sm_percent is not None for neighbour in neighbours)
        else ProgramActivity.UNKNOWN
    )


def device_of(gpu: Gpu, process: GpuProcess) -> str:
    """The UUID of the GPU, or of the MIG device that the process is on."""
    instance_id = process.gpu_instance_id
    if instance_id is None:
        return gpu.identity.uuid
    inside = [instance for instance in gpu.mig if instance.gpu_instance_id == instance_id]
    exact = [instance for instance in inside if instance.compute_instance_id == process.compute_instance_id]
    return next((instance.uuid for instance in (*exact, *inside)), f"{gpu.identity.uuid}/{instance_id}")


def _is_quiet(gpu: Gpu, gpu_instance_id: int | None) -> bool:
    """Whether the GPU, or that instance of it, was measured and did nothing."""
    if gpu_instance_id is None:
        ratio = gpu.gpm.graphics_ratio if gpu.gpm else None
        return gpu.readings.utilization_percent == 0 and not ratio
    gpm = next((instance.gpm for instance in gpu.mig if instance.gpu_instance_id == gpu_instance_id), None)
    return gpm is not None and gpm.graphics_ratio == 0


# From a snapshot's readings to programs: every process on a GPU belongs to exactly one. Pure.
#
# A program's key is stable for as long as the job lives. The first of these that a process has gives it:
#
# | key                       | job                                                                              |
# |---------------------------|----------------------------------------------------------------------------------|
# | `job:4711@1000`           | Slurm job; its steps and containers are one program                              |
# | `container:ID`            | container. Each container of a pod is a program: a pod may hold unrelated ones   |
# | `pod:UID`                 | pod, where the container is not known                                            |
# | `lease:12@1000`           | lease: what `gpucommons run` has started                                         |
# | `unit:ollama.service@998` | unit of the system's manager                                                     |
# | `scope:NAME@1000`         | login session (session-4.scope), or unit of the user's own manager               |
# | `session:812@1000`        | POSIX session                                                                    |
# | `process:4711.88123`      | single process: its pid and start time                                           |
#
# The uid is part of a key where one job may hold processes of several users (a notebook server's unit), and where users
# choose the name: a process in a cgroup tree that its user may write (`container:ID@1000`) cannot enter the job of
# another user.

_NO_CONTEXT: Final = ProcessContext()
_NO_WORKLOAD: Final = Workload()


class DeviceUse(NamedTuple):
    """What a process or program uses of one device: a GPU, or a MIG device of a GPU that is split.

    `kind` is NVML's: compute, graphics, mps, or several of these joined by a plus sign.
    """

    device: str
    kind: str
    memory_bytes: int | None
    activity: ProgramActivity
    # The share of the device's time in which its kernels ran; None where it is not known.
    busy_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class GpuUser:
    """One process that is on at least one GPU. `key` is None where it cannot be seen; `reason` then says why."""

    pid: int
    key: ProcessKey | None
    job: str
    uses: tuple[DeviceUse, ...]
    workload: Workload = _NO_WORKLOAD
    owner: Owner | None = None
    reason: Reason | None = None
    context: ProcessContext = _NO_CONTEXT
    groups: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    # The class that was requested with its lease; empty: none.
    lease_class: str = ""
    # The part of the GPU that a batch system gave to its job, such as two of four shards; None: whole GPUs.
    gpu_share: float | None = None
    # Its job holds more GPU memory than goes with this part.
    is_over_share: bool = False

    @property
    def command(self) -> str:
        """Such as train.py; empty where it is not known."""
        return short_command(self.context.command_line, self.workload.process_name)

    @property
    def user(self) -> str:
        """The person that it belongs to; empty where none is known."""
        return _person(self.owner, self.workload)


class Program(NamedTuple):
    """The processes of one job that use GPUs, by pid. `key` identifies the job; `processes` is never empty."""

    key: str
    processes: tuple[GpuUser, ...]

    @property
    def process_keys(self) -> frozenset[ProcessKey]:
        return frozenset(process.key for process in self.processes if process.key is not None)

    def has_reused_pid_of(self, before: "Program") -> bool:
        """Whether it is another program than `before`, whose key it has: the kernel gave its pid, and so its session
        id, to a new process. Processes that follow each other in one job have pids of their own."""
        pids = {process.pid for process in self.process_keys} & {process.pid for process in before.process_keys}
        return bool(pids) and not self.process_keys & before.process_keys

    @property
    def devices(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs and MIG devices that it is on, in order."""
        return tuple(sorted({use.device for process in self.processes for use in process.uses}))

    @property
    def processes_on(self) -> Mapping[str, tuple[ProcessKey, ...]]:
        """The processes on each device, by pid; those that cannot be seen are left out."""
        keys_on: dict[str, list[ProcessKey]] = {device: [] for device in self.devices}
        for process in self.processes:
            if process.key is not None:
                for device in {use.device for use in process.uses}:
                    keys_on[device].append(process.key)
        return {device: tuple(keys) for device, keys in keys_on.items()}

    @property
    def uses(self) -> Mapping[str, DeviceUse]:
        """What its processes together use of each device. Memory is None unless that of every process is known."""
        uses_on: dict[str, list[DeviceUse]] = {device: [] for device in self.devices}
        for process in self.processes:
            for use in process.uses:
                uses_on[use.device].append(use)
        return {device: _together(device, uses) for device, uses in uses_on.items()}

    @property
    def activity(self) -> ProgramActivity:
        return combine(use.activity for process in self.processes for use in process.uses)

    @property
    def counts_for(self) -> str:
        """Which owner it counts for: programs of one owner share what one program of another owner gets.

        As `owner_of` of base/peers.py: by what the kernel says of who has started it.
        """
        workload = self.first.workload
        if workload.container_id is not None and not workload.delegated:
            return f"container:{workload.container_id}"
        if workload.namespace_owner is not None:
            return workload.namespace_owner
        return self.key if self.uid is None else f"uid:{self.uid}"

    @property
    def first(self) -> GpuUser:
        """The process with the lowest pid."""
        return self.processes[0]

    @property
    def uid(self) -> int | None:
        """None where it is not known, or where its processes run as several users."""
        uids = {process.workload.uid for process in self.processes}
        return uids.pop() if len(uids) == 1 else None

    @property
    def gpu_share(self) -> float | None:
        return self.first.gpu_share

    @property
    def is_over_share(self) -> bool:
        return self.first.is_over_share

    @property
    def owner(self) -> Owner | None:
        return self.first.owner

    @property
    def user(self) -> str:
        return self.first.user

    @property
    def command(self) -> str:
        """The command that most of its processes run; of equally frequent ones, that of the lowest pid."""
        counts = Counter(process.command for process in self.processes if process.command)
        return counts.most_common(1)[0][0] if counts else ""

    @property
    def display_name(self) -> str:
        """Such as `alice · train.py (pid 4711)`: printable, and of bounded length."""
        return process_name(
            self._owner_name(), self.command or "unknown command", {process.pid for process in self.processes}
        )

    def _owner_name(self) -> str:
        pod, owner, uid = self.first.workload.pod, self.owner, self.uid
        if self.user:
            return self.user
        if pod is not None and pod.name:
            return f"{pod.namespace}/{pod.name}" if pod.namespace else pod.name
        if owner is not None and owner.kind is not OwnerKind.USER:
            return f"{owner.kind} {owner.name}"
        return "unknown owner" if uid is None else f"uid {uid}"


@dataclass(frozen=True, slots=True)
class ProgramReading:
    """Every process on a GPU, by pid, as of `as_of_s` of the monotonic clock.

    `unlisted` are the devices whose processes could not be read: programs there have not ended.
    """

    processes: tuple[GpuUser, ...] = ()
    unlisted: frozenset[str] = frozenset()
    as_of_s: float = 0.0
    # The share of time in which any kernel ran, by device; only whole GPUs.
    busy: Mapping[str, float] = field(default_factory=dict)


def read_programs(readings: Readings, as_of_s: float) -> ProgramReading | None:
    """The processes on all GPUs; None while the GPUs or the owners of processes cannot be read.

    `as_of_s` is when the GPUs were read. A process without a context is known by its attribution alone.
    """
    if readings.gpus is None or readings.attribution is None:
        return None
    shares = {(row.place.gpu_uuid, row.place.gpu_instance_id, row.pid): row for row in readings.attribution.processes}
    uses_of_process: dict[tuple[int, ProcessKey | None], list[tuple[DeviceUse, ProcessShare | None]]] = {}
    unlisted: set[str] = set()
    busy: dict[str, float] = {}
    for gpu in readings.gpus.present_gpus():
        if gpu.readings.utilization_percent is not None:
            busy[gpu.identity.uuid] = gpu.readings.utilization_percent / 100
        if gpu.processes is None:
            unlisted.update((gpu.identity.uuid, *(instance.uuid for instance in gpu.mig)))
        for process in gpu.processes or ():
            share = shares.get((gpu.identity.uuid, process.gpu_instance_id, process.pid))
            activity = activity_of(gpu, process, share)
            ratio = _busy_ratio(gpu, process, share)
            use = DeviceUse(device_of(gpu, process), process.kind, process.used_memory_bytes, activity, ratio)
            uses_of_process.setdefault((process.pid, None if share is None else share.key), []).append((use, share))
    surroundings, contexts = _Surroundings(readings), readings.process_contexts or {}
    leases = leases_of_processes(readings)
    rows = []
    for (pid, key), uses in uses_of_process.items():
        context, lease = (_NO_CONTEXT, None) if key is None else (contexts.get(key, _NO_CONTEXT), leases.get(key))
        share = uses[0][1]
        found = _NOT_LISTED if share is None else _Found(share.workload, share.owner, share.reason)
        rows.append(surroundings.describe(pid, key, [use for use, _ in uses], found, context, lease))
    return ProgramReading(tuple(sorted(rows, key=_by_pid)), frozenset(unlisted), as_of_s, busy)


def read_newcomer(readings: Readings, key: ProcessKey, workload: Workload, context: ProcessContext) -> GpuUser:
    """A process that no reading has listed yet, as the next one will have it. On which GPU it is, is not known."""
    leases = readings.leases
    lease = None if leases is None else lease_of_ancestors(context.ancestors, leases_by_client(leases))
    return _Surroundings(readings).describe(key.pid, key, [], _Found(workload, None, None), context, lease)


def _busy_ratio(gpu: Gpu, process: GpuProcess, share: ProcessShare | None) -> float | None:
    """By the driver's samples. One without a sample, where others have one, has not used the GPU."""
    if process.sm_percent is not None:
        return None if share is None or share.sm is None else share.sm.amount / WHOLE_SM
    neighbours = (
        neighbour for neighbour in gpu.processes or () if neighbour.gpu_instance_id == process.gpu_instance_id
    )
    return 0.0 if any(neighbour.sm_percent is not None for neighbour in neighbours) else None


def group(processes: Iterable[GpuUser]) -> tuple[Program, ...]:
    """The programs of these processes, by key."""
    jobs: dict[str, list[GpuUser]] = {}
    for process in processes:
        jobs.setdefault(process.job, []).append(process)
    return tuple(Program(key, tuple(sorted(jobs[key], key=_by_pid))) for key in sorted(jobs))


def _by_pid(process: GpuUser) -> tuple[int, int]:
    return process.pid, -1 if process.key is None else process.key.start_ticks


class _Found(NamedTuple):
    """What attribution has found of a process."""

    workload: Workload
    owner: Owner | None
    reason: Reason | None


_NOT_LISTED: Final = _Found(_NO_WORKLOAD, None, Reason.PROCESS_GONE)


class _Surroundings:
    """What the other readings know of a process: the groups of its user, the labels of its container and pod, the class
    that was requested with its lease."""

    def __init__(self, readings: Readings) -> None:
        self._containers: Mapping[str, Container] = all_containers(readings.docker, readings.podman)
        self._pods = readings.pods
        mapped = () if readings.job_mapping is None else readings.job_mapping.jobs.values()
        self._gpu_shares = {job.id: float(job.share) for jobs in mapped for job in jobs if job.share < 1}
        granted = () if readings.leases is None else readings.leases.leases
        self._lease_classes = {lease.request.id: lease.request.sharing_class for lease in granted}
        self._over_share = {job for (job, _), share in memory_shares(readings).items() if share.is_exceeded}
        self._groups: dict[str, set[str]] = {}
        if readings.users is not None:
            for name, members in readings.users.members.items():
                for member in members:
                    self._groups.setdefault(member, set()).add(name)
            for member, name in readings.users.group_of.items():
                self._groups.setdefault(member, set()).add(name)

    def describe(
        self,
        pid: int,
        key: ProcessKey | None,
        uses: Iterable[DeviceUse],
        found: _Found,
        context: ProcessContext,
        lease: str | None,
    ) -> GpuUser:
        workload, owner, reason = found
        return GpuUser(
            pid,
            key,
            _job_key(pid, key, workload, context, lease),
            tuple(sorted(uses, key=lambda use: (use.device, use.kind))),
            workload,
            owner,
            reason,
            context,
            frozenset(self._groups.get(_person(owner, workload), ())),
            self._labels(workload),
            self._lease_classes.get(lease or "", ""),
            gpu_share=self._gpu_shares.get(workload.job or ""),
            is_over_share=workload.job in self._over_share,
        )

    def _labels(self, workload: Workload) -> Mapping[str, str]:
        """A container's labels prevail over its pod's. None where the user may have made the container's id up."""
        if workload.delegated:
            return {}
        container = self._containers.get(workload.container_id or "")
        pod = self._pods.by_uid.get(workload.pod.uid) if self._pods and workload.pod else None
        return {**(pod.labels if pod else {}), **(container.labels if container else {})}


def _person(owner: Owner | None, workload: Workload) -> str:
    kind = None if owner is None else owner.kind
    if owner is not None and kind in (OwnerKind.SITE, OwnerKind.LABEL):
        return owner.name
    if workload.pod is not None and kind is not OwnerKind.USER:
        # A uid in a pod is that of its image, and does not name a person.
        return ""
    return workload.user or ""


def _job_key(pid: int, key: ProcessKey | None, workload: Workload, context: ProcessContext, lease: str | None) -> str:
    if key is None:
        return f"process:{pid}"
    if workload.container_id is not None and not workload.delegated and workload.job is None:
        return f"container:{workload.container_id}"
    if workload.pod is not None and workload.job is None:
        return f"pod:{workload.pod.uid}"
    named = _named_job(workload, context, lease)
    if named is None or workload.uid is None:
        return f"process:{key.pid}.{key.start_ticks}"
    return printable(f"{named}@{workload.uid}")


def _named_job(workload: Workload, context: ProcessContext, lease: str | None) -> str | None:
    """What the process belongs to, by a name that is unique only together with the uid."""
    session = str(context.session_id) if context.session_id else None
    jobs = (
        ("job", workload.job),
        ("container", workload.container_id),
        ("lease", lease),
        ("unit", workload.unit),
        ("scope", context.scope),
        ("session", session),
    )
    return next((f"{kind}:{name}" for kind, name in jobs if name), None)


def lease_of_program(key: str) -> str | None:
    """The id of the lease that has started a program, by the program's key."""
    kind, _, name = key.partition(":")
    return name.rpartition("@")[0] if kind == "lease" else None


def _together(device: str, uses: Iterable[DeviceUse]) -> DeviceUse:
    rows = list(uses)
    amounts = [use.memory_bytes for use in rows if use.memory_bytes is not None]
    return DeviceUse(
        device,
        "+".join(sorted({kind for use in rows for kind in use.kind.split("+") if kind})),
        sum(amounts) if len(amounts) == len(rows) else None,
        combine(use.activity for use in rows),
        sum(use.busy_ratio or 0.0 for use in rows) if any(use.busy_ratio is not None for use in rows) else None,
    )
