"""Which owner holds which slot at an instant, through a container, pod, job or plain process."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.usage import WHOLE_SHARE, Account, Slot


class AllocationState(StrEnum):
    """HELD: it does not run, but the slot is reserved for it. RUNNING: it runs. ACTIVE: it uses the GPU."""

    HELD = "held"
    RUNNING = "running"
    ACTIVE = "active"


class WorkloadKind(StrEnum):
    CONTAINER = "container"
    POD = "pod"
    JOB = "job"
    LEASE = "lease"
    PROCESS = "process"


class Access(StrEnum):
    """How a workload requested its GPUs: by name, by number, or all."""

    SPECIFIC = "specific"
    COUNT = "count"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Allocation:
    """One workload on one slot. `share` is its billed part of the slot's time, in billionths: 0 for a workload that
    may use the slot, as with `--gpus all`, but does not. Usage is None where it is unknown.

    `processes` are those on the slot that could be identified. `idle_s` is how long it has not used the slot, as far as
    the agent has seen; None while it uses it.
    """

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
    processes: tuple[ProcessKey, ...] = ()
    idle_s: float | None = None

    @property
    def is_access_only(self) -> bool:
        """It may use the slot, was not allocated it, and does not use it."""
        return not self.share and not self.managed

    @property
    def equivalents(self) -> float | None:
        """GPU-equivalents: its share of the slot times the slot's part of the GPU."""
        slot = self.slot
        return None if slot.slices is None else self.share * slot.slices / (slot.of * WHOLE_SHARE)


class TrackedContainer(NamedTuple):
    """A container that DS01 tracks. `has_gpu`: it may use a GPU."""

    id: str
    name: str
    user: str
    interface: str
    running: bool
    has_gpu: bool


class UnmanagedContainer(NamedTuple):
    """A container that may use GPUs that were not allocated to it, whatever its labels say."""

    name: str
    user: str
    gpu_count: int
    access: Access
    running: bool


class SlotInfo(NamedTuple):
    """A slot as the driver reports it. `is_rest`: the part of a split GPU that no MIG device covers."""

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
    """`complete` is False while a source of holders that answered before does not answer."""

    slots: tuple[SlotInfo, ...]
    allocations: tuple[Allocation, ...]
    containers: tuple[TrackedContainer, ...] = ()
    unmanaged: tuple[UnmanagedContainer, ...] = ()
    complete: bool = True
