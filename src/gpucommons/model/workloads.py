"""What runs on the node at an instant, and for which users: containers, pods, batch jobs, DS01's state.

A container is identified by its full id, a pod by its UID.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

# The containers of one runtime at an instant. A container is identified by its full id.
#
# Of a container's environment only NVIDIA_VISIBLE_DEVICES is kept: the rest may contain secrets.


class ContainerState(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    RESTARTING = "restarting"
    REMOVING = "removing"
    EXITED = "exited"
    DEAD = "dead"
    UNKNOWN = "unknown"

    @property
    def has_processes(self) -> bool:
        """Whether it has processes. A container without processes may still hold its GPUs."""
        return self in (ContainerState.RUNNING, ContainerState.PAUSED)


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A device request by `--gpus` or a CDI device. A count of -1 means all devices.

    `device_ids` are as the user wrote them: an index, a UUID, `0:1` for a MIG device, a CDI name.
    """

    driver: str
    count: int
    device_ids: tuple[str, ...] = ()


class Container(NamedTuple):
    """One container, running or not. Renaming changes `name`, restarting `init_pid` and `started_wall_s`.

    `visible_devices` is its NVIDIA_VISIBLE_DEVICES: None if unset, which differs from the empty string. `devices` are
    the host paths of devices that were passed in individually.
    """

    id: str
    name: str
    runtime: str
    state: ContainerState
    image: str = ""
    labels: Mapping[str, str] = {}
    init_pid: int | None = None
    created_wall_s: float | None = None
    started_wall_s: float | None = None
    device_requests: tuple[DeviceRequest, ...] = ()
    visible_devices: str | None = None
    devices: tuple[str, ...] = ()
    privileged: bool = False
    cgroup_parent: str = ""


class ContainerReading(NamedTuple):
    """Every container of one runtime, by full id."""

    by_id: Mapping[str, Container]


def all_containers(*readings: ContainerReading | None) -> Mapping[str, Container]:
    """The containers of several runtimes by full id; an absent runtime has none."""
    present = [reading.by_id for reading in readings if reading is not None]
    if len(present) == 1:
        return present[0]
    return {id: container for by_id in present for id, container in by_id.items()}


class ContainerUsage(NamedTuple):
    """`memory_bytes` excludes file cache that can be dropped; `memory_limit_bytes` is None without a limit."""

    name: str
    runtime: str
    cpu_seconds: float | None
    memory_bytes: int | None
    memory_limit_bytes: int | None


class ContainerUsageReading(NamedTuple):
    by_id: Mapping[str, ContainerUsage]


# The pods of this node at an instant, and their devices. A pod is identified by its UID.

# In order of precedence: if a pod has several annotations of one limit, the first is in force.
MEMORY_LIMIT_ANNOTATIONS = (
    "gpucommons.io/memory",
    "xpushare.com/gpu-memory-limit",
    "nvshare.com/gpu-memory-limit",
)
CORE_LIMIT_ANNOTATIONS = ("gpucommons.io/core", "xpushare.com/gpu-core-limit", "nvshare.com/gpu-core-limit")
CLASS_ANNOTATION = "gpucommons.io/class"
# These may also be labels of the pod; the annotation takes precedence.
OWN_ANNOTATIONS = (CLASS_ANNOTATION, CORE_LIMIT_ANNOTATIONS[0], MEMORY_LIMIT_ANNOTATIONS[0])
QUOTA_ANNOTATIONS = (*MEMORY_LIMIT_ANNOTATIONS, *CORE_LIMIT_ANNOTATIONS)
# A label of containers and an annotation of pods: "no" leaves an idle holder alone.
IDLE_LABEL = "gpucommons.idle"
KEPT_ANNOTATIONS = (*QUOTA_ANNOTATIONS, CLASS_ANNOTATION, IDLE_LABEL)


class Pod(NamedTuple):
    """One pod. `labels` holds only the allow-listed ones, `annotations` only KEPT_ANNOTATIONS.

    The API knows a static pod by the UID of its mirror pod, while its cgroup contains `config_hash`, 32 hex digits.
    `containers` maps full container ids to names in the pod.
    """

    uid: str
    name: str
    namespace: str
    phase: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    containers: Mapping[str, str] = {}
    config_hash: str | None = None
    priority_class: str = ""


class PodReading(NamedTuple):
    """This node's pods, by each identifier that a process's cgroup may contain."""

    by_uid: Mapping[str, Pod]
    by_config_hash: Mapping[str, Pod] = {}
    by_container_id: Mapping[str, Pod] = {}

    @classmethod
    def of(cls, pods: Iterable[Pod]) -> "PodReading":
        by_uid = {pod.uid: pod for pod in pods}
        return cls(
            MappingProxyType(by_uid),
            MappingProxyType({pod.config_hash: pod for pod in by_uid.values() if pod.config_hash}),
            MappingProxyType({id: pod for pod in by_uid.values() for id in pod.containers}),
        )

    def find(self, cgroup_uid: str) -> Pod | None:
        """The pod with this identifier in its cgroup: the UID, or the configuration hash of a static pod."""
        return self.by_uid.get(cgroup_uid) or self.by_config_hash.get(cgroup_uid)


class DeviceId(NamedTuple):
    """One parsed device id of a device plugin. What the `raw` form does not contain is None.

    A GPU is named by `gpu_uuid` or `gpu_index`, a MIG device by `mig_uuid` or by the GPU instance (and compute
    instance). `replica` is the number of the share if the plugin hands out one device several times.
    """

    raw: str
    gpu_uuid: str | None = None
    gpu_index: int | None = None
    mig_uuid: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    replica: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether the form is known: it names a GPU or a MIG device."""
        return self.gpu_uuid is not None or self.gpu_index is not None or self.mig_uuid is not None


class PodDevices(NamedTuple):
    """The devices of one resource that are allocated to one container of one pod."""

    namespace: str
    pod: str
    container: str
    devices: tuple[DeviceId, ...]


class PodDevicesReading(NamedTuple):
    """The devices of each container. `allocatable`, by resource, is None if the kubelet does not report it."""

    allocated: tuple[PodDevices, ...]
    allocatable: Mapping[str, tuple[DeviceId, ...]] | None = None


# What the agent offers to Kubernetes.


class OfferedResource(NamedTuple):
    """The shares of all GPUs under one resource name, such as gpucommons.io/gpu."""

    name: str
    healthy: int
    unhealthy: int


class DevicePluginReading(NamedTuple):
    """`registrations` counts those since the agent started: one for each resource and start of the kubelet."""

    resources: tuple[OfferedResource, ...]
    registrations: int


class NodeFaultsReading(NamedTuple):
    """What the node's object shows: how many GPU faults, and whether it has the agent's taint."""

    faults: int
    tainted: bool


# What DS01, a management system for shared GPU servers, keeps on disk: the state file of older installations, and the
# disk that holds it.


class Ds01Entry(NamedTuple):
    """One allocation in the state file. `gpu_id` is a slot, "1" or "1.0"; `stopped` is the state of its container."""

    container: str
    user: str
    gpu_id: str
    allocated_wall_s: float | None = None
    stopped: bool = False


class Ds01Reading(NamedTuple):
    """`entries` is None if there is no state file; newer installations have none."""

    entries: tuple[Ds01Entry, ...] | None
    disk_total_bytes: int | None = None
    disk_free_bytes: int | None = None
    disk_used_bytes: int | None = None


# The jobs of a batch system on each GPU, from the mapping files that its prolog writes.


class MappedJob(NamedTuple):
    """`uid` is that of the job's user if the file shows it: it does not if the prolog runs as root.

    `share` is the part of the GPU that the job was given: less than 1 for a job with shards.
    """

    id: str
    uid: int | None = None
    share: Fraction = Fraction(1)


# The index of a GPU, and the GPU instance of a MIG device; None is the whole GPU.
JobPlace = tuple[int, int | None]


class JobMappingReading(NamedTuple):
    """`problems` has one line for each file that could not be used completely."""

    jobs: Mapping[JobPlace, tuple[MappedJob, ...]] = {}
    problems: tuple[str, ...] = ()

    def ids(self, gpu_index: int, gpu_instance_id: int | None) -> tuple[str, ...]:
        return tuple(job.id for job in self.jobs.get((gpu_index, gpu_instance_id), ()))


class JobHostUse(NamedTuple):
    """The CPUs and host memory of a batch job on this node: what it was given, and what its cgroup has used.

    `run_s` is the time since it began here.
    """

    cpus: int | None = None
    memory_limit_bytes: int | None = None
    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    run_s: float | None = None


class JobHostReading(NamedTuple):
    """By the id of the job."""

    by_id: Mapping[str, JobHostUse] = {}


# The users of a node at an instant: names, groups, CPU and memory of their slices, SSH sessions.


class UserSlice(NamedTuple):
    """CPU and memory of a user's processes. The CPU seconds never decrease while the agent runs."""

    user: str
    group: str
    cpu_seconds: float | None
    memory_bytes: int | None


class UsersReading(NamedTuple):
    """`group_of` is the group that a user is billed under; `members` are all users of each group.

    `ssh_sessions` is None if the system has neither utmp nor logind. `container_uids` is the uid of the first process
    of each running container.
    """

    names: Mapping[int, str] = {}
    group_of: Mapping[str, str] = {}
    members: Mapping[str, frozenset[str]] = {}
    slices: tuple[UserSlice, ...] = ()
    ssh_sessions: Mapping[str, int] | None = None
    container_uids: Mapping[str, int] = {}
