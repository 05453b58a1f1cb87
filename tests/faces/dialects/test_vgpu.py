"""The pod metrics of k8s-vgpu-monitor, without its errors."""

from collections.abc import Mapping

import pytest

from attribution.builders import GIB, gpu, gpu_process, identity, mig_instance, pod, reading, table
from attribution.cgroup_vectors import C
from gpucommons.faces.dialects.dialect import Dialect
from gpucommons.faces.dialects.vgpu import VGPU, vgpu_dialect
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.gpu import AllocationRatioReading, AllocationRatios, Gpu
from gpucommons.model.ownership import Reason
from gpucommons.model.process_identity import PidScope, PidView, ProcessIdentity
from gpucommons.model.snapshot import AgentReading, Readings, ScrapeReading, Snapshot
from gpucommons.model.workloads import DeviceId, PodDevices, PodDevicesReading, PodReading
from gpucommons.owners.attribute import Attributor
from gpucommons.owners.workload import Surroundings
from parsing import parsed

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
    return Snapshot(1, 0.0, 0.0, "host", readings=base._replace(**readings))  # type: ignore[arg-type]


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
    assert all("namespace" in metric.optional for metric in VGPU.catalogue if metric.labels)


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


def test_a_pod_without_a_gpu_has_no_series() -> None:
    taken = snapshot(gpu(0, [gpu_process(8)]), identities=(in_pod(7, 0), in_pod(8, 2)))
    assert {labels for points in series(VGPU, taken).values() for labels in points} == {("0", "serve", "ml")}


def allocated(*given: tuple[str, str, tuple[DeviceId, ...]]) -> PodDevicesReading:
    """(namespace, pod, devices) as the kubelet reports them."""
    return PodDevicesReading(tuple(PodDevices(namespace, pod, "main", devices) for namespace, pod, devices in given))


def whole(number: int) -> DeviceId:
    return DeviceId(f"GPU-{number}", gpu_uuid=f"GPU-{number}")


def part(number: int, replica: int) -> DeviceId:
    return DeviceId(f"GPU-{number}::{replica}", gpu_uuid=f"GPU-{number}", replica=replica)


def test_a_pod_that_holds_a_gpu_without_a_process_uses_zero() -> None:
    """An alert on waste, pod_gpu_memory_used == 0, needs the series."""
    taken = snapshot(
        gpu(0, [gpu_process(8, 5 << 20, 10)], total=80 * GIB),
        gpu(1, [], total=40 * GIB),
        identities=(in_pod(8, 2),),
        pod_devices=allocated(("ml", "serve", (whole(0),)), ("ml", "train", (whole(0), whole(1)))),
    )
    idle = [("0", "train", "ml"), ("1", "train", "ml")]
    found = series(VGPU, taken)
    assert found["pod_gpu_memory_used"] == {("0", "serve", "ml"): 5.0, **dict.fromkeys(idle, 0.0)}
    assert found["pod_gpu_sm_util"] == {("0", "serve", "ml"): 10.0, **dict.fromkeys(idle, 0.0)}
    assert found["pod_total_gpu_memory"][idle[1]] == 40 * 1024.0


def test_a_pod_that_has_ended_holds_nothing() -> None:
    pods = PodReading.of([pod(UIDS[0], "train", "ml")._replace(phase="Succeeded")])
    taken = snapshot(gpu(0, []), identities=(), pods=pods, pod_devices=allocated(("ml", "train", (whole(0),))))
    assert all(not points for points in series(VGPU, taken).values())


@pytest.mark.parametrize("like_the_program", [False, True])
def test_a_use_that_may_be_any_pods_makes_no_zero(like_the_program: bool) -> None:
    """Missing is never zero: where a process cannot be seen, a pod without a known process may be its owner."""
    dialect, devices = vgpu_dialect(like_the_program=like_the_program), allocated(("ml", "train", (whole(0),)))
    gone = snapshot(gpu(0, [gpu_process(9)]), identities=(), pod_devices=devices)
    hidden = [with_reason(gone, reason) for reason in (Reason.PROCESS_UNREADABLE, Reason.PID_NAMESPACE)]
    unnamed = snapshot(gpu(0, [gpu_process(7)]), identities=(in_pod(7, 3),), pod_devices=devices)
    unlisted = snapshot(gpu(0)._replace(processes=None), identities=(), pod_devices=devices)
    outside = snapshot(gpu(0, []), identities=(), pod_devices=devices)
    assert outside.readings.attribution is not None
    namespaced = outside.readings.attribution._replace(view=PidView(PidScope.NAMESPACE, "elsewhere"))
    elsewhere = outside._replace(readings=outside.readings._replace(attribution=namespaced))
    for taken in (*hidden, unnamed, unlisted, elsewhere):
        found = series(dialect, taken)
        assert not [labels for labels in found["pod_gpu_memory_used"] if labels[1] == "train"]
        assert not [labels for labels in found["pod_gpu_sm_util"] if labels[1] == "train"]
        assert [labels for labels in found["pod_total_gpu_memory"] if labels[1] == "train"], "its size is known"
    for taken in (outside, gone):
        assert len(series(dialect, taken)["pod_gpu_memory_used"]) == 1


def with_reason(taken: Snapshot, reason: Reason) -> Snapshot:
    attribution = taken.readings.attribution
    assert attribution is not None
    processes = tuple(share._replace(reason=reason) for share in attribution.processes)
    return taken._replace(readings=taken.readings._replace(attribution=attribution._replace(processes=processes)))


def test_like_the_program_the_parts_of_a_pod_are_numbered_and_values_are_whole() -> None:
    """GPU 1 twice and GPU 0 once: the pod has the virtual GPUs 0, 1 and 2."""
    taken = snapshot(
        gpu(0, [gpu_process(7, (3 << 20) + 5, 21)], percent=21, total=80 * GIB),
        gpu(1, [gpu_process(7, (9 << 20) + 7, 30)], percent=30, total=80 * GIB + (1 << 20)),
        identities=(in_pod(7, 0),),
        pod_devices=allocated(("ml", "train", (part(1, 0), part(0, 1), part(1, 1))), ("ml", "serve", (part(1, 3),))),
        allocation_ratio=AllocationRatioReading(AllocationRatios(2.5)),
    )
    found = series(vgpu_dialect(like_the_program=True), taken)
    assert found == {
        "pod_gpu_sm_util": {
            ("0", "train", ""): 42,
            ("1", "train", ""): 60,
            ("2", "train", ""): 60,
            ("0", "serve", ""): 0,
        },
        "pod_gpu_memory_used": {
            ("0", "train", ""): 3,
            ("1", "train", ""): 4,
            ("2", "train", ""): 4,
            ("0", "serve", ""): 0,
        },
        "pod_total_gpu_memory": dict.fromkeys(
            [("0", "train", ""), ("1", "train", ""), ("2", "train", ""), ("0", "serve", "")], 40 * 1024
        ),
    }
    assert all(isinstance(value, int) for points in found.values() for value in points.values())


def test_like_the_program_a_ratio_below_one_does_not_divide_by_zero() -> None:
    taken = snapshot(
        gpu(0, [gpu_process(7, 1 << 20, 50)], total=80 * GIB),
        identities=(in_pod(7, 0),),
        allocation_ratio=AllocationRatioReading(AllocationRatios(0.5)),
    )
    found = series(vgpu_dialect(like_the_program=True), taken)
    assert found["pod_total_gpu_memory"] == {("0", "train", ""): 80 * 1024}
    assert found["pod_gpu_sm_util"] == {("0", "train", ""): 50}


def test_the_scrapes_are_counted_as_the_programs_library_does() -> None:
    scrapes = {"vgpu": ScrapeReading(2, 1240, 0.000337, ((0.5, 0.000128), (0.9, 0.000209), (0.99, 0.000209)))}
    agent = AgentReading("1", 0.0, None, None, None, None, scrapes=scrapes)
    found = parsed(_text(Readings(agent=agent)))
    assert found[("exposer_scrapes_total", ())] == 2
    assert found[("exposer_transferred_bytes_total", ())] == 1240
    assert found[("exposer_request_latencies_count", ())] == 2
    assert found[("exposer_request_latencies_sum", ())] == pytest.approx(337)
    assert found[("exposer_request_latencies", (("quantile", "0.5"),))] == pytest.approx(128)
    before = _text(Readings(agent=agent._replace(scrapes={})))
    assert 'exposer_request_latencies{quantile="0.99"} NaN' in before
    assert "exposer_scrapes_total 0" in before
    parsed(_text(Readings(agent=agent), openmetrics=True), openmetrics=True)


def _text(readings: Readings, openmetrics: bool = False) -> str:
    exposition = Exposition(lambda: Snapshot(0, 0.0, 0.0, "host", readings=readings), [VGPU])
    return exposition.metrics("vgpu", openmetrics, gzip=False)[0].decode()


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
