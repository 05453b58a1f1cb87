"""The messages of the kubelet's device-plugin API, v1beta1: what the kubelet asks, and what a plugin answers. Pure.

The numbers of the fields are those of k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from gpucommons.base.protobuf import (
    BrokenMessage,
    flag_field,
    message_field,
    number_of,
    submessages,
    text_field,
    texts_of,
)
from gpucommons.kubernetes.shares import ContainerGrant, OfferedDevice, share_ids

VERSION: Final = "v1beta1"
REGISTER: Final = "/v1beta1.Registration/Register"
SERVICE: Final = "v1beta1.DevicePlugin"
EMPTY: Final = b""

# The kubelet asks for one.
_MAX_CONTAINERS: Final = 64
_HEALTHY, _UNHEALTHY = "Healthy", "Unhealthy"

# DevicePluginOptions: GetPreferredAllocation is served, and PreStartContainer is not needed.
OPTIONS: Final = flag_field(2, True)


def register_request(endpoint: str, resource: str) -> bytes:
    return text_field(1, VERSION) + text_field(2, endpoint) + text_field(3, resource) + message_field(4, OPTIONS)


def device_list(devices: Iterable[OfferedDevice], shares_per_gpu: int) -> bytes:
    """ListAndWatchResponse."""
    return b"".join(
        message_field(1, text_field(1, share) + text_field(2, _HEALTHY if device.healthy else _UNHEALTHY))
        for device in devices
        for share in share_ids(device, shares_per_gpu)
    )


class PreferenceRequest(NamedTuple):
    available: Sequence[str]
    must_include: Sequence[str]
    size: int


def preference_requests(message: bytes) -> list[PreferenceRequest]:
    """PreferredAllocationRequest: one entry for each container."""
    return [
        PreferenceRequest(texts_of(content, 1), texts_of(content, 2), number_of(content, 3))
        for content in _containers(message)
    ]


def preference_answer(chosen: Iterable[Iterable[str]]) -> bytes:
    return b"".join(message_field(1, b"".join(text_field(1, share) for share in shares)) for shares in chosen)


def allocate_requests(message: bytes) -> list[list[str]]:
    """AllocateRequest: the shares for each container."""
    return [texts_of(content, 1) for content in _containers(message)]


def _containers(message: bytes) -> list[bytes]:
    contents = list(islice(submessages(message, 1), _MAX_CONTAINERS + 1))
    if len(contents) > _MAX_CONTAINERS:
        raise BrokenMessage(f"more than {_MAX_CONTAINERS} containers")
    return contents


def allocate_answer(grants: Iterable[ContainerGrant]) -> bytes:
    return b"".join(message_field(1, _container(granted)) for granted in grants)


def _container(given: ContainerGrant) -> bytes:
    variables = (text_field(1, name) + text_field(2, value) for name, value in given.environment.items())
    mounts = (text_field(1, mount[0]) + text_field(2, mount[1]) + flag_field(3, mount[2]) for mount in given.mounts)
    devices = (text_field(1, name) for name in given.cdi_devices)
    return b"".join(
        message_field(field, content)
        for field, messages in ((1, variables), (2, mounts), (5, devices))
        for content in messages
    )
