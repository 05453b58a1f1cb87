"""The pods of scenario lab: two pods of a service that share a GPU, which the device plugin hands out in halves, and
one that has a MIG device and waits for requests."""

import hashlib
import uuid

from gpucommons.model.workloads import (
    CORE_LIMIT_ANNOTATIONS,
    MEMORY_LIMIT_ANNOTATIONS,
    DeviceId,
    Pod,
    PodDevices,
    PodDevicesReading,
    PodReading,
)
from gpucommons.simulation.lab_gpus import LabGpus

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


def _given(pod: Pod, device: DeviceId) -> PodDevices:
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
                *(_given(pod, share) for pod, share in zip(_SHARING, shares, strict=True)),
                _given(EMBEDDINGS, own),
            ),
            {_RESOURCE: shares, _MIG_RESOURCE: (own,)},
        )

    def at(self, elapsed_s: float) -> PodDevicesReading:
        return self._reading
