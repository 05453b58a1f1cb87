"""What each account holds and uses of each slot at one instant. The ledger integrates it over time.

All amounts are integers, so that sums are exact. What was not read is None, never 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

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


@dataclass(frozen=True, slots=True)
class UsageSample:
    """Every slot that was read at one instant. Durations use the monotonic clock, dates the wall clock.

    `models` are the names of the GPUs' models, by the GPU's UUID; `requests` those of leases, by the job's name.
    """

    monotonic_ns: int
    wall_s: float
    slots: tuple[SlotUsage, ...]
    models: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, JobRequest] = field(default_factory=dict)
