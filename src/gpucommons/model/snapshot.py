"""Everything the agent knows at one instant, as one immutable value. All outputs are derived from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucommons.model.accounts import AccountsReading, LedgerReading
from gpucommons.model.agent import AgentReading
from gpucommons.model.alerts import AlertsReading
from gpucommons.model.allocations import AllocationReading
from gpucommons.model.containers import ContainerReading, ContainerUsageReading
from gpucommons.model.ds01 import Ds01Reading
from gpucommons.model.events import EventLogReading, EventsReading
from gpucommons.model.filesystems import FilesystemReading
from gpucommons.model.gpu import AllocationRatioReading, GpuReading
from gpucommons.model.hardware import HardwareReading
from gpucommons.model.host import CpuReading, MemoryReading, PressureReading
from gpucommons.model.idle import IdleReading
from gpucommons.model.job_mapping import JobMappingReading
from gpucommons.model.kernel import KernelReading
from gpucommons.model.leases import LeasesReading
from gpucommons.model.ownership import Attribution
from gpucommons.model.pods import PodDevicesReading, PodReading
from gpucommons.model.process_context import CommandLineReading, ProcessContext
from gpucommons.model.process_identity import ProcessKey, ProcessTable
from gpucommons.model.sharing import SharingReading
from gpucommons.model.slots import SlotsReading
from gpucommons.model.source_state import SourceState
from gpucommons.model.text_files import TextFilesReading
from gpucommons.model.users import UsersReading


@dataclass(frozen=True, slots=True)
class Readings:
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
    job_mapping: JobMappingReading | None = None
    allocation_ratio: AllocationRatioReading | None = None
    ds01: Ds01Reading | None = None
    users: UsersReading | None = None
    command_lines: CommandLineReading | None = None
    attribution: Attribution | None = None
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


@dataclass(frozen=True, slots=True)
class Snapshot:
    sequence: int
    monotonic_s: float
    wall_s: float
    hostname: str
    scenario: str | None = None
    readings: Readings = field(default_factory=Readings)
    sources: Mapping[str, SourceState] = field(default_factory=dict)
