"""Puts attribution between the sources and the snapshot."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpucommons.agent.setting_rules import owner_rules
from gpucommons.agent.sharing.settings import nvml_cadence_s
from gpucommons.config.option import ConfigError
from gpucommons.config.settings import DcgmSettings, KubernetesSettings, Settings
from gpucommons.config.state_directory import events_position_file, gpu_record
from gpucommons.model.events import AlertsReading, EventsReading
from gpucommons.model.gpu import AllocationRatioReading, GpuReading, KernelLogReading
from gpucommons.model.host import (
    CpuReading,
    FilesystemReading,
    HardwareReading,
    KernelReading,
    MemoryReading,
    PressureReading,
    TextFilesReading,
)
from gpucommons.model.idle import IdlePeriods
from gpucommons.model.process_identity import CommandLineReading, ProcessTable
from gpucommons.model.snapshot import AgentReading, Readings
from gpucommons.model.workloads import (
    Container,
    ContainerReading,
    ContainerUsageReading,
    Ds01Reading,
    JobHostReading,
    JobMappingReading,
    PodDevicesReading,
    PodReading,
    UsersReading,
    all_containers,
)
from gpucommons.owners.attribution_stage import AttributionStage, IdentifiedGpus, ProcessSources
from gpucommons.owners.holding_stage import AllocationStage
from gpucommons.owners.owner import OwnerRules
from gpucommons.owners.process_identity import CommandLines, ProcessIdentities, pid_view
from gpucommons.owners.slot_states import IdleWindow
from gpucommons.owners.slots import slice_owner
from gpucommons.owners.xid_programs import XidProgramStage
from gpucommons.simulation.scenario import Scenario
from gpucommons.sources.agent import AgentReader
from gpucommons.sources.alertmanager import AlertmanagerSource, OwnNode, own_names
from gpucommons.sources.containers.engine import DOCKER, PODMAN
from gpucommons.sources.containers.source import ContainerFollower
from gpucommons.sources.containers.usage import ContainerUsageReader
from gpucommons.sources.ds01.events import Ds01EventsReader
from gpucommons.sources.ds01.state import Ds01StateReader
from gpucommons.sources.host.cpu import CpuReader, read_memory, read_pressure
from gpucommons.sources.host.filesystems import FilesystemReader
from gpucommons.sources.host.hardware import HardwareReader
from gpucommons.sources.host.kernel import KernelReader
from gpucommons.sources.host.kernel_log import KernelLogReader
from gpucommons.sources.host.process_details import CommandReader, ProcessDetailsReader, read_pid_facts
from gpucommons.sources.host.processes import ProcessTableReader
from gpucommons.sources.host.textfile import TextFileReader
from gpucommons.sources.kubernetes.api import ClusterAccess
from gpucommons.sources.kubernetes.kubelet import PodDevicesFollower
from gpucommons.sources.kubernetes.pods import LabelPatterns
from gpucommons.sources.kubernetes.source import KubeletPodFollower, PodFollower
from gpucommons.sources.mapping_files import AllocationRatioReader, JobMappingReader
from gpucommons.sources.nvml.presence import DriverReader, GpuRecord
from gpucommons.sources.people.user_names import host_user_names
from gpucommons.sources.people.users import UsersReader, host_root
from gpucommons.sources.source import Source

# Imported where they are used: an agent without a driver has none of this in memory.
if TYPE_CHECKING:
    from gpucommons.sources.nvml.gpm import GpmAccess
    from gpucommons.sources.nvml.source import NvmlReader

_COMMANDS_DEADLINE_S = 5.0


def this_machine(procfs: Path) -> ProcessSources:
    view = pid_view(read_pid_facts(procfs))
    return ProcessSources(ProcessDetailsReader(procfs), view, host_user_names(procfs), CommandReader(procfs))


def with_attribution(
    sources: Iterable[Source], world: ProcessSources, rules: OwnerRules | None = None
) -> tuple[list[Source], AttributionStage]:
    """The sources, where the GPU source also identifies the processes that it lists, and the stage to derive with.

    After the GPU source comes the source of the command lines of these processes.
    """
    identities = ProcessIdentities(world.reader, world.view)
    commands = CommandLines(world.commands, identities)
    attributed: list[Source] = []
    for source in sources:
        if source.feeds != "gpus":
            attributed.append(source)
            continue
        attributed.append(source._replace(read=IdentifiedGpus(source.read, identities, world.users).read))
        attributed.append(
            Source(
                "command_lines",
                "command_lines",
                CommandLineReading,
                commands.read,
                source.cadence_s,
                _COMMANDS_DEADLINE_S,
                runs_on=source.runs_on,
                read_at_once=commands.read_at_once,
            )
        )
    return attributed, AttributionStage(identities, world.users, rules)


# Where this node's pods are read from, by the settings.


def pod_follower(settings: KubernetesSettings, dcgm: DcgmSettings) -> PodFollower | KubeletPodFollower:
    """Labels are kept for owners, and for the dcgm dialect if it shows them."""
    names = [label.strip() for label in settings.pod_labels.split(",") if label.strip()]
    patterns = [pattern.strip() for pattern in dcgm.pod_label_allowlist.split(",")] if dcgm.pod_labels else []
    labels = LabelPatterns(names, patterns)
    access = cluster_access(settings)
    if settings.source == "api":
        return PodFollower(access, allowed_labels=labels)
    if access is None:
        raise ConfigError("kubernetes.source = kubelet requires kubernetes.api_url, such as https://127.0.0.1:10250")
    return KubeletPodFollower(access, allowed_labels=labels)


def cluster_access(settings: KubernetesSettings) -> ClusterAccess | None:
    """None: use the API server that Kubernetes announces to each pod."""
    if not settings.api_url:
        return None
    node_name = settings.node_name or os.environ.get("NODE_NAME", "")
    if not node_name:
        raise ConfigError("kubernetes.node_name: required with kubernetes.api_url (or set NODE_NAME)")
    return ClusterAccess(settings.api_url, node_name, settings.ca_file or None, settings.token_file or None)


# Every source of the agent, in one list: what is read, how often, and what is derived from the readings.

# The driver calls that measure how busy a GPU is, made in every reading even if they are slow: on an H200 GPM takes 1
# to 4 ms.
_ACTIVITY_CALLS: Final = frozenset({"gpm", "utilization"})
# Those that show which programs use a GPU: a program that uses it again must take part within two seconds.
_PROGRAMS_BY: Final = frozenset({"compute_processes", "mps_processes", "process_utilization"})


def agent_sources(
    settings: Settings,
    scenario: Scenario | None,
    of_parts: Iterable[Source] = (),
    agent: AgentReader | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    gpm: "GpmAccess | None" = None,
    idle_before: Callable[[], IdlePeriods] = dict,
) -> tuple[list[Source], Callable[[Readings], Readings]]:
    """All sources of the agent, those of its parts included, and the function that derives owners and allocations.

    `gpm` lends the reader's session with the driver to the scheduler. `idle_before` are the idle periods that an
    earlier agent has seen.
    """
    interval_s = settings.sampling.interval_s
    sources = [*_node_sources(settings, scenario, monotonic, gpm), *of_parts]
    if settings.alerts.alertmanager_url:
        alertmanager = AlertmanagerSource(settings.alerts.alertmanager_url, OwnNode(own_names(settings.alerts.node)))
        sources.append(Source("alertmanager", "alerts", AlertsReading, alertmanager.read, 15.0, 10.0))
    if agent is not None:
        sources.append(Source("agent", "agent", AgentReading, agent.read, interval_s, runs_on="loop"))
    rules = owner_rules(settings.owners)
    allocations = AllocationStage(rules, settings.ledger.active_ratio, _idle_window(settings), idle_before)
    world = _world(settings, scenario)
    if world is None:
        return sources, allocations
    sources, attribution = with_attribution(sources, world, rules)
    xids = XidProgramStage()
    return sources, lambda readings: xids(allocations(attribution(readings)))


def _idle_window(settings: Settings) -> IdleWindow:
    idle, default = settings.idle, IdleWindow()
    return IdleWindow(
        idle.after_s or default.length_s,
        idle.active_percent / 100,
        max(default.longest_gap_s, 5 * settings.sampling.interval_s),
    )


def _node_sources(
    settings: Settings, scenario: Scenario | None, monotonic: Callable[[], float], gpm: "GpmAccess | None"
) -> list[Source]:
    if scenario is not None:
        return scenario.sources(settings.sampling.interval_s, monotonic)
    return _linux(settings, gpm) if sys.platform == "linux" else _without_procfs(settings)


def _world(settings: Settings, scenario: Scenario | None) -> ProcessSources | None:
    """Where processes are looked up; None where there is no attribution."""
    if scenario is not None:
        return None if scenario.world is None else ProcessSources(*scenario.world)
    return this_machine(Path(settings.path.procfs)) if sys.platform == "linux" else None


def _linux(settings: Settings, gpm: "GpmAccess | None") -> list[Source]:
    """Everything that can be read on Linux. What does not exist on this node is reported as absent."""
    path, exclude = settings.path, settings.nodeexporter
    procfs, sysfs, rootfs, cgroupfs = (Path(p) for p in (path.procfs, path.sysfs, path.rootfs, path.cgroupfs))
    interval_s, host_s = settings.sampling.interval_s, settings.sampling.host_interval_s
    processes_s = settings.sampling.processes_interval_s
    docker = ContainerFollower(DOCKER, path.docker_socket or None)
    podman = ContainerFollower(PODMAN, path.podman_socket or None)
    kubelet, pods = PodDevicesFollower(path.kubelet_socket), pod_follower(settings.kubernetes, settings.dcgm)

    def containers() -> Mapping[str, Container]:
        return all_containers(docker.newest, podman.newest)

    kernel = KernelReader(
        procfs,
        sysfs,
        rootfs,
        exclude.diskstats_device_exclude,
        exclude.netdev_device_exclude,
        exclude.netclass_ignored_devices,
        exclude.netstat_fields,
    )
    text_files = TextFileReader(exclude.textfile_directory)
    filesystems = FilesystemReader(
        procfs, rootfs, exclude.filesystem_mount_points_exclude, exclude.filesystem_fs_types_exclude
    )
    processes = ProcessTableReader(procfs, settings.processes.busiest)
    keep_fast = _ACTIVITY_CALLS if settings.scheduler.is_used else frozenset()
    if settings.scheduler.shares_programs:
        keep_fast |= _PROGRAMS_BY

    def load_nvml() -> "NvmlReader":
        from gpucommons.sources.nvml.source import NvmlReader

        return NvmlReader(procfs, sysfs, record=GpuRecord(gpu_record()), keep_fast=keep_fast, gpm_access=gpm)

    nvml = DriverReader(sysfs, load_nvml)
    # The third tick after a call hung must be past the deadline: then the readings are gone within three intervals.
    nvml_s = nvml_cadence_s(settings)
    nvml_deadline_s = 2.5 * max(nvml_s, 1.0)
    users = UsersReader(
        host_root(procfs), procfs, cgroupfs, slice_owner, Path(settings.ds01.groups_directory), containers
    )
    usage = ContainerUsageReader(procfs, cgroupfs, containers)
    ds01 = Ds01StateReader(Path(settings.ds01.state_file))
    kernel_log = KernelLogReader(Path(path.kernel_log))
    events = Ds01EventsReader(Path(settings.events.file), events_position_file())
    return [
        # name, field of Readings, type, read, cadence, deadline
        Source("cpu", "cpu", CpuReading, CpuReader(procfs).read, interval_s, essential=True, thread="host"),
        Source(
            "memory", "memory", MemoryReading, lambda: read_memory(procfs), interval_s, essential=True, thread="host"
        ),
        Source("pressure", "pressure", PressureReading, lambda: read_pressure(procfs), interval_s, thread="host"),
        Source("kernel", "kernel", KernelReading, kernel.read, host_s, 5.0),
        Source("filesystems", "filesystems", FilesystemReading, filesystems.read, host_s, 10.0),
        Source("hardware", "hardware", HardwareReading, HardwareReader(sysfs).read, host_s, 30.0),
        Source("text_files", "text_files", TextFilesReading, text_files.read, host_s, 5.0),
        Source("processes", "processes", ProcessTable, processes.read, processes_s, 5.0),
        Source("nvml", "gpus", GpuReading, nvml.read, nvml_s, nvml_deadline_s),
        Source("kernel_log", "kernel_log", KernelLogReading, kernel_log.read, interval_s, thread="host"),
        Source("docker", "docker", ContainerReading, docker.read, runs_on="loop", run=docker.run),
        Source("podman", "podman", ContainerReading, podman.read, runs_on="loop", run=podman.run),
        Source("container_usage", "container_usage", ContainerUsageReading, usage.read, 5.0, 5.0),
        Source("kubelet", "pod_devices", PodDevicesReading, kubelet.read, runs_on="loop", run=kubelet.run),
        Source("kubernetes", "pods", PodReading, pods.read, runs_on="loop", run=pods.run),
        *_allocation_ratio(settings.vgpu.allocation_file),
        *_job_mapping(settings.slurm.job_directory, settings.dcgm.hpc_job_mapping_dir, cgroupfs),
        Source("users", "users", UsersReading, users.read, 10.0, 5.0),
        Source("ds01", "ds01", Ds01Reading, ds01.read, 5.0, 5.0),
        Source("events", "events", EventsReading, events.read, interval_s, 5.0),
    ]


def _allocation_ratio(named: str) -> list[Source]:
    """An unnamed file that does not exist is not an error: most nodes do not split their GPUs."""
    file = Path(named or "gpu_allocation.txt")
    if not named and not file.exists():
        return []
    read = AllocationRatioReader(file).read
    return [Source("allocation_ratio", "allocation_ratio", AllocationRatioReading, read, 5.0, 5.0)]


def _job_mapping(slurm_directory: str, directory: str, cgroupfs: Path) -> list[Source]:
    """Slurm's jobs, else those of another batch system."""
    if slurm_directory:
        from gpucommons.slurm.jobs import SlurmJobsReader

        jobs = SlurmJobsReader(Path(slurm_directory), cgroupfs=cgroupfs)
        return [
            Source("slurm", "job_mapping", JobMappingReading, jobs.read, 2.0, 20.0),
            Source("slurm_hosts", "job_hosts", JobHostReading, jobs.read_hosts, 5.0, 5.0),
        ]
    if not directory:
        return []
    read = JobMappingReader(Path(directory)).read
    return [Source("job_mapping", "job_mapping", JobMappingReading, read, 5.0, 5.0)]


def _without_procfs(settings: Settings) -> list[Source]:
    # Imported here: on Linux, psutil would cost a megabyte and serve nothing.
    from gpucommons.sources.host.portable import PortableCpuReader, PortableProcessReader, read_portable_memory

    interval_s = settings.sampling.interval_s
    processes = PortableProcessReader(settings.processes.busiest)
    return [
        Source("cpu", "cpu", CpuReading, PortableCpuReader().read, interval_s, essential=True),
        Source("memory", "memory", MemoryReading, read_portable_memory, interval_s, essential=True),
        Source("processes", "processes", ProcessTable, processes.read, settings.sampling.processes_interval_s, 5.0),
    ]
