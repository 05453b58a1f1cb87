"""Which shares of GPUs a node offers to pods, which of them suit together, and what a container gets for them. Pure.

A GPU, or each MIG device of a GPU in MIG mode, is offered as a number of shares. A share is the right to use the GPU
with others: the scheduler gives turns among the programs, and Kubernetes counts the shares. The id of a share is the
UUID and a number, GPU-...__3, as nvshare's device plugin writes it: `sources/kubernetes/kubelet.py` reads it back.

nvshare's and XPUShare's resources are offered under their own names, so that pods made for them run unchanged. Each
resource has shares of its own: the kubelet counts them separately.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from gpucommons.model.gpu import GpuReading
from gpucommons.model.workloads import PodDevicesReading
from gpucommons.sources.kubernetes.cdi import CDI_KIND

_BETWEEN: Final = "__"
# The folder that stands for a list of GPUs where containers may not choose them by a variable: each file is a UUID.
MOUNTED_DEVICES: Final = "/var/run/nvidia-container-devices"

Injection = Literal["cdi", "environment", "mounts"]
Placement = Literal["spread", "packed"]


class ShareMount(NamedTuple):
    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class ShareResource:
    """One extended resource of the node. `library` is nvshare or xpushare where the containers get its library."""

    name: str
    shares_per_gpu: int
    library: Literal["nvshare", "xpushare"] | None = None

    @property
    def socket_name(self) -> str:
        return f"gpucommons-{self.name.replace('/', '-')}.sock"


# What is offered.


class OfferedDevice(NamedTuple):
    """A GPU or a MIG device. `gpu_uuid` is that of the whole GPU."""

    uuid: str
    gpu_uuid: str
    healthy: bool


def offered_devices(
    reading: GpuReading, faulty: AbstractSet[str], before: Iterable[OfferedDevice] = ()
) -> tuple[OfferedDevice, ...]:
    """A lost GPU keeps the devices that it had before, as unhealthy. A GPU in MIG mode without devices offers none."""
    uuids_of_gpu: dict[str, list[str]] = {}
    for device in before:
        uuids_of_gpu.setdefault(device.gpu_uuid, []).append(device.uuid)
    devices: list[OfferedDevice] = []
    for gpu in reading.gpus:
        uuid = gpu.identity.uuid
        if not gpu.up:
            uuids = uuids_of_gpu.get(uuid, [uuid])
        elif gpu.mig_enabled:
            uuids = [instance.uuid for instance in gpu.mig]
        else:
            uuids = [uuid]
        devices += (OfferedDevice(device_uuid, uuid, uuid not in faulty) for device_uuid in uuids)
    return tuple(devices)


def share_ids(device: OfferedDevice, shares_per_gpu: int) -> Iterator[str]:
    return (f"{device.uuid}{_BETWEEN}{number}" for number in range(1, shares_per_gpu + 1))


def device_uuid(share_id: str) -> str:
    return share_id.rpartition(_BETWEEN)[0]


# Which shares suit together.


def allocated_shares(reading: PodDevicesReading | None) -> Mapping[str, int]:
    """How many devices of any resource pods have on each GPU or MIG device, by UUID."""
    given = (device for pod in reading.allocated for device in pod.devices) if reading is not None else ()
    return Counter(uuid for device in given if (uuid := device.mig_uuid or device.gpu_uuid))


def preferred_shares(
    available: Iterable[str],
    must_include: Sequence[str],
    count: int,
    allocated: Mapping[str, int],
    shares_per_gpu: int,
    placement: Placement,
) -> list[str]:
    """The shares that a container should get.

    spread: each on the GPU with the fewest shares in use, so that several shares are several GPUs.
    packed: all on one GPU where it has room for them, and of these on the one with the most shares in use.
    """
    left: dict[str, list[str]] = {}
    for share in sorted(set(available).difference(must_include), key=_ordered):
        left.setdefault(device_uuid(share), []).append(share)
    # Shares of other resources are known from PodResources, some seconds late; those of this one by what is missing.
    in_use = {uuid: max(shares_per_gpu - len(shares), allocated.get(uuid, 0)) for uuid, shares in left.items()}
    chosen = list(must_include[:count])
    chosen_on = Counter(map(device_uuid, chosen))
    while len(chosen) < count and left:
        missing = count - len(chosen)

        def rank(uuid: str, missing: int = missing) -> tuple[float, ...]:
            if placement == "spread":
                return chosen_on[uuid], in_use[uuid]
            return -chosen_on[uuid], len(left[uuid]) < missing, -in_use[uuid]

        uuid = min(left, key=rank)
        chosen.append(left[uuid].pop(0))
        chosen_on[uuid] += 1
        if not left[uuid]:
            del left[uuid]
    return chosen


def _ordered(share_id: str) -> tuple[str, int, str]:
    """By device, then by number: __9 before __10."""
    uuid, _, number = share_id.rpartition(_BETWEEN)
    return uuid, len(number), number


# What a container gets.


class UnknownShare(ValueError):
    """The kubelet asks for a share that is not offered."""


@dataclass(frozen=True, slots=True)
class ContainerGrant:
    """What the runtime adds to one container."""

    environment: Mapping[str, str]
    mounts: tuple[ShareMount, ...] = ()
    cdi_devices: tuple[str, ...] = ()


def grant(
    shares: Iterable[str],
    offered: Collection[OfferedDevice],
    resource: ShareResource,
    injection: Injection,
) -> ContainerGrant:
    """Each GPU once, however many of its shares are given. Raises UnknownShare."""
    device_of_share = {share: device.uuid for device in offered for share in share_ids(device, resource.shares_per_gpu)}
    uuids: dict[str, None] = {}
    for share in shares:
        if share not in device_of_share:
            raise UnknownShare(f"{resource.name} has no share {share}")
        uuids[device_of_share[share]] = None
    environment: dict[str, str] = {}
    mounts: list[ShareMount] = []
    if injection == "mounts":
        environment["NVIDIA_VISIBLE_DEVICES"] = MOUNTED_DEVICES
        mounts += (ShareMount(f"{MOUNTED_DEVICES}/{uuid}", "/dev/null", read_only=False) for uuid in uuids)
    elif injection == "environment":
        environment["NVIDIA_VISIBLE_DEVICES"] = ",".join(uuids)
    if (name := resource.library) is not None:
        # Its own installation puts both files on the host.
        library, socket = f"/usr/lib/{name}/lib{name}.so", f"/var/run/{name}/scheduler.sock"
        environment["LD_PRELOAD"] = library
        mounts += (ShareMount(library, f"/var/run/{name}/lib{name}.so"), ShareMount(socket, socket))
    cdi_devices = tuple(f"{CDI_KIND}={uuid}" for uuid in uuids) if injection == "cdi" else ()
    return ContainerGrant(environment, tuple(mounts), cdi_devices)
