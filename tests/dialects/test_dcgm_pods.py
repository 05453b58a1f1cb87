"""dcgm's pod, namespace and container labels: the pod that was given the GPU, and nobody where several share it."""

from gpucommons.dialects.dcgm import DCGM
from gpucommons.exposition.exposition import Exposition
from gpucommons.model.gpu import Gpu, GpuIdentity, GpuReading, GpuReadings
from gpucommons.model.pods import DeviceId, PodDevices, PodDevicesReading
from gpucommons.model.snapshot import Readings, Snapshot
from parsing import parsed

GPUS = tuple(
    Gpu(GpuIdentity(f"GPU-{i}", i, "H200", f"0:{i}", minor=i), True, 0.0, readings=GpuReadings(power_watts=100.0))
    for i in range(3)
)


def given(pod: str, device: str, replica: int | None = None) -> PodDevices:
    return PodDevices("ml", pod, "main", "nvidia.com/gpu", (DeviceId(device, gpu_uuid=device, replica=replica),))


def pod_labels(*allocated: PodDevices) -> dict[str, tuple[str | None, str | None, str | None]]:
    readings = Readings(
        gpus=GpuReading("580", "13", "13.0", GPUS, 3, 3), pod_devices=PodDevicesReading(tuple(allocated))
    )
    snapshot = Snapshot(0, 0.0, 0.0, "host", readings=readings)
    body, _ = Exposition(lambda: snapshot, [DCGM]).metrics("dcgm", False, False)
    series = [dict(labels) for name, labels in parsed(body.decode()) if name == "DCGM_FI_DEV_POWER_USAGE"]
    assert len(series) == len(GPUS), "one series per GPU, whoever holds it: sums stay right"
    return {labels["UUID"]: (labels.get("pod"), labels.get("namespace"), labels.get("container")) for labels in series}


def test_the_pod_that_was_given_a_gpu_is_named() -> None:
    assert pod_labels(given("train", "GPU-1")) == {
        "GPU-0": (None, None, None),
        "GPU-1": ("train", "ml", "main"),
        "GPU-2": (None, None, None),
    }


def test_of_several_that_share_a_gpu_none_is_named() -> None:
    shared = pod_labels(given("a", "GPU-0", 0), given("b", "GPU-0", 1), given("c", "GPU-2", 0), given("c", "GPU-2", 1))
    assert shared["GPU-0"] == (None, None, None)
    assert shared["GPU-2"] == ("c", "ml", "main"), "two shares of one pod are one holder"
