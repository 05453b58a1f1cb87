"""Decodes the fields of the kubelet's PodResources v1 messages that show which pod has which device. Pure.

Written by hand: two messages and four fields do not justify generated code and the protobuf package, whose versions
must match. Other fields, including unknown ones, are skipped.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from gpucommons.model.workloads import DeviceId, PodDevices
from gpucommons.sources.kubernetes.device_ids import parse_device_id

LIST = "/v1.PodResourcesLister/List"
GET_ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"
EMPTY_REQUEST = b""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT_BYTES = 10


class BrokenMessage(ValueError):
    """The bytes are not a valid message."""


def decode_list(message: bytes) -> tuple[PodDevices, ...]:
    """ListPodResourcesResponse: the devices of each container, one entry per container and resource."""
    return tuple(_given(message))


def decode_allocatable(message: bytes) -> Mapping[str, tuple[DeviceId, ...]]:
    """AllocatableResourcesResponse: every allocatable device, by resource."""
    return MappingProxyType({name: tuple(devices) for name, devices in _devices(message, 1).items()})


def _given(message: bytes) -> Iterator[PodDevices]:
    for pod in _submessages(message, 1):
        name, namespace = _text(pod, 1), _text(pod, 2)
        for container in _submessages(pod, 3):
            container_name = _text(container, 1)
            for devices in _devices(container, 2).values():
                yield PodDevices(namespace, name, container_name, tuple(devices))


def _devices(message: bytes, number: int) -> dict[str, list[DeviceId]]:
    """The ContainerDevices in a field. The kubelet splits a resource by NUMA node: merged here."""
    by_resource: dict[str, list[DeviceId]] = {}
    for devices in _submessages(message, number):
        ids = [parse_device_id(_decoded(id)) for id in _submessages(devices, 2)]
        by_resource.setdefault(_text(devices, 1), []).extend(ids)
    return by_resource


def _text(message: bytes, number: int) -> str:
    """A string field. If it is repeated the last one counts; if it is missing it is empty."""
    *_, last = (b"", *_submessages(message, number))
    return _decoded(last)


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _submessages(message: bytes, field: int) -> Iterator[bytes]:
    """The contents of each length-delimited field of this number."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            _, position = _varint(message, position)
            continue
        if kind == _BYTES:
            size, position = _varint(message, position)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise BrokenMessage(f"a field of the unknown kind {kind}")
        end = position + size
        if end > len(message):
            raise BrokenMessage("a field that is longer than the message")
        if kind == _BYTES and number == field:
            yield message[position:end]
        position = end


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """The number at `position`, and the position after it."""
    value = 0
    for count, byte in enumerate(message[position : position + _LONGEST_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, position + count + 1
    raise BrokenMessage("a number that does not end")
