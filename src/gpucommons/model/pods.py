"""The pods of this node at an instant, and their devices. A pod is identified by its UID."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

# In order of precedence: if a pod has both annotations of one limit, the first is in force.
MEMORY_LIMIT_ANNOTATIONS = ("xpushare.com/gpu-memory-limit", "nvshare.com/gpu-memory-limit")
CORE_LIMIT_ANNOTATIONS = ("xpushare.com/gpu-core-limit", "nvshare.com/gpu-core-limit")
QUOTA_ANNOTATIONS = (*MEMORY_LIMIT_ANNOTATIONS, *CORE_LIMIT_ANNOTATIONS)
# A label of containers and an annotation of pods: "no" leaves an idle holder alone.
IDLE_LABEL = "gpucommons.idle"
KEPT_ANNOTATIONS = (*QUOTA_ANNOTATIONS, IDLE_LABEL)


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. `labels` holds only the allow-listed ones, `annotations` only KEPT_ANNOTATIONS.

    The API knows a static pod by the UID of its mirror pod, while its cgroup contains `config_hash`, 32 hex digits.
    `containers` maps full container ids to names in the pod.
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
    """This node's pods, by each identifier that a process's cgroup may contain."""

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
