"""Which owner holds which slot at an instant, what it uses there, and the state of each slot.

An owner holds a slot through a container, a pod, a job or a plain process. The ledger integrates usage over time.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from gpucommons.model.process_identity import ProcessKey

# What each account holds and uses of each slot at one instant. The ledger integrates it over time.
#
# All amounts are integers, so that sums are exact. What was not read is None, never 0.

WHOLE_SHARE = 1_000_000_000
WHOLE_SM = 1_000_000


class Account(NamedTuple):
    """What is billed. `kind`, `owner` and `namespace` identify the counters; the other fields group them.

    `id` does not change when the owner is renamed: a uid, a pod's UID. A field that does not apply is empty: a plain
    process has no pod, a pod has no user.
    """

    kind: str
    owner: str
    namespace: str = ""
    id: str = ""
    user: str = ""
    group: str = ""
    pod: str = ""
    job: str = ""


# A process without an owner still holds its slot: the slot must not count as free.
UNATTRIBUTED = Account("none", "unattributed")


class Slot(NamedTuple):
    """What can be held: a whole GPU ("1") or one MIG device of it ("1.0").

    It has `slices` of the GPU's `of` compute slices: 1 of 1 for a whole GPU, None if unknown.
    """

    uuid: str
    gpu_uuid: str
    name: str
    slices: int | None = 1
    of: int = 1


class IdleCause(StrEnum):
    """What the processes of a job do while they do not use the GPU: keep a CPU core busy, wait for a disk, or neither.

    CPU comes first: where one process does this and another one that, it is CPU.
    """

    CPU = "cpu"
    DISK = "disk"
    NEITHER = "neither"


class Holding(NamedTuple):
    """One account's part of one slot: `share` of its time in billionths, and what is used of it.

    `sm` is the SM time used, in millionths of the slot. `active` is None if it cannot be judged. `idle_cause` is None
    if it is not known, or if the holding is not idle.
    """

    account: Account
    share: int
    active: bool | None = None
    sm: int | None = None
    memory_bytes: int | None = None
    milliwatts: int | None = None
    idle_cause: IdleCause | None = None


class JobRequest(NamedTuple):
    """What a lease asked for, and how long it waited. `asked_kib` is the memory of each slot; None: not asked for."""

    waited_ms: int
    asked_kib: int | None = None


class SlotUsage(NamedTuple):
    """One slot. Without `holders_known`, the part that is not known to be held may not be free."""

    slot: Slot
    holdings: tuple[Holding, ...] = ()
    holders_known: bool = True


class UsageSample(NamedTuple):
    """Every slot that was read at one instant. Durations use the monotonic clock, dates the wall clock.

    `models` are the names of the GPUs' models, by the GPU's UUID; `requests` those of leases, by the job's name.
    """

    monotonic_ns: int
    wall_s: float
    slots: tuple[SlotUsage, ...]
    models: Mapping[str, str] = {}
    requests: Mapping[str, JobRequest] = {}


# Which owner holds which slot at an instant, through a container, pod, job or plain process.


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


class Allocation(NamedTuple):
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


class AllocationReading(NamedTuple):
    """`complete` is False while a source of holders that answered before does not answer."""

    slots: tuple[SlotInfo, ...]
    allocations: tuple[Allocation, ...]
    containers: tuple[TrackedContainer, ...] = ()
    unmanaged: tuple[UnmanagedContainer, ...] = ()
    complete: bool = True


# The state of each slot at an instant: free, held and used, held and idle, reserved, or lost.


class SlotState(StrEnum):
    """FREE: no workload holds it. HELD_IDLE: held, and no holder uses it. BUSY: held and used, or it is unknown whether
    it is used. RESERVED: a reservation is in force, and no workload holds it. LOST: its GPU no longer answers. UNKNOWN:
    no holder is known, and there may be one."""

    FREE = "free"
    HELD_IDLE = "held_idle"
    BUSY = "busy"
    RESERVED = "reserved"
    LOST = "lost"
    UNKNOWN = "unknown"


class SlotStatus(NamedTuple):
    """`why` is a sentence for LOST and UNKNOWN. `hidden_holders` counts those that the viewer may not see.

    `since_wall_s` is when it was last taken, freed or lost; None if that was before the agent started and is not known.
    `idle_s` is how long its holders have not used it, as far as the agent has seen; None unless it is HELD_IDLE.
    """

    slot: Slot
    gpu_index: int
    profile: str
    state: SlotState
    why: str = ""
    holders: tuple[Allocation, ...] = ()
    hidden_holders: int = 0
    since_wall_s: float | None = None
    idle_s: float | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None


class SlotsReading(NamedTuple):
    slots: tuple[SlotStatus, ...]
