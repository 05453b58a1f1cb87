"""Which shares are offered, which suit together and what a container gets: examples, and properties of the choice."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.kubernetes.shares import (
    OfferedDevice,
    Placement,
    ShareMount,
    ShareResource,
    UnknownShare,
    device_uuid,
    grant,
    offered_devices,
    preferred_shares,
    share_ids,
)
from gpucommons.model.gpu import Gpu, GpuIdentity, GpuReading, MigInstance
from gpucommons.sources.kubernetes.kubelet import parse_device_id

_UUIDS = [f"GPU-0000000{index}-0000-0000-0000-000000000000" for index in range(4)]
_RESOURCE = ShareResource("gpucommons.io/gpu", 4)


def gpu(index: int, *mig: str, mig_enabled: bool = False, up: bool = True) -> Gpu:
    instances = tuple(MigInstance(uuid, number, 0, "1g.18gb", 1, 1, 16, 1) for number, uuid in enumerate(mig))
    identity = GpuIdentity(_UUIDS[index], index, "NVIDIA H200", f"0000:0{index}")
    return Gpu(identity, up, 0.0, mig_enabled=mig_enabled or bool(mig), mig=instances)


def reading(*gpus: Gpu) -> GpuReading:
    return GpuReading("570", "12", "12.8", gpus, len(gpus), len(gpus))


def offered(*indexes: int) -> list[OfferedDevice]:
    return [OfferedDevice(_UUIDS[index], _UUIDS[index], True) for index in indexes]


def shares(*indexes: int, count: int = 4) -> list[str]:
    return [share for device in offered(*indexes) for share in share_ids(device, count)]


def on(chosen: list[str]) -> list[int]:
    return [_UUIDS.index(device_uuid(share)) for share in chosen]


def test_each_gpu_and_each_mig_device_is_offered() -> None:
    found = offered_devices(reading(gpu(0), gpu(1, "MIG-a", "MIG-b"), gpu(2, mig_enabled=True)), set())
    assert [(each.uuid, each.gpu_uuid) for each in found] == [
        (_UUIDS[0], _UUIDS[0]),
        ("MIG-a", _UUIDS[1]),
        ("MIG-b", _UUIDS[1]),
    ]


def test_a_lost_gpu_keeps_its_mig_devices_as_unhealthy_ones() -> None:
    before = offered_devices(reading(gpu(0), gpu(1, "MIG-a")), set())
    lost = offered_devices(reading(gpu(0), gpu(1)._replace(up=False)), {_UUIDS[1]}, before)
    assert lost == (before[0], before[1]._replace(healthy=False))
    assert offered_devices(reading(gpu(0), gpu(1, "MIG-a")), set(), lost) == before


def test_the_ids_are_those_that_the_agent_reads_back() -> None:
    (first, *_) = shares(0)
    assert parse_device_id(first)._replace(raw="") == parse_device_id(f"{_UUIDS[0]}__1")._replace(raw="")
    assert parse_device_id(first).replica == 1


def test_spread_takes_the_least_shared_gpus() -> None:
    free = [share for share in shares(0, 1, 2) if not re.fullmatch(rf"{_UUIDS[0]}__[12]", share)]
    chosen = preferred_shares(free, [], 2, {}, 4, "spread")
    assert sorted(on(chosen)) == [1, 2]
    assert sorted(on(preferred_shares(free, [], 4, {}, 4, "spread"))) == [0, 1, 1, 2]


def test_packed_fills_the_most_shared_gpu_that_has_room_for_all() -> None:
    free = [
        share for share in shares(0, 1, 2) if share not in (f"{_UUIDS[0]}__1", f"{_UUIDS[0]}__2", f"{_UUIDS[1]}__1")
    ]
    assert on(preferred_shares(free, [], 1, {}, 4, "packed")) == [0]
    assert on(preferred_shares(free, [], 3, {}, 4, "packed")) == [1, 1, 1]


def test_shares_of_other_resources_count() -> None:
    assert on(preferred_shares(shares(0, 1), [], 1, {_UUIDS[0]: 3}, 4, "spread")) == [1]
    assert on(preferred_shares(shares(0, 1), [], 1, {_UUIDS[1]: 3}, 4, "packed")) == [1]


def test_what_must_be_included_is() -> None:
    must = [f"{_UUIDS[1]}__3"]
    assert preferred_shares(shares(0, 1), must, 2, {}, 4, "packed") == [*must, f"{_UUIDS[1]}__1"]


@given(
    free=st.sets(st.sampled_from(shares(0, 1, 2, 3)), min_size=1),
    data=st.data(),
    placement=st.sampled_from(["spread", "packed"]),
)
def test_the_choice_is_always_one_that_the_kubelet_can_use(
    free: set[str], data: st.DataObject, placement: Placement
) -> None:
    count = data.draw(st.integers(1, len(free)))
    must = data.draw(st.lists(st.sampled_from(sorted(free)), unique=True, max_size=count))
    chosen = preferred_shares(free, must, count, {}, 4, placement)
    assert len(chosen) == len(set(chosen)) == count
    assert set(must) <= set(chosen) <= free
    used, least = len(set(on(chosen))), len(set(on(must)))
    rooms = {index: sum(device_uuid(share) == uuid for share in free) for index, uuid in enumerate(_UUIDS)}
    if placement == "packed" and not must and max(rooms.values()) >= count:
        assert used == 1
    if placement == "spread":
        assert used == max(least, min(count - len(must) + least, sum(1 for room in rooms.values() if room)))


def test_a_container_gets_each_gpu_once() -> None:
    given = grant([f"{_UUIDS[0]}__1", f"{_UUIDS[1]}__2", f"{_UUIDS[0]}__4"], offered(0, 1), _RESOURCE, "environment")
    assert given.environment == {"NVIDIA_VISIBLE_DEVICES": f"{_UUIDS[0]},{_UUIDS[1]}"}
    assert not given.mounts
    assert not given.cdi_devices


def test_by_cdi_and_by_mounts() -> None:
    by_cdi = grant([f"{_UUIDS[0]}__1"], offered(0), _RESOURCE, "cdi")
    assert (by_cdi.environment, by_cdi.cdi_devices) == ({}, (f"nvidia.com/gpu={_UUIDS[0]}",))
    by_mounts = grant([f"{_UUIDS[0]}__1"], offered(0), _RESOURCE, "mounts")
    folder = "/var/run/nvidia-container-devices"
    assert by_mounts.environment == {"NVIDIA_VISIBLE_DEVICES": folder}
    assert by_mounts.mounts == (ShareMount(f"{folder}/{_UUIDS[0]}", "/dev/null", read_only=False),)


def test_the_library_is_mounted_where_asked_for() -> None:
    given = grant([f"{_UUIDS[0]}__1"], offered(0), replace(_RESOURCE, library="nvshare"), "environment")
    assert given.environment["LD_PRELOAD"] == "/usr/lib/nvshare/libnvshare.so"
    assert given.mounts == (
        ShareMount("/usr/lib/nvshare/libnvshare.so", "/var/run/nvshare/libnvshare.so"),
        ShareMount("/var/run/nvshare/scheduler.sock", "/var/run/nvshare/scheduler.sock"),
    )


@pytest.mark.parametrize("share", ["", "GPU-x__1", f"{_UUIDS[0]}__5", f"{_UUIDS[0]}__0", _UUIDS[0], f"{_UUIDS[1]}__1"])
def test_a_share_that_is_not_offered_is_refused(share: str) -> None:
    with pytest.raises(UnknownShare):
        grant([share], offered(0), _RESOURCE, "environment")
