"""The pods of this node at an instant, and the devices that the kubelet gave them. A pod is its UID."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

# By precedence: where a pod has both names of one limit, the first is in force.
MEMORY_LIMIT_ANNOTATIONS = ("xpushare.com/gpu-memory-limit", "nvshare.com/gpu-memory-limit")
CORE_LIMIT_ANNOTATIONS = ("xpushare.com/gpu-core-limit", "nvshare.com/gpu-core-limit")
QUOTA_ANNOTATIONS = (*MEMORY_LIMIT_ANNOTATIONS, *CORE_LIMIT_ANNOTATIONS)


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. `labels` holds only the allow-listed ones, `annotations` only QUOTA_ANNOTATIONS.

    A static pod is known to the API by the UID of its mirror, while its cgroup bears `config_hash`,
    32 hex digits. `containers` maps the full id of each container that has one to its name in the pod.
    """

    uid: str
    name: str
    namespace: str
    phase: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: Mapping[str, str] = field(default_factory=dict)
    config_hash: str | None = None


@dataclass(frozen=True, slots=True)
class PodReading:
    """This node's pods, by each of the things that a process's cgroup may tell of its pod."""

    by_uid: Mapping[str, Pod]
    by_config_hash: Mapping[str, Pod] = field(default_factory=dict)
    by_container_id: Mapping[str, Pod] = field(default_factory=dict)

    @classmethod
    def of(cls, pods: Iterable[Pod]) -> "PodReading":
        by_uid = {pod.uid: pod for pod in pods}
        return cls(
            MappingProxyType(by_uid),
            MappingProxyType({pod.config_hash: pod for pod in by_uid.values() if pod.config_hash}),
            MappingProxyType({id: pod for pod in by_uid.values() for id in pod.containers}),
        )

    def find(self, cgroup_uid: str) -> Pod | None:
        """The pod whose cgroup bears this: its UID, or for a static pod its configuration's hash."""
        return self.by_uid.get(cgroup_uid) or self.by_config_hash.get(cgroup_uid)


@dataclass(frozen=True, slots=True)
class DeviceId:
    """One device of a device plugin, taken apart. What its `raw` form does not say is None.

    A GPU is named by `gpu_uuid` or `gpu_index`, a part of it by `mig_uuid` or by the GPU instance (and
    compute instance). `replica` is the share's ordinal where the plugin hands one device out many times.
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
        """Whether the form was understood: some GPU, or part of one, is named."""
        return self.gpu_uuid is not None or self.gpu_index is not None or self.mig_uuid is not None


@dataclass(frozen=True, slots=True)
class PodDevices:
    """The devices of one resource that one container of one pod was given."""

    namespace: str
    pod: str
    container: str
    resource: str
    devices: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True)
class PodDevicesReading:
    """What the kubelet gave to whom. `allocatable`, by resource, is None where the kubelet cannot tell."""

    allocated: tuple[PodDevices, ...]
    allocatable: Mapping[str, tuple[DeviceId, ...]] | None = None
