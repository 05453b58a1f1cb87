"""A GPU fault reaches the kubelet and the node's object, and its end takes both back; nothing is imported unasked."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from fakes.device_manager import DeviceManager
from fakes.node_api import NodeApi
from gpucommons.agent.kubernetes import kubernetes_part
from gpucommons.config.settings import KubernetesSettings, PathSettings, Settings
from gpucommons.model.gpu import Gpu, GpuIdentity, GpuReading
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.workloads import Pod, PodDevices, PodDevicesReading, PodReading
from gpucommons.sources.kubernetes.kubelet import parse_device_id
from gpucommons.sources.source import Source
from testbeds.following import BackgroundSource, eventually, following, in_event_loop

_UUIDS = [f"GPU-0000000{index}-0000-0000-0000-000000000000" for index in range(2)]
_GPUS = tuple(
    Gpu(GpuIdentity(uuid, index, "NVIDIA H200", f"0:{index}"), True, 0.0) for index, uuid in enumerate(_UUIDS)
)
_LOST = _GPUS[1]._replace(up=False, down_reason="gpu_is_lost")


class _AsSource:
    def __init__(self, source: Source) -> None:
        self.read, self._run = source.read, source.run

    async def run(self) -> None:
        assert self._run is not None
        await self._run()


def snapshot(second: float, *gpus: Gpu) -> Snapshot:
    pods = PodReading.of([Pod("uid-1", "train", "lab"), Pod("uid-2", "infer", "lab")])
    devices = PodDevicesReading(
        (
            PodDevices("lab", "train", "main", (parse_device_id(f"{_UUIDS[1]}__2"),)),
            PodDevices("lab", "infer", "main", (parse_device_id(f"{_UUIDS[0]}__1"),)),
        )
    )
    reading = GpuReading("570", "12", "12.8", gpus, 2, sum(gpu.up for gpu in gpus))
    readings = Readings(gpus=reading, pods=pods, pod_devices=devices)
    return Snapshot(1, second, 1e9 + second, "node-1", readings=readings)


@in_event_loop
async def test_a_lost_gpu_is_offered_as_unhealthy_and_reported_and_both_end_with_it(tmp_path: Path) -> None:
    manager = DeviceManager(tmp_path)
    async with NodeApi().serving() as api, manager.running() as kubelet:
        part = kubernetes_part(
            Settings(
                kubernetes=KubernetesSettings(
                    api_url=api.url, node_name="node-1", shares_per_gpu=10, report_faults="taint"
                ),
                path=PathSettings(device_plugins=str(tmp_path), cdi=str(tmp_path)),
            )
        )
        assert part is not None
        sources: Mapping[str, BackgroundSource[object]] = {each.name: _AsSource(each) for each in part.sources()}
        part.observe(snapshot(1, *_GPUS))
        async with following(sources["device_plugin"]), following(sources["node_faults"]):
            await kubelet.until("gpucommons.io/gpu", 20)
            for second in (2, 3):
                part.observe(snapshot(second, _GPUS[0], _LOST))
            await kubelet.until("gpucommons.io/gpu", 10, 10)
            await eventually(api.condition)
            await eventually(lambda: len(api.events) == 2 or None)
            assert [each["involvedObject"]["name"] for each in api.events] == ["node-1", "train"]
            assert [each["key"] for each in api.taints] == ["gpucommons.io/gpu-problem"]
            _, given = await kubelet.admit("gpucommons.io/gpu", 2)
            assert given.envs["NVIDIA_VISIBLE_DEVICES"] == _UUIDS[0]
            part.observe(snapshot(64, *_GPUS))
            await kubelet.until("gpucommons.io/gpu", 20)
            await eventually(lambda: True if api.condition() is None and not api.taints else None)


@pytest.mark.long
def test_without_its_settings_nothing_of_kubernetes_is_there() -> None:
    assert kubernetes_part(Settings()) is None
    program = (
        "import sys, gpucommons.agent.agent\n"
        "print([name for name in sys.modules if name.startswith(('gpucommons.kubernetes', 'grpc'))])"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
