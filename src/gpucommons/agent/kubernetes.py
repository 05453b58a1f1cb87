"""The device plugin and the reports of GPU faults in the agent: fed with every snapshot, read as sources."""

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from gpucommons.agent.sources import cluster_access
from gpucommons.base.threads import in_daemon_thread
from gpucommons.config.settings import KubernetesSettings, Settings
from gpucommons.model.problems import Problem
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.workloads import DevicePluginReading, NodeFaultsReading, Pod
from gpucommons.rules.faults import GpuFaults
from gpucommons.rules.placement import pods_by_place
from gpucommons.sources.kubernetes.api import ApiServer, in_cluster
from gpucommons.sources.kubernetes.cdi import cdi_uuids, runtime_has_cdi
from gpucommons.sources.source import Source, SourceAbsent, SourceError, mapping, text

# Imported where they are used: an agent outside of Kubernetes has neither in memory.
if TYPE_CHECKING:
    from gpucommons.kubernetes.device_plugin import DevicePlugin
    from gpucommons.kubernetes.node_faults import NodeFaults
    from gpucommons.kubernetes.shares import Injection, OfferedDevice, Placement, ShareResource

_NODE_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


def kubernetes_part(settings: Settings) -> "KubernetesPart | None":
    """None where neither is switched on."""
    kubernetes = settings.kubernetes
    if not kubernetes.offers_shares and kubernetes.report_faults == "off":
        return None
    return KubernetesPart(
        _device_plugin(settings) if kubernetes.offers_shares else None,
        _node_faults(kubernetes) if kubernetes.report_faults != "off" else None,
    )


class KubernetesPart:
    def __init__(self, plugin: "DevicePlugin | None", faults: "NodeFaults | None") -> None:
        self._plugin = plugin
        self._reporter = faults
        self._faults = GpuFaults()
        self._offered: tuple[OfferedDevice, ...] = ()

    def sources(self) -> list[Source]:
        chosen = []
        if (plugin := self._plugin) is not None:
            chosen.append(
                Source(
                    "device_plugin", "device_plugin", DevicePluginReading, plugin.read, runs_on="loop", run=plugin.run
                )
            )
        if (reporter := self._reporter) is not None:
            chosen.append(
                Source("node_faults", "node_faults", NodeFaultsReading, reporter.read, runs_on="loop", run=reporter.run)
            )
        return chosen

    def observe(self, snapshot: Snapshot) -> None:
        readings = snapshot.readings
        if readings.gpus is None:
            return
        self._faults.observe(snapshot)
        if self._plugin is not None:
            from gpucommons.kubernetes.shares import allocated_shares, offered_devices

            self._offered = offered_devices(readings.gpus, self._faults.gpu_uuids, self._offered)
            self._plugin.offer(self._offered, allocated_shares(readings.pod_devices))
        if self._reporter is not None:
            from gpucommons.kubernetes.node_faults import NO_FAULTS, FaultReport

            faults = self._faults.by_key
            pods = {key: _hit_pods(problem, readings) for key, problem in faults.items()}
            self._reporter.report(FaultReport(faults, pods) if faults else NO_FAULTS)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


def _hit_pods(problem: Problem, readings: Readings) -> Sequence[Pod]:
    """The pods that have a device of the GPU by the kubelet, and those whose processes were on it."""
    if readings.pods is None:
        return ()
    named = {(pod.namespace, pod.name): pod for pod in readings.pods.by_uid.values()}
    return [named[name] for name in dict.fromkeys(_pods_on(problem.gpu_uuid, readings)) if name in named]


def _pods_on(gpu_uuid: str | None, readings: Readings) -> Iterator[tuple[str, str]]:
    if readings.gpus is not None and readings.pod_devices is not None:
        for place, pods in pods_by_place(readings.gpus.gpus, readings.pod_devices).items():
            if place.gpu_uuid == gpu_uuid:
                yield from ((pod.namespace, pod.pod) for pod in pods)
    for share in readings.attribution.processes if readings.attribution is not None else ():
        if share.place.gpu_uuid == gpu_uuid and share.workload.pod is not None:
            yield share.workload.pod.namespace, share.workload.pod.name


def _node_faults(settings: KubernetesSettings) -> "NodeFaults":
    from gpucommons.kubernetes.node_faults import NodeFaults

    return NodeFaults(cluster_access(settings), taint=settings.report_faults == "taint")


def _device_plugin(settings: Settings) -> "DevicePlugin":
    from gpucommons.kubernetes.device_plugin import DevicePlugin

    kubernetes = settings.kubernetes
    return DevicePlugin(
        _resources(kubernetes),
        Path(settings.path.device_plugins),
        cast("Placement", kubernetes.placement),
        _Injector(kubernetes, [Path(path.strip()) for path in settings.path.cdi.split(",") if path.strip()]).choose,
    )


def _resources(settings: KubernetesSettings) -> "list[ShareResource]":
    from gpucommons.kubernetes.shares import ShareResource

    nvshare: Final = "nvshare" if settings.nvshare_library else None
    xpushare: Final = "xpushare" if settings.nvshare_library else None
    offered = (
        ShareResource("gpucommons.io/gpu", settings.shares_per_gpu, nvshare),
        ShareResource("nvshare.com/gpu", settings.nvshare_shares_per_gpu, nvshare),
        ShareResource("xpushare.com/gpu", settings.xpushare_shares_per_gpu, xpushare),
    )
    return [resource for resource in offered if resource.shares_per_gpu]


class _Injector:
    """How containers get their GPUs. The node's runtime is asked for once: it changes with a restart of the node."""

    def __init__(self, settings: KubernetesSettings, cdi_directories: Sequence[Path]) -> None:
        self._settings = settings
        self._directories = cdi_directories
        self._runtime: str | None = None

    async def choose(self, uuids: Collection[str]) -> "Injection":
        if self._settings.device_injection != "auto":
            return cast("Injection", self._settings.device_injection)
        described = await in_daemon_thread(lambda: cdi_uuids(self._directories))
        if not described.issuperset(uuids):
            return "environment"
        if self._runtime is None:
            try:
                self._runtime = await self._ask_runtime()
            except (SourceError, SourceAbsent) as error:
                log.info(
                    "GPUs are given by NVIDIA_VISIBLE_DEVICES, not by CDI: the node's runtime is not known: %s", error
                )
                return "environment"
        return "cdi" if runtime_has_cdi(self._runtime) else "environment"

    async def _ask_runtime(self) -> str:
        access = cluster_access(self._settings) or in_cluster(os.environ)
        api = ApiServer(access, _NODE_TIMEOUT_S, "grant its service account get on nodes")
        node = mapping(await api.get(f"/api/v1/nodes/{access.node_name}", {}))
        info: Mapping[str, object] = mapping(mapping(node.get("status")).get("nodeInfo"))
        return text(info.get("containerRuntimeVersion"))
