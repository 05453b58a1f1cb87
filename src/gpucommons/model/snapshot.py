"""Everything the agent knows at one instant, as one immutable value. All outputs are derived from it.

The state of each source, and the agent's own cost, are readings like the others.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpucommons.model.accounts import AccountsReading, LedgerReading
from gpucommons.model.allocations import AllocationReading, SlotsReading
from gpucommons.model.events import AlertsReading, EventLogReading, EventsReading
from gpucommons.model.gpu import AllocationRatioReading, GpuReading, KernelLogReading, XidProgramsReading
from gpucommons.model.host import (
    CpuReading,
    FilesystemReading,
    HardwareReading,
    KernelReading,
    MemoryReading,
    PressureReading,
    TextFilesReading,
)
from gpucommons.model.idle import IdleReading
from gpucommons.model.leases import LeasesReading
from gpucommons.model.ownership import Attribution
from gpucommons.model.process_identity import CommandLineReading, ProcessContext, ProcessKey, ProcessTable
from gpucommons.model.sharing import SharingReading
from gpucommons.model.workloads import (
    ContainerReading,
    ContainerUsageReading,
    DevicePluginReading,
    Ds01Reading,
    JobHostReading,
    JobMappingReading,
    NodeFaultsReading,
    PodDevicesReading,
    PodReading,
    UsersReading,
)

# The state of one source: up, absent or failing, the duration of its last read, and why it failed.


class SourceState(NamedTuple):
    """One source at an instant.

    `absent` means that what it reads does not exist on this node (no driver, no Docker): it is down, but this is not a
    failure. `detail` is what is wrong and `remedy` what to do about it.
    """

    name: str
    essential: bool = False
    up: bool = False
    absent: bool = False
    duration_s: float | None = None
    last_success_monotonic_s: float | None = None
    last_success_wall_s: float | None = None
    failures: Mapping[str, int] = {}
    detail: str = ""
    remedy: str = ""
    stale_after_s: float = 0.0

    def is_fresh(self, now_monotonic_s: float) -> bool:
        """Whether the last reading is recent enough to be served as current."""
        last = self.last_success_monotonic_s
        return self.up and last is not None and now_monotonic_s - last <= self.stale_after_s


# The agent itself: its cost, and what it refused or dropped.


@dataclass(frozen=True, slots=True)
class ScrapeReading:
    """The responses with the metrics of one dialect alone. `quantiles_s` are (quantile, seconds) of the last minute."""

    count: int
    body_bytes: int
    sum_s: float
    quantiles_s: tuple[tuple[float, float], ...]


NO_SCRAPES = ScrapeReading(0, 0, 0.0, tuple((quantile, math.nan) for quantile in (0.5, 0.9, 0.99)))


class AgentReading(NamedTuple):
    version: str
    started_wall_s: float
    cpu_seconds: float | None
    rss_bytes: int | None
    open_descriptors: int | None
    threads: int | None
    duplicates_dropped: Mapping[str, int] = {}
    dialect_failures: Mapping[str, int] = {}
    connections_open: int = 0
    connections_refused: Mapping[str, int] = {}
    requests: Mapping[tuple[str, int], int] = {}
    web_config_reload_ok: bool | None = None
    scrapes: Mapping[str, ScrapeReading] = {}


class Readings(NamedTuple):
    """The newest reading of each source; None if the source is down or absent."""

    cpu: CpuReading | None = None
    memory: MemoryReading | None = None
    pressure: PressureReading | None = None
    processes: ProcessTable | None = None
    gpus: GpuReading | None = None
    docker: ContainerReading | None = None
    podman: ContainerReading | None = None
    container_usage: ContainerUsageReading | None = None
    pods: PodReading | None = None
    pod_devices: PodDevicesReading | None = None
    device_plugin: DevicePluginReading | None = None
    node_faults: NodeFaultsReading | None = None
    job_mapping: JobMappingReading | None = None
    job_hosts: JobHostReading | None = None
    allocation_ratio: AllocationRatioReading | None = None
    ds01: Ds01Reading | None = None
    users: UsersReading | None = None
    command_lines: CommandLineReading | None = None
    attribution: Attribution | None = None
    kernel_log: KernelLogReading | None = None
    xid_programs: XidProgramsReading | None = None
    process_contexts: Mapping[ProcessKey, ProcessContext] | None = None
    allocations: AllocationReading | None = None
    slots: SlotsReading | None = None
    ledger: LedgerReading | None = None
    events: EventsReading | None = None
    sharing: SharingReading | None = None
    leases: LeasesReading | None = None
    idle: IdleReading | None = None
    accounts: AccountsReading | None = None
    event_log: EventLogReading | None = None
    alerts: AlertsReading | None = None
    agent: AgentReading | None = None
    kernel: KernelReading | None = None
    filesystems: FilesystemReading | None = None
    hardware: HardwareReading | None = None
    text_files: TextFilesReading | None = None


class Snapshot(NamedTuple):
    sequence: int
    monotonic_s: float
    wall_s: float
    hostname: str
    scenario: str | None = None
    readings: Readings = Readings()
    sources: Mapping[str, SourceState] = {}
