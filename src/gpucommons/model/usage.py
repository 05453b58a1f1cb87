"""What each account holds and uses of each slot at one instant. The ledger integrates it over time.

All amounts are integers, so that sums are exact. What was not read is None, never 0.
"""

from dataclasses import dataclass
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


class Holding(NamedTuple):
    """One account's part of one slot: `share` of its time in billionths, and what is used of it.

    `sm` is the SM time used, in millionths of the slot. `active` is None if it cannot be judged.
    """

    account: Account
    share: int
    active: bool | None = None
    sm: int | None = None
    memory_bytes: int | None = None
    milliwatts: int | None = None


class SlotUsage(NamedTuple):
    """One slot. Without `holders_known`, the part that is not known to be held may not be free."""

    slot: Slot
    holdings: tuple[Holding, ...] = ()
    holders_known: bool = True


@dataclass(frozen=True, slots=True)
class UsageSample:
    """Every slot that was read at one instant. Durations use the monotonic clock, dates the wall clock."""

    monotonic_ns: int
    wall_s: float
    slots: tuple[SlotUsage, ...]
