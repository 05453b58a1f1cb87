"""Which pod was given which device, from the kubelet's PodResources socket.

The ids of device plugins for GPUs, MIG devices and shares of them are parsed here.
"""

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpucommons.base.backoff import Backoff
from gpucommons.base.protobuf import BrokenMessage, submessages, text_of, texts_of
from gpucommons.model.workloads import DeviceId, PodDevices, PodDevicesReading
from gpucommons.sources.source import Latest, SourceAbsent, SourceError, keep_following

if TYPE_CHECKING:
    import grpc.aio


# Parses the ids that device plugins give to GPUs, MIG devices and shares of them. Pure.
#
# An id of an unknown form has only its text: the GPU that it names is unknown.

_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"

# NVIDIA's plugin writes a replica as ::3, nvshare's as __3.
_REPLICA = r"(?:(?:::|__)(?P<replica>\d{1,9}))?"

_FORMS = (
    re.compile(rf"(?P<gpu>GPU-{_UUID}){_REPLICA}", re.ASCII),
    re.compile(rf"(?P<mig>MIG-{_UUID}){_REPLICA}", re.ASCII),
    # Drivers before R470 had no UUIDs for MIG devices.
    re.compile(rf"MIG-(?P<gpu>GPU-{_UUID})/(?P<gi>\d{{1,9}})/(?P<ci>\d{{1,9}}){_REPLICA}", re.ASCII),
    # GKE's plugin names device files.
    re.compile(r"nvidia(?P<index>\d{1,9})(?:/gi(?P<gi>\d{1,9}))?(?:/vgpu(?P<replica>\d{1,9}))?", re.ASCII),
)


def parse_device_id(raw: str) -> DeviceId:
    for form in _FORMS:
        if match := form.fullmatch(raw):
            parts = match.groupdict()
            return DeviceId(
                raw,
                gpu_uuid=parts.get("gpu"),
                gpu_index=_number(parts.get("index")),
                mig_uuid=parts.get("mig"),
                gpu_instance=_number(parts.get("gi")),
                compute_instance=_number(parts.get("ci")),
                replica=_number(parts.get("replica")),
            )
    return DeviceId(raw)


def _number(digits: str | None) -> int | None:
    return None if digits is None else int(digits)


# Decodes the fields of the kubelet's PodResources v1 messages that show which pod has which device. Pure.

LIST = "/v1.PodResourcesLister/List"
GET_ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"
EMPTY_REQUEST = b""


def decode_list(message: bytes) -> tuple[PodDevices, ...]:
    """ListPodResourcesResponse: the devices of each container, one entry per container and resource."""
    return tuple(_given(message))


def decode_allocatable(message: bytes) -> Mapping[str, tuple[DeviceId, ...]]:
    """AllocatableResourcesResponse: every allocatable device, by resource."""
    return MappingProxyType({name: tuple(devices) for name, devices in _devices(message, 1).items()})


def _given(message: bytes) -> Iterator[PodDevices]:
    for pod in submessages(message, 1):
        name, namespace = text_of(pod, 1), text_of(pod, 2)
        for container in submessages(pod, 3):
            container_name = text_of(container, 1)
            for devices in _devices(container, 2).values():
                yield PodDevices(namespace, name, container_name, tuple(devices))


def _devices(message: bytes, number: int) -> dict[str, list[DeviceId]]:
    """The ContainerDevices in a field. The kubelet splits a resource by NUMA node: merged here."""
    by_resource: dict[str, list[DeviceId]] = {}
    for devices in submessages(message, number):
        ids = [parse_device_id(id) for id in texts_of(devices, 2)]
        by_resource.setdefault(text_of(devices, 1), []).extend(ids)
    return by_resource


# Which pod was given which device, from the kubelet's PodResources socket.
#
# A background task polls it; `read` returns the newest result. Without the gRPC package the source is absent and names
# the extra that installs it.

DEFAULT_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"

_REFRESH_S = 10.0
_TIMEOUT_S = 5.0
_MAX_ANSWER_BYTES = 16 * 1024 * 1024
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_ANSWER_BYTES),
    ("grpc.enable_http_proxy", 0),
)


class PodDevicesFollower:
    """`run` must be running."""

    def __init__(
        self,
        socket: str = DEFAULT_SOCKET,
        *,
        refresh_s: float = _REFRESH_S,
        timeout_s: float = _TIMEOUT_S,
        backoff: Backoff | None = None,
    ) -> None:
        self._socket = socket
        self._refresh_s = refresh_s
        self._timeout_s = timeout_s
        self._backoff = backoff or Backoff()
        self._latest: Latest[PodDevicesReading] = Latest("requesting the devices of pods from the kubelet")

    def read(self) -> PodDevicesReading:
        return self._latest.read()

    async def run(self) -> None:
        """Keep the result current until cancelled, across restarts of the kubelet."""
        await keep_following(self._follow, self._latest.fail_by, self._backoff)

    async def _follow(self) -> None:
        """One connection, until a call on it fails: always ends with an exception."""
        check_kubelet(self._socket)
        import grpc.aio

        async with grpc.aio.insecure_channel(f"unix:{self._socket}", _CHANNEL_OPTIONS) as channel:
            while True:
                try:
                    self._latest.succeed(await self._request(channel))
                except grpc.aio.AioRpcError as error:
                    raise _failure_of(error, self._socket) from None
                except BrokenMessage as error:
                    raise SourceError("garbage", f"the kubelet at {self._socket} sent {error}") from None
                self._backoff.reset()
                await asyncio.sleep(self._refresh_s)

    async def _request(self, channel: "grpc.aio.Channel") -> PodDevicesReading:
        import grpc

        allocated = decode_list(await self._call(channel, LIST))
        try:
            allocatable = decode_allocatable(await self._call(channel, GET_ALLOCATABLE))
        except grpc.aio.AioRpcError as error:
            # Kubelets before 1.23 lack this call, or have it disabled: the allocations are known nevertheless.
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise
            return PodDevicesReading(allocated)
        return PodDevicesReading(allocated, allocatable)

    async def _call(self, channel: "grpc.aio.Channel", method: str) -> bytes:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
        return await call(EMPTY_REQUEST, timeout=self._timeout_s)


def check_kubelet(socket: str, mounted: str = os.path.dirname(DEFAULT_SOCKET)) -> os.stat_result:
    """Report why the kubelet cannot be asked at this socket: gRPC would report everything as unavailable.

    `mounted` is the directory of the node that the agent's container needs. Raises SourceAbsent and SourceError.
    """
    try:
        status = os.stat(socket)
        if not os.access(socket, os.R_OK | os.W_OK):
            raise PermissionError
    except FileNotFoundError:
        raise SourceAbsent(
            f"there is no kubelet socket at {socket}",
            f"on a Kubernetes node, mount {mounted} into the agent's container",
        ) from None
    except PermissionError:
        raise SourceError("denied", f"no permission to open {socket}: run the agent as root") from None
    try:
        import grpc.aio  # noqa: F401
    except ImportError:
        raise SourceAbsent(
            "the kubelet requires gRPC, and the Python package grpcio is not installed",
            "pip install 'gpucommons[kubernetes]'",
        ) from None
    return status


def _failure_of(error: "grpc.aio.AioRpcError", path: str) -> SourceError:
    import grpc

    reason, what = {
        grpc.StatusCode.DEADLINE_EXCEEDED: ("timeout", "does not answer in time"),
        grpc.StatusCode.UNAVAILABLE: ("disconnected", "cannot be reached"),
        grpc.StatusCode.UNIMPLEMENTED: (
            "unsupported",
            "is too old for PodResources v1",
        ),
        grpc.StatusCode.RESOURCE_EXHAUSTED: ("oversize", "sent a response that is too large, or limits the rate"),
    }.get(error.code(), ("status", f"answered {error.code().name}"))
    return SourceError(reason, f"the kubelet at {path} {what}")
