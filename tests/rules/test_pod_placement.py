"""Which pods hold which GPU, whatever form the device id has."""

import pytest

from attribution.builders import gpu, mig_instance
from gpucommons.model.ownership import Place
from gpucommons.model.workloads import DeviceId, PodDevices, PodDevicesReading
from gpucommons.rules.placement import PodLabels, pods_by_place, replicas_by_gpu

SPLIT = gpu(1, mig=(mig_instance(3, 3, None, 1), mig_instance(5, 4, None, 1)), minor=1)
GPUS = (gpu(0, minor=2), SPLIT, gpu(2, minor=0))


def given(pod: str, *devices: DeviceId, container: str = "main", namespace: str = "ml") -> PodDevices:
    return PodDevices(namespace, pod, container, devices)


@pytest.mark.parametrize(
    ("device", "place"),
    [
        (DeviceId("GPU-0", gpu_uuid="GPU-0"), Place("GPU-0", 0)),
        (DeviceId("GPU-2::3", gpu_uuid="GPU-2", replica=3), Place("GPU-2", 2)),
        (DeviceId("MIG-1-3", mig_uuid="MIG-1-3"), Place("GPU-1", 1, 3)),
        (DeviceId("MIG-1-5::7", mig_uuid="MIG-1-5", replica=7), Place("GPU-1", 1, 5)),
        (
            DeviceId("MIG-GPU-1/3/0", gpu_uuid="GPU-1", gpu_instance=3, compute_instance=0),
            Place("GPU-1", 1, 3),
        ),
        (DeviceId("nvidia0/vgpu2", gpu_index=0, replica=2), Place("GPU-2", 2)),
        (DeviceId("nvidia1/gi5/vgpu1", gpu_index=1, gpu_instance=5, replica=1), Place("GPU-1", 1, 5)),
    ],
)
def test_each_form(device: DeviceId, place: Place) -> None:
    found = pods_by_place(GPUS, PodDevicesReading((given("train-0", device),)))
    assert found == {place: (PodLabels("train-0", "ml", "main", device.replica),)}


@pytest.mark.parametrize(
    "device", [DeviceId("?"), DeviceId("GPU-9", gpu_uuid="GPU-9"), DeviceId("MIG-9", mig_uuid="MIG-9")]
)
def test_a_device_that_is_not_here(device: DeviceId) -> None:
    assert pods_by_place(GPUS, PodDevicesReading((given("train-0", device),))) == {}


def test_a_device_number_without_minors_is_the_index() -> None:
    found = pods_by_place((gpu(0), gpu(1)), PodDevicesReading((given("p", DeviceId("nvidia1", gpu_index=1)),)))
    assert list(found) == [Place("GPU-1", 1)]


def test_a_shared_gpu_has_all_its_pods_and_namespaces() -> None:
    shares = [DeviceId(f"GPU-0::{i}", gpu_uuid="GPU-0", replica=i) for i in range(3)]
    reading = PodDevicesReading((given("a", shares[0]), given("a", shares[1], namespace="web"), given("b", shares[2])))
    assert pods_by_place(GPUS, reading)[Place("GPU-0", 0)] == (
        PodLabels("a", "ml", "main", 0),
        PodLabels("a", "web", "main", 1),
        PodLabels("b", "ml", "main", 2),
    )


def test_replicas_are_counted_for_each_gpu() -> None:
    shares = tuple(DeviceId(f"GPU-0::{i}", gpu_uuid="GPU-0", replica=i) for i in range(4))
    whole = (DeviceId("GPU-2", gpu_uuid="GPU-2"),)
    reading = PodDevicesReading((), {"nvidia.com/gpu": whole, "nvidia.com/gpu.shared": shares + shares[:1]})
    assert replicas_by_gpu(GPUS, reading) == {"GPU-0": 4}
    assert replicas_by_gpu(GPUS, PodDevicesReading(())) == {}
