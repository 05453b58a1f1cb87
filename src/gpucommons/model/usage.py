"""What each account holds and uses of each GPU at one instant: what the ledger integrates over time.

Whole numbers throughout, so that sums are exact. What was not read is None, never 0.
"""

from dataclasses import dataclass
from typing import NamedTuple

WHOLE_SHARE = 1_000_000_000
WHOLE_SM = 1_000_000


class Account(NamedTuple):
    """Who is billed. `kind`, `owner` and `namespace` name the counters; the rest are ways to add them up.

    `id` is what stays when the owner is renamed: a uid, a pod's UID. A text that is empty does not apply: a
    bare process has no pod, a pod no user.
    """

    kind: str
    owner: str
    namespace: str = ""
    id: str = ""
    user: str = ""
    group: str = ""
    pod: str = ""
    job: str = ""


# Whatever is on a GPU without an owner holds it all the same: it must not look free.
UNATTRIBUTED = Account("none", "unattributed")


class Slot(NamedTuple):
    """What can be held: a whole GPU ("1") or one MIG device of it ("1.0").

    It is `slices` of the GPU's `of` compute slices: 1 of 1 for a whole GPU, None where nobody tells.
    """

    uuid: str
    gpu_uuid: str
    name: str
    slices: int | None = 1
    of: int = 1


class Holding(NamedTuple):
    """One account's part of one slot: `share` of its time in billionths, and what it does with it.

    `sm` is the slot's SM time that it uses, in millionths of the slot. `active` is None where no
    reading tells whether it works.
    """

    account: Account
    share: int
    active: bool | None = None
    sm: int | None = None
    memory_bytes: int | None = None
    milliwatts: int | None = None


class SlotUsage(NamedTuple):
    """One slot. Where not all who may hold it could be asked, what nobody holds is not known to be free."""

    slot: Slot
    holdings: tuple[Holding, ...] = ()
    holders_known: bool = True


@dataclass(frozen=True, slots=True)
class UsageSample:
    """Every slot that was read at one instant. Durations come of the monotonic clock, dates of the wall's."""

    monotonic_ns: int
    wall_s: float
    slots: tuple[SlotUsage, ...]
