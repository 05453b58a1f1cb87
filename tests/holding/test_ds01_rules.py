"""Each of DS01's rules for one container."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attribution.builders import gpu
from gpucommons.model.allocations import Access
from gpucommons.model.workloads import Container, ContainerState, DeviceRequest
from gpucommons.owners.slots import (
    SlotTable,
    devices_of,
    interface_of,
    is_infrastructure,
    is_tracked,
    slice_owner,
    user_of,
)
from holding.test_slots import TABLE
from unhurried import unhurried

NAMES = {1000: "alice", 1001: "bob"}


def container(name: str = "c", *, labels: dict[str, str] | None = None, **fields: Any) -> Container:
    return Container("c" * 64, name, "docker", ContainerState.RUNNING, labels=labels or {}, **fields)


def requested(*ids: str, count: int = 0, driver: str = "", **fields: Any) -> Container:
    return container(device_requests=(DeviceRequest(driver, count, ids),), **fields)


@pytest.mark.parametrize(
    ("found", "tracked"),
    [
        (container(), False),
        (container(cgroup_parent="ds01-students-bob.slice"), True),
        (container(cgroup_parent="/ds01.slice"), True),
        (container(cgroup_parent="system.slice"), False),
        (container(labels={"ds01.gpu.allocated": "1"}), True),
        (container(labels={"nods01.user": "x"}), False),
        (container("train._.1001"), True),
    ],
)
def test_tracked(found: Container, tracked: bool) -> None:
    assert is_tracked(found) is tracked


@pytest.mark.parametrize(
    ("found", "infrastructure"),
    [
        (container("ds01-dcgm-exporter-1"), True),
        (container(labels={"ds01.protected": " True "}), True),
        (container("train", labels={"ds01.protected": "false"}), False),
        (container("my-ds01-grafana"), False),
    ],
)
def test_monitoring_of_the_site(found: Container, infrastructure: bool) -> None:
    assert is_infrastructure(found) is infrastructure


HOMES = {
    "devcontainer.local_folder": "/home/dora/project",
    "com.docker.compose.project.working_dir": "/home/emil/stack",
}


@pytest.mark.parametrize(
    ("found", "user"),
    [
        (container("x._.1001", labels={"ds01.user": "ada", "aime.mlc.USER": "eve"}), "ada"),
        (container("x._.1001", labels={"ds01.user": " ", "aime.mlc.USER": "eve"}), "eve"),
        (container("x._.1001", cgroup_parent="ds01-staff-carl.slice", labels=HOMES), "carl"),
        (container("x._.1001", cgroup_parent="ds01.slice", labels=HOMES), "bob"),
        (container("x._.4711"), "4711"),
        (container("x._.y", labels=HOMES), "dora"),
        (container(labels={**HOMES, "devcontainer.local_folder": "/srv/project"}), "emil"),
        (container(labels={"devcontainer.local_folder": "/home/finn"}), "finn"),
        (container(labels={"devcontainer.local_folder": "/home//x"}), ""),
        (container(), ""),
    ],
)
def test_user(found: Container, user: str) -> None:
    assert user_of(found, NAMES) == user


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("ds01-staff-carl.slice", ("staff", "carl")),
        ("/ds01.slice/ds01-staff.slice/ds01-staff-carl.slice", ("staff", "carl")),
        ("ds01-staff-anna\\x2dlena.slice", ("staff", "anna-lena")),
        ("ds01-staff-anna-lena.slice", ("staff", "anna-lena")),
        ("ds01-staff.slice", None),
        ("ds01.slice", None),
        ("ds01--x.slice", None),
        ("ds01-staff-.slice", None),
        ("ds01-staff-carl.scope", None),
        ("user-1000.slice", None),
    ],
)
def test_slices(name: str, owner: tuple[str, str] | None) -> None:
    assert slice_owner(name) == owner


@pytest.mark.parametrize(
    ("found", "interface"),
    [
        (container(labels={"ds01.interface": "orchestration", "ds01.managed": "true"}), "orchestration"),
        (container(labels={"ds01.interface": "an unknown interface"}), "an unknown interface"),
        (container("x._.1001"), "atomic"),
        (container(labels={"ds01.managed": "true"}), "atomic"),
        (container("vscode-x", labels={"ds01.managed": "false"}), "other"),
        (container("jupyter-alice"), "other"),
        (container("jupyterhub-proxy"), "other"),
        (container(labels={"hub.jupyter.org/username": "a"}), "other"),
        (container(labels={"maintainer": "a", "com.docker.compose.project": "a"}), "other"),
        (container(labels={"devcontainer.metadata": "a"}), "other"),
        (container("plain", labels={"ds01.user": "a"}), "docker"),
    ],
)
def test_interface(found: Container, interface: str) -> None:
    assert interface_of(found) == interface


UUIDS = {"ds01.gpu.uuids": "GPU-0, MIG-1-1"}


@pytest.mark.parametrize(
    ("found", "access", "slots"),
    [
        (requested("0", "GPU-2", labels=UUIDS, visible_devices="all"), Access.SPECIFIC, ["0", "2"]),
        (requested("1:1"), Access.SPECIFIC, ["1.1"]),
        (requested("MIG-1-1", driver="nvidia"), Access.SPECIFIC, ["1.0"]),
        (requested("nvidia.com/gpu=2", driver="cdi"), Access.SPECIFIC, ["2"]),
        (requested("nvidia.com/gpu=all", driver="cdi"), Access.ALL, ["0", "1.0", "1.1", "2"]),
        (requested("vendor.com/nic=0", driver="cdi"), None, []),
        (requested(count=-1, labels=UUIDS), Access.ALL, ["0", "1.0", "1.1", "2"]),
        (requested(count=1), Access.COUNT, ["0"]),
        (requested(count=0, labels=UUIDS), Access.SPECIFIC, ["0", "1.0"]),
        (container(labels=UUIDS, visible_devices="2"), Access.SPECIFIC, ["0", "1.0"]),
        (container(visible_devices="0,2"), Access.SPECIFIC, ["0", "2"]),
        (container(visible_devices="all"), Access.ALL, ["0", "1.0", "1.1", "2"]),
        (container(visible_devices="none"), None, []),
        (container(visible_devices="void"), None, []),
        (container(visible_devices=""), None, []),
        (container(devices=("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")), Access.SPECIFIC, ["2"]),
        (container(devices=("/dev/nvidiactl", "/dev/fuse")), None, []),
        (container(visible_devices="void", privileged=True), Access.ALL, ["0", "1.0", "1.1", "2"]),
        (container(), None, []),
    ],
)
def test_devices(found: Container, access: Access | None, slots: list[str]) -> None:
    devices = devices_of(found, TABLE)
    assert (devices.access if devices else None) == access
    assert [info.slot.name for info in devices.slots] == slots if devices else not slots


def test_gpu_counts_and_bypasses() -> None:
    asked = devices_of(requested(count=5), TABLE)
    assert asked is not None
    assert asked.gpu_count == 5, "as many as it asked for, not as many as there are"
    named = devices_of(requested("0", "7"), TABLE)
    assert named is not None
    assert (named.gpu_count, named.unknown, named.bypasses) == (2, ("7",), False)
    for extra in ({"privileged": True}, {"devices": ("/dev/nvidia1",)}):
        for sneaky in (devices_of(requested("0", **extra), TABLE), devices_of(container(**extra), TABLE)):
            assert sneaky is not None
            assert sneaky.bypasses


def test_other_devices_of_a_cdi_request_are_not_missing_gpus() -> None:
    devices = devices_of(requested("nvidia.com/gpu=2", "vendor.com/nic=0", driver="cdi"), TABLE)
    assert devices is not None
    assert ([info.slot.name for info in devices.slots], devices.unknown, devices.gpu_count) == (["2"], (), 1)


texts = st.text(max_size=12) | st.sampled_from(
    ["0", "all", "1:0", "GPU-0", "._.", "/home/", "/dev/nvidia0", "ds01-a-b.slice"]
)


@unhurried()
@given(texts, texts, texts, st.dictionaries(st.sampled_from([*UUIDS, *HOMES, "ds01.user", "ds01.interface"]), texts))
def test_no_container_raises_an_exception(name: str, device: str, parent: str, labels: dict[str, str]) -> None:
    found = requested(device, labels=labels, visible_devices=device, devices=(device,), cgroup_parent=parent)
    for each in (found, container(name, labels=labels, visible_devices=device, cgroup_parent=parent)):
        user_of(each, NAMES), interface_of(each), is_tracked(each)
        devices_of(each, TABLE), devices_of(each, SlotTable(())), devices_of(each, SlotTable((gpu(0),)))
