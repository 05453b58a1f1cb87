"""The decoder of the kubelet's messages against protobuf's encoder, and against garbage."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.kubelet import container_devices, messages, pod
from gpucommons.base.protobuf import BrokenMessage
from gpucommons.model.workloads import PodDevices
from gpucommons.sources.kubernetes.kubelet import decode_allocatable, decode_list, parse_device_id

names = st.text(max_size=12)
devices = st.lists(st.tuples(names, st.lists(names, max_size=3)), max_size=3)
pods = st.lists(st.tuples(names, names, st.lists(st.tuples(names, devices), max_size=3)), max_size=4)


def encoded(listed: list[Any]) -> bytes:
    m = messages()
    response = m.ListPodResourcesResponse()
    for name, namespace, containers in listed:
        pod_message = response.pod_resources.add(name=name, namespace=namespace)
        for container, given_devices in containers:
            message = pod_message.containers.add(name=container, cpu_ids=[-1, 0, 1 << 40])
            message.memory.add(memory_type="hugepages-2Mi", size=1 << 60)
            message.dynamic_resources.add(claim_name="claim").claim_resources.add(device_name="gpu-0")
            for resource, ids in given_devices:
                message.devices.append(container_devices(resource, *ids, numa=7))
    answer: bytes = response.SerializeToString()
    return answer


@given(listed=pods)
def test_messages_of_protobuf_are_decoded(listed: list[Any]) -> None:
    expected = []
    for name, namespace, containers in listed:
        for container, given_devices in containers:
            joined: dict[str, list[str]] = {}
            for resource, ids in given_devices:
                joined.setdefault(resource, []).extend(ids)
            expected += [
                PodDevices(namespace, name, container, tuple(map(parse_device_id, ids))) for ids in joined.values()
            ]
    assert decode_list(encoded(listed)) == tuple(expected)


def test_a_resource_on_two_numa_nodes_is_merged() -> None:
    m = messages()
    given_devices = [
        container_devices("nvidia.com/gpu", "nvidia0", numa=0),
        container_devices("nvidia.com/gpu", "nvidia1", numa=1),
        container_devices("rdma/hca", "mlx5_0"),
    ]
    message = m.ListPodResourcesResponse(pod_resources=[pod("lab", "train", main=given_devices)])
    found = decode_list(message.SerializeToString())
    assert [[d.raw for d in f.devices] for f in found] == [["nvidia0", "nvidia1"], ["mlx5_0"]]
    allocatable = m.AllocatableResourcesResponse(devices=given_devices, cpu_ids=[0, 1])
    assert {name: len(ids) for name, ids in decode_allocatable(allocatable.SerializeToString()).items()} == {
        "nvidia.com/gpu": 2,
        "rdma/hca": 1,
    }


def test_fields_of_a_later_version_are_skipped() -> None:
    # Field 9 of each wire type: a number, the longest number, 8 bytes, a string, 4 bytes.
    later = b"\x48\x96\x01" + b"\x48" + b"\xff" * 9 + b"\x01"
    later += b"\x49" + b"8 bytes!" + b"\x4a\x02hi" + b"\x4d" + b"four"
    devices_message = b"\x0a\x01r\x12\x07nvidia0" + later
    container = b"\x0a\x01c\x12" + bytes([len(devices_message)]) + devices_message + later
    pod_message = b"\x0a\x01p\x1a" + bytes([len(container)]) + container + later
    message = later + b"\x0a" + bytes([len(pod_message)]) + pod_message
    assert decode_list(message) == (PodDevices("", "p", "c", (parse_device_id("nvidia0"),)),)


def test_a_field_of_another_wire_type_is_skipped() -> None:
    assert decode_list(b"\x08\x01" + b"\x09" + b"8 bytes!" + b"\x0d" + b"four") == ()


@given(data=st.binary(max_size=200))
def test_garbage_raises_only_broken_message(data: bytes) -> None:
    for decode in (decode_list, decode_allocatable):
        try:
            decode(data)
        except BrokenMessage:
            continue


@given(data=st.data())
def test_a_truncated_message_is_rejected(data: st.DataObject) -> None:
    whole = encoded([("p", "n", [("c", [("r", ["nvidia0"])])])])
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(BrokenMessage):
        decode_list(whole[:cut])


@pytest.mark.parametrize("data", [b"\xff" * 20, b"\x0b", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a", b"\x0a\x02x"])
def test_broken_messages(data: bytes) -> None:
    with pytest.raises(BrokenMessage):
        decode_list(data)
