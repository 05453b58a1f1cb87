"""Who holds which GPU, or part of one, at an instant: containers, pods, jobs and plain processes alike."""

from dataclasses import dataclass
from enum import StrEnum

from gpucommons.model.usage import WHOLE_SHARE, Account, Slot


class AllocationState(StrEnum):
    """HELD: nothing of it runs, but the slot is kept for it. RUNNING: it runs. ACTIVE: it works on the GPU."""

    HELD = "held"
    RUNNING = "running"
    ACTIVE = "active"


class WorkloadKind(StrEnum):
    CONTAINER = "container"
    POD = "pod"
    JOB = "job"
    PROCESS = "process"


class Access(StrEnum):
    """How a workload got its GPUs: these very ones, so many, or all there are."""

    SPECIFIC = "specific"
    COUNT = "count"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Allocation:
    """One workload on one slot. `share` is what it is billed of the slot's time, in billionths: 0 for one that
    may use the slot, as with `--gpus all`, but has nothing on it. Usage is None where it is not known."""

    account: Account
    kind: WorkloadKind
    workload: str
    workload_id: str
    slot: Slot
    profile: str
    share: int
    state: AllocationState
    interface: str
    managed: bool
    access: Access = Access.SPECIFIC
    since_wall_s: float | None = None
    active: bool | None = None
    sm: int | None = None
    memory_bytes: int | None = None
    milliwatts: int | None = None

    @property
    def is_access_only(self) -> bool:
        """It may use the slot, was not given it, and has nothing on it."""
        return not self.share and not self.managed

    @property
    def equivalents(self) -> float | None:
        """In whole GPUs: its share of the slot times the slot's part of the GPU."""
        slot = self.slot
        return None if slot.slices is None else self.share * slot.slices / (slot.of * WHOLE_SHARE)


@dataclass(frozen=True, slots=True)
class TrackedContainer:
    """A container that DS01 tracks; `has_gpu` that it may use a GPU."""

    id: str
    name: str
    user: str
    interface: str
    running: bool
    has_gpu: bool


@dataclass(frozen=True, slots=True)
class UnmanagedContainer:
    """A container that may use GPUs which nobody allocated to it, whatever its labels say."""

    name: str
    user: str
    gpu_count: int
    access: Access
    running: bool


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """A slot as the driver tells of it. A `rest` is the part of a split GPU that no MIG device covers."""

    slot: Slot
    gpu_index: int
    profile: str = ""
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    mig_enabled: bool = False
    is_rest: bool = False
    sm_scale: float = 1.0
    processes_known: bool = True


@dataclass(frozen=True, slots=True)
class AllocationReading:
    """`complete` is False while somebody who knows of holders, and did answer before, does not answer now."""

    slots: tuple[SlotInfo, ...]
    allocations: tuple[Allocation, ...]
    containers: tuple[TrackedContainer, ...] = ()
    unmanaged: tuple[UnmanagedContainer, ...] = ()
    complete: bool = True
