"""The pods of scenario lab: two of a service that share a GPU, which the device plugin hands out in halves."""

import hashlib
import uuid

from gpucommons.model.pods import (
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
_RESOURCE = "nvidia.com/gpu.shared"


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
PODS = (SERVE, WORKER)
_READING = PodReading.of(PODS)


def pods(elapsed_s: float) -> PodReading:
    return _READING


def cgroup(pod: Pod) -> str:
    container = next(iter(pod.containers))
    inside = f"kubepods-burstable-pod{pod.uid.replace('-', '_')}.slice/cri-containerd-{container}.scope"
    return f"0::/kubepods.slice/kubepods-burstable.slice/{inside}\n"


class LabPodDevices:
    """The reading of the kubelet's source: the same for as long as nothing changes."""

    def __init__(self, gpus: LabGpus) -> None:
        uuid = gpus.identities[SHARED_GPU].uuid
        shares = tuple(DeviceId(f"{uuid}::{n}", gpu_uuid=uuid, replica=n) for n in range(_SHARES))
        self._reading = PodDevicesReading(
            tuple(
                PodDevices(NAMESPACE, pod.name, next(iter(pod.containers.values())), _RESOURCE, (share,))
                for pod, share in zip(PODS, shares, strict=True)
            ),
            {_RESOURCE: shares},
        )

    def at(self, elapsed_s: float) -> PodDevicesReading:
        return self._reading
