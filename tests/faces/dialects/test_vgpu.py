"""The pod metrics of k8s-vgpu-monitor, without its errors."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from attribution.builders import GIB, gpu, gpu_process, identity, mig_instance, pod, reading, table
from attribution.cgroup_vectors import C
from gpucommons.attribution.attribute import Attributor
from gpucommons.attribution.workload import Surroundings
from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.dialects.vgpu import VGPU, vgpu_dialect
from gpucommons.model.gpu import AllocationRatioReading, AllocationRatios, Gpu
from gpucommons.model.pods import DeviceId, PodDevicesReading, PodReading
from gpucommons.model.process_identity import ProcessIdentity
from gpucommons.model.snapshot import Readings, Snapshot

UIDS = [f"00000000-0000-0000-0000-00000000000{i}" for i in range(4)]
PODS = PodReading.of(
    [pod(UIDS[0], "train", "ml"), pod(UIDS[1], "train", "web"), pod(UIDS[2], "serve", "ml")],
)


def in_pod(pid: int, number: int) -> ProcessIdentity:
    return identity(pid, f"0::/kubepods/pod{UIDS[number]}/{C}")


def snapshot(*gpus: Gpu, identities: tuple[ProcessIdentity, ...], **readings: object) -> Snapshot:
    gpu_reading = reading(*gpus)
    attribution = Attributor().attribute(gpu_reading, table(*identities), Surroundings(pods=PODS))
    base = Readings(gpus=gpu_reading, attribution=attribution)
    return Snapshot(1, 0.0, 0.0, "host", readings=replace(base, **readings))  # type: ignore[arg-type]


def series(dialect: Dialect, taken: Snapshot) -> Mapping[str, Mapping[tuple[str, ...], float]]:
    families = {family.metric.name: family.points for family in dialect.collect(taken)}
    assert all(len(points) == len(dict(points)) for points in families.values())
    return {name: dict(points) for name, points in families.items()}


def test_the_processes_of_a_pod_are_summed_in_percent_and_megabytes() -> None:
    processes = [gpu_process(7, 3 << 20, 20), gpu_process(8, 5 << 20, 10)]
    found = series(
        VGPU,
        snapshot(gpu(0, processes, percent=40, total=80 * GIB), identities=(in_pod(7, 0), in_pod(8, 0))),
    )
    labels = ("0", "train", "ml")
    assert found == {
        "pod_gpu_sm_util": {labels: 30.0},
        "pod_gpu_memory_used": {labels: 8.0},
        "pod_total_gpu_memory": {labels: 80 * 1024.0},
    }


def test_two_pods_of_one_name_in_two_namespaces_stay_apart() -> None:
    taken = snapshot(
        gpu(0, [gpu_process(7, 1 << 20), gpu_process(8, 2 << 20)]), identities=(in_pod(7, 0), in_pod(8, 1))
    )
    assert series(VGPU, taken)["pod_gpu_memory_used"] == {("0", "train", "ml"): 1.0, ("0", "train", "web"): 2.0}


def test_for_a_strict_drop_in_the_namespace_label_is_off() -> None:
    taken = snapshot(
        gpu(0, [gpu_process(7, 1 << 20), gpu_process(8, 2 << 20)]), identities=(in_pod(7, 0), in_pod(8, 1))
    )
    found = series(vgpu_dialect(namespace_label=False), taken)
    assert found["pod_gpu_memory_used"] == {("0", "train", ""): 3.0}
    assert all("namespace" in metric.optional for metric in VGPU.catalogue)


def test_each_gpu_has_its_own_size() -> None:
    taken = snapshot(
        gpu(0, [gpu_process(7)], total=80 * GIB),
        gpu(1, [gpu_process(7)], total=24 * GIB),
        identities=(in_pod(7, 0),),
    )
    assert series(VGPU, taken)["pod_total_gpu_memory"] == {
        ("0", "train", "ml"): 80 * 1024.0,
        ("1", "train", "ml"): 24 * 1024.0,
    }


def test_a_pod_without_processes_has_no_series() -> None:
    taken = snapshot(gpu(0, [gpu_process(8)]), identities=(in_pod(7, 0), in_pod(8, 2)))
    assert {labels for points in series(VGPU, taken).values() for labels in points} == {("0", "serve", "ml")}


def test_processes_outside_pods_have_no_series() -> None:
    taken = snapshot(gpu(0, [gpu_process(7)]), identities=(identity(7),))
    assert all(not points for points in series(VGPU, taken).values())


def test_a_pod_whose_name_is_unknown_is_its_uid() -> None:
    taken = snapshot(gpu(0, [gpu_process(7)]), identities=(in_pod(7, 3),))
    assert list(series(VGPU, taken)["pod_gpu_memory_used"]) == [("0", UIDS[3], "")]


REPLICAS = PodDevicesReading(
    (), {"nvidia.com/gpu": tuple(DeviceId(f"GPU-0::{i}", gpu_uuid="GPU-0", replica=i) for i in range(4))}
)


@pytest.mark.parametrize(
    ("configured", "devices", "total"),
    [
        (AllocationRatioReading(AllocationRatios(2.0)), None, 40),
        (AllocationRatioReading(AllocationRatios(None, {0: 5.0})), None, 16),
        (AllocationRatioReading(AllocationRatios(2.0), "now bad"), REPLICAS, 40),
        (AllocationRatioReading(AllocationRatios(None, {1: 5.0})), REPLICAS, 20),
        (AllocationRatioReading(None, "never good"), None, 80),
        (None, REPLICAS, 20),
        (None, None, 80),
    ],
)
def test_the_ratio_is_the_files_or_the_plugins_or_one(
    configured: AllocationRatioReading | None, devices: PodDevicesReading | None, total: int
) -> None:
    taken = snapshot(
        gpu(0, [gpu_process(7)], total=80 * GIB),
        identities=(in_pod(7, 0),),
        allocation_ratio=configured,
        pod_devices=devices,
    )
    assert series(VGPU, taken)["pod_total_gpu_memory"] == {("0", "train", "ml"): total * 1024.0}


def test_a_pod_on_mig_has_the_whole_memory_of_its_instances() -> None:
    split = (mig_instance(1, 3, 0.5), mig_instance(2, 4, 0.5))
    taken = snapshot(
        gpu(0, [gpu_process(7, instance=1)], percent=None, mig=split, total=80 * GIB),
        identities=(in_pod(7, 0),),
        allocation_ratio=AllocationRatioReading(AllocationRatios(2.0)),
    )
    assert series(VGPU, taken)["pod_total_gpu_memory"] == {("0", "train", "ml"): 30 * 1024.0}


def test_unmeasured_values_are_absent() -> None:
    taken = snapshot(gpu(0, [gpu_process(7, None)], percent=None, total=None, used=None), identities=(in_pod(7, 0),))
    assert all(not points for points in series(VGPU, taken).values())


def test_without_gpus_there_are_no_families() -> None:
    assert list(VGPU.collect(Snapshot(0, 0.0, 0.0, "host"))) == []


def test_it_is_a_drop_in() -> None:
    assert (VGPU.name, VGPU.port) == ("vgpu", 8080)
