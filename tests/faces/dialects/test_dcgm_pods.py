"""dcgm's pod and job labels: the only pod of a GPU, each pod with shared = "per_pod", and each mapped job."""

import pytest
from hypothesis import given as any_of
from hypothesis import strategies as st

from gpucommons.faces.dialects.dcgm import DCGM, dcgm_dialect
from gpucommons.faces.dialects.dcgm.labels import DcgmOptions, only_pod
from gpucommons.faces.exposition.exposition import Exposition
from gpucommons.model.gpu import Gpu, GpuIdentity, GpuProcess, GpuReading, GpuReadings, MigInstance, MigMemory
from gpucommons.model.ownership import Attribution, Place, PodPlace, ProcessShare, Workload
from gpucommons.model.process_identity import PidScope, PidView
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.workloads import (
    DeviceId,
    JobMappingReading,
    MappedJob,
    Pod,
    PodDevices,
    PodDevicesReading,
    PodReading,
)
from gpucommons.rules.placement import PodLabels
from parsing import parsed

MIB = 2**20
READINGS = GpuReadings(
    power_watts=100.0, utilization_percent=90, memory_used_bytes=70 * MIB, memory_free_bytes=30 * MIB
)
GPUS = tuple(
    Gpu(GpuIdentity(f"GPU-{i}", i, "H200", f"0:{i}", minor=i), True, 0.0, readings=READINGS, processes=())
    for i in range(3)
)
PER_POD = dcgm_dialect(DcgmOptions(shared="per_pod"))


def given(pod: str, device: str, replica: int | None = None, container: str = "main") -> PodDevices:
    return PodDevices("ml", pod, container, (DeviceId(device, gpu_uuid=device, replica=replica),))


def series_of(
    name: str, *allocated: PodDevices, dialect: object = DCGM, **readings: object
) -> list[tuple[dict[str, str], float]]:
    """The series of one family, as Prometheus reads them."""
    fields = {"gpus": GpuReading("580", "13", "13.0", GPUS, 3, 3), "pod_devices": PodDevicesReading(allocated)}
    snapshot = Snapshot(0, 0.0, 0.0, "host", readings=Readings(**(fields | readings)))  # type: ignore[arg-type]
    exposition = Exposition(lambda: snapshot, [dialect])  # type: ignore[list-item]
    body, _ = exposition.metrics("dcgm", False, False)
    assert exposition.duplicates == {"dcgm": 0}
    return [(dict(labels), value) for (found, labels), value in parsed(body.decode()).items() if found == name]


def pod_labels(*allocated: PodDevices) -> dict[str, tuple[str | None, str | None, str | None]]:
    series = [labels for labels, _ in series_of("DCGM_FI_DEV_POWER_USAGE", *allocated)]
    assert len(series) == len(GPUS), "one series per GPU, however many holders it has"
    return {labels["UUID"]: (labels.get("pod"), labels.get("namespace"), labels.get("container")) for labels in series}


def test_a_gpu_is_labelled_with_its_only_pod() -> None:
    assert pod_labels(given("train", "GPU-1")) == {
        "GPU-0": (None, None, None),
        "GPU-1": ("train", "ml", "main"),
        "GPU-2": (None, None, None),
    }


def test_a_shared_gpu_is_labelled_with_no_pod() -> None:
    shared = pod_labels(given("a", "GPU-0", 0), given("b", "GPU-0", 1), given("c", "GPU-2", 0), given("c", "GPU-2", 1))
    assert shared["GPU-0"] == (None, None, None)
    assert shared["GPU-2"] == ("c", "ml", "main"), "two shares of one pod are one holder"


# -- one series per pod

SHARED = (given("a", "GPU-0", 0), given("b", "GPU-0", 3), given("whole", "GPU-1"))


def by_pod(name: str, **readings: object) -> dict[tuple[str, str | None, str | None], float]:
    """By GPU, pod and virtual GPU."""
    series = series_of(name, *SHARED, dialect=PER_POD, **readings)
    return {(labels["UUID"], labels.get("pod"), labels.get("vgpu")): value for labels, value in series}


def test_per_pod_a_shared_gpu_has_a_series_for_each_pod_with_its_virtual_gpu() -> None:
    assert by_pod("DCGM_FI_DEV_POWER_USAGE") == {
        ("GPU-0", "a", "0"): 100,
        ("GPU-0", "b", "3"): 100,
        ("GPU-1", "whole", None): 100,
        ("GPU-2", None, None): 100,
    }


def share(pid: int, pod: str, gpu_instance_id: int | None = None) -> ProcessShare:
    work = Workload("python", pod=PodPlace(f"uid-{pod}", pod, "ml", "main"))
    return ProcessShare(Place("GPU-0", 0, gpu_instance_id), pid, None, None, None, None, None, None, work)


def attributed(*shares: ProcessShare) -> Attribution:
    return Attribution(shares, (), (), (), PidView(PidScope.HOST, "all"))


def test_per_pod_utilization_and_memory_have_values_of_pods_and_of_the_gpu() -> None:
    running = GPUS[0]._replace(
        processes=(
            GpuProcess(1, None, "compute", 20 * MIB + 5, 30),
            GpuProcess(2, None, "compute", 10 * MIB, 12),
            GpuProcess(3, None, "compute", 9 * MIB, 40),
        ),
    )
    readings = {
        "gpus": GpuReading("580", "13", "13.0", (running, *GPUS[1:]), 3, 3),
        "attribution": attributed(share(1, "a"), share(2, "a"), share(3, "stranger")),
        "pods": PodReading.of([Pod("uid-a", "a", "ml"), Pod("uid-b", "b", "ml")]),
    }
    assert by_pod("DCGM_FI_DEV_GPU_UTIL", **readings) == {
        ("GPU-0", None, None): 90,
        ("GPU-0", "a", "0"): 42,
        ("GPU-0", "b", "3"): 0,
        ("GPU-1", None, None): 90,
        ("GPU-1", "whole", None): 0,
        ("GPU-2", None, None): 90,
    }
    assert by_pod("DCGM_FI_DEV_FB_USED", **readings) == {
        ("GPU-0", None, None): 70,
        ("GPU-0", "a", "0"): 30,
        ("GPU-0", "b", "3"): 0,
        ("GPU-1", None, None): 70,
        ("GPU-1", "whole", None): 0,
        ("GPU-2", None, None): 70,
    }
    uids = {
        labels["pod"]: labels.get("pod_uid")
        for labels, _ in series_of("DCGM_FI_DEV_FB_USED", *SHARED, dialect=PER_POD, **readings)
        if "pod" in labels
    }
    assert uids == {"a": "uid-a", "b": "uid-b", "whole": None}


def test_per_pod_an_unknown_value_is_absent() -> None:
    assert set(by_pod("DCGM_FI_DEV_GPU_UTIL")) == {(f"GPU-{i}", None, None) for i in range(3)}, "no attribution"
    unknown = GPUS[0]._replace(processes=(GpuProcess(1, None, "compute", None, None),))
    readings = {
        "gpus": GpuReading("580", "13", "13.0", (unknown, *GPUS[1:]), 3, 3),
        "attribution": attributed(share(1, "a")),
    }
    assert ("GPU-0", "a", "0") not in by_pod("DCGM_FI_DEV_GPU_UTIL", **readings)
    assert ("GPU-0", "a", "0") not in by_pod("DCGM_FI_DEV_FB_USED", **readings)
    assert by_pod("DCGM_FI_DEV_GPU_UTIL", **readings)["GPU-0", "b", "3"] == 0


# -- jobs

SPLIT = GPUS[0]._replace(
    mig_enabled=True,
    mig=tuple(
        MigInstance(f"MIG-{gi}", gi, 0, "3g.40gb", 3, 3, 48, 40 * MIB, memory=MigMemory(40 * MIB, gi * MIB, 0, 0))
        for gi in (1, 2)
    ),
)


def jobs(**by_place: tuple[str, ...]) -> JobMappingReading:
    """Of g0 (GPU 0) or g0_1 (its GPU instance 1)."""
    places = {name: [int(number) for number in name[1:].split("_")] for name in by_place}
    return JobMappingReading(
        {
            (places[name][0], places[name][1] if len(places[name]) > 1 else None): tuple(map(MappedJob, ids))
            for name, ids in by_place.items()
        }
    )


def test_each_job_of_a_gpu_has_its_series() -> None:
    series = series_of("DCGM_FI_DEV_POWER_USAGE", job_mapping=jobs(g1=("4711", "4712")))
    assert [(labels["UUID"], labels.get("hpc_job"), value) for labels, value in series] == [
        ("GPU-0", None, 100),
        ("GPU-1", "4711", 100),
        ("GPU-1", "4712", 100),
        ("GPU-2", None, 100),
    ]


def test_per_pod_a_mig_device_has_memory_but_no_utilization() -> None:
    running = SPLIT._replace(processes=(GpuProcess(1, None, "compute", 3 * MIB, None, gpu_instance_id=1),))
    given_to = tuple(
        PodDevices("ml", pod, "main", (DeviceId(uuid, mig_uuid=uuid),))
        for pod, uuid in (("busy", "MIG-1"), ("idle", "MIG-2"))
    )
    readings = {
        "gpus": GpuReading("580", "13", "13.0", (running,), 1, 1),
        "attribution": attributed(share(1, "busy", 1)),
    }
    memory = series_of("DCGM_FI_DEV_FB_USED", *given_to, dialect=PER_POD, **readings)
    assert {(labels["GPU_I_ID"], labels.get("pod")): value for labels, value in memory} == {
        ("1", None): 1,
        ("2", None): 2,
        ("1", "busy"): 3,
        ("2", "idle"): 0,
    }
    utilization = series_of("DCGM_FI_DEV_GPU_UTIL", *given_to, dialect=PER_POD, **readings)
    assert [labels.get("pod") for labels, _ in utilization] == [None], "unknown under MIG, and so not 0"


def test_a_job_on_a_mig_device_is_named_by_gpu_and_instance() -> None:
    readings = {
        "gpus": GpuReading("580", "13", "13.0", (SPLIT,), 1, 1),
        "job_mapping": jobs(g0=("board",), g0_2=("8",)),
    }
    memory = series_of("DCGM_FI_DEV_FB_USED", **readings)
    assert [(labels["GPU_I_ID"], labels.get("hpc_job"), value) for labels, value in memory] == [
        ("1", None, 1),
        ("2", "8", 2),
    ]
    assert [labels.get("hpc_job") for labels, _ in series_of("DCGM_FI_DEV_POWER_USAGE", **readings)] == ["board"]


def test_jobs_and_pods_multiply() -> None:
    series = series_of("DCGM_FI_DEV_POWER_USAGE", *SHARED, dialect=PER_POD, job_mapping=jobs(g0=("1", "2")))
    assert [(labels["pod"], labels["hpc_job"]) for labels, _ in series if labels["UUID"] == "GPU-0"] == [
        ("a", "1"),
        ("a", "2"),
        ("b", "1"),
        ("b", "2"),
    ]


@any_of(st.text(min_size=1))
def test_any_job_id_is_a_label_value(job: str) -> None:
    series = series_of("DCGM_FI_DEV_POWER_USAGE", job_mapping=jobs(g0=(job,)))
    assert len(series) == 3
    assert series[0][0]["hpc_job"]


@pytest.mark.parametrize(
    ("holders", "labels"),
    [
        ((), ("", "", "")),
        ((PodLabels("train", "ml", "main"),), ("main", "ml", "train")),
        ((PodLabels("train", "ml", "main", 0), PodLabels("train", "ml", "main", 1)), ("main", "ml", "train")),
        ((PodLabels("train", "ml", "a"), PodLabels("train", "ml", "b")), ("", "ml", "train")),
        ((PodLabels("train", "ml", "main", 0), PodLabels("train", "web", "main", 1)), ("", "", "")),
        ((PodLabels("train", "ml", "main", 0), PodLabels("serve", "ml", "main", 1)), ("", "", "")),
    ],
)
def test_labels_name_a_pod_only_if_it_alone_holds_the_gpu(
    holders: tuple[PodLabels, ...], labels: tuple[str, str, str]
) -> None:
    assert only_pod(holders) == labels
