"""The parts of the agent on this machine: everything that can be read here, whether it is there or not."""

import sys
from pathlib import Path

from gpucommons.agent.busy import MEASURED_BY
from gpucommons.agent.cluster import pod_source
from gpucommons.agent.owners import owner_rules
from gpucommons.agent.parts import Background, Parts
from gpucommons.agent.sharing import nvml_cadence_s
from gpucommons.config.settings import Settings
from gpucommons.model.containers import all_containers
from gpucommons.sampling.attributed import attributed, this_machine
from gpucommons.simulation.scenario import Scenario
from gpucommons.sources.allocation_ratio import AllocationRatioSource, parse_allocation_ratios
from gpucommons.sources.containers.engine import DOCKER, PODMAN
from gpucommons.sources.containers.source import ContainerSource
from gpucommons.sources.containers.usage import ContainerUsageSource
from gpucommons.sources.host.cpu import CpuSource
from gpucommons.sources.host.filesystems import FilesystemSource
from gpucommons.sources.host.hardware import HardwareSource
from gpucommons.sources.host.kernel import KernelSource
from gpucommons.sources.host.memory import MemorySource
from gpucommons.sources.host.pressure import PressureSource
from gpucommons.sources.host.processes import ProcessSource
from gpucommons.sources.job_mapping import JobMappingSource
from gpucommons.sources.kubernetes.kubelet import PodDevicesSource
from gpucommons.sources.nvml.source import NvmlSource
from gpucommons.sources.overheard import Overheard
from gpucommons.sources.source import Source

_RATIO_CADENCE_S = 5.0
_JOB_MAPPING_CADENCE_S = 5.0
_CONTAINER_USAGE_CADENCE_S = 5.0


def machine_parts(settings: Settings) -> Parts:
    return _linux(settings) if sys.platform == "linux" else _elsewhere(settings)


def _elsewhere(settings: Settings) -> Parts:
    # Not at the top: psutil would take its megabyte on every Linux machine that happens to have it.
    from gpucommons.sources.host.portable import PortableCpuSource, PortableMemorySource, PortableProcessSource

    sampling, busiest = settings.sampling, settings.processes.busiest
    return Parts(
        [
            PortableCpuSource(sampling.interval_s),
            PortableMemorySource(sampling.interval_s),
            PortableProcessSource(sampling.processes_interval_s, busiest),
        ]
    )


def _linux(settings: Settings) -> Parts:
    procfs, sampling = Path(settings.path.procfs), settings.sampling
    docker = ContainerSource(DOCKER, settings.path.docker_socket or None)
    podman = ContainerSource(PODMAN, settings.path.podman_socket or None)
    kubelet = PodDevicesSource(settings.path.kubelet_socket)
    seen_docker, seen_podman = Overheard(docker), Overheard(podman)
    pods = pod_source(settings.kubernetes)
    sources: list[Source] = [
        CpuSource(procfs, sampling.interval_s),
        MemorySource(procfs, sampling.interval_s),
        PressureSource(procfs, sampling.interval_s),
        *_node_exporter_sources(settings),
        ProcessSource(procfs, sampling.processes_interval_s, settings.processes.busiest),
        NvmlSource(
            procfs,
            nvml_cadence_s(settings),
            keep_fast=MEASURED_BY if settings.scheduler.enabled else frozenset(),
        ),
        seen_docker,
        seen_podman,
        ContainerUsageSource(
            procfs,
            Path(settings.path.cgroupfs),
            _CONTAINER_USAGE_CADENCE_S,
            lambda: all_containers(seen_docker.last, seen_podman.last).items(),
        ),
        kubelet,
        pods,
        *_allocation_ratio(settings.vgpu.allocation_file),
        *_job_mapping(settings.dcgm.hpc_job_mapping_dir),
    ]
    background = [
        Background("docker", docker.run),
        Background("podman", podman.run),
        Background("kubelet", kubelet.run),
        Background("kubernetes", pods.run),
    ]
    return Parts(*attributed(sources, this_machine(procfs), owner_rules(settings.owners)), background)


def _node_exporter_sources(settings: Settings) -> list[Source]:
    """What the nodeexporter dialect needs beyond CPU, memory and pressure."""
    procfs, sysfs, rootfs = Path(settings.path.procfs), Path(settings.path.sysfs), Path(settings.path.rootfs)
    chosen, cadence_s = settings.nodeexporter, settings.sampling.host_interval_s
    return [
        KernelSource(
            procfs,
            sysfs,
            rootfs,
            cadence_s,
            disks_exclude=chosen.diskstats_device_exclude,
            links_exclude=chosen.netdev_device_exclude,
        ),
        FilesystemSource(
            procfs,
            rootfs,
            cadence_s,
            mount_points_exclude=chosen.filesystem_mount_points_exclude,
            types_exclude=chosen.filesystem_fs_types_exclude,
        ),
        HardwareSource(sysfs, cadence_s),
    ]


def _allocation_ratio(named: str) -> list[Source]:
    """A file that nobody named and that is not there is nothing missing: most nodes split no GPU."""
    file = Path(named or "gpu_allocation.txt")
    if not named and not file.exists():
        return []
    return [AllocationRatioSource(file, parse_allocation_ratios, _RATIO_CADENCE_S)]


def _job_mapping(directory: str) -> list[Source]:
    return [JobMappingSource(Path(directory), _JOB_MAPPING_CADENCE_S)] if directory else []


def scenario_parts(settings: Settings, scenario: Scenario) -> Parts:
    sources = scenario.sources(settings.sampling.interval_s)
    if scenario.world is None:
        return Parts(sources)
    return Parts(*attributed(sources, scenario.world, owner_rules(settings.owners)))
