"""The values of the lease policy: slots, requests, leases, reservations and the terms of the node. Pure.

Times are seconds of one clock that the caller chooses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class SlotUse(StrEnum):
    """How a slot is used outside of leases.

    USED: by programs that were not allocated it; a request that accepts to share may join them. ALLOCATED: by DS01,
    Kubernetes or Slurm. LOST: the GPU does not answer.
    """

    FREE = "free"
    USED = "used"
    ALLOCATED = "allocated"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class LeasableSlot:
    """A whole GPU or a MIG device as the last snapshot shows it. `gpus` is its part of a GPU, 1 for a whole one."""

    uuid: str
    name: str
    use: SlotUse = SlotUse.FREE
    gpus: float = 1.0
    is_mig: bool = False
    total_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """`limit_s` is the time after which its command is ended; None: no limit. `number` orders requests by arrival."""

    id: str
    uid: int
    user: str
    number: int
    arrived_s: float
    gpus: int = 1
    memory_bytes: int | None = None
    share: bool = False
    limit_s: float | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """`gpus` is the sum of its slots' parts of a GPU."""

    request: LeaseRequest
    slots: tuple[str, ...]
    gpus: float
    since_s: float


@dataclass(frozen=True, slots=True)
class Reservation:
    """`used_s` is when its owner last had a lease on one of its slots; None: never."""

    id: str
    uid: int
    user: str
    gpus: int
    from_s: float
    until_s: float
    slots: tuple[str, ...] = ()
    used_s: float | None = None

    def is_active(self, now_s: float) -> bool:
        return self.from_s <= now_s < self.until_s


class WaitCause(StrEnum):
    """Why a request waits. EARLIER: an earlier request of the same user waits."""

    BUSY = "busy"
    KEPT = "kept"
    RESERVED = "reserved"
    QUOTA = "quota"
    EARLIER = "earlier"
    UNREAD = "unread"


CAUSES: Mapping[WaitCause, str] = {
    WaitCause.BUSY: "every GPU that fits is in use",
    WaitCause.KEPT: "the free GPUs are kept for requests that come first",
    WaitCause.RESERVED: "the free GPUs are reserved; a request with a time limit (--for) may use them until then",
    WaitCause.QUOTA: "the quota is used up",
    WaitCause.EARLIER: "an earlier request of the same user comes first",
    WaitCause.UNREAD: "the GPUs could not be read",
}


@dataclass(frozen=True, slots=True)
class LeaseWait:
    """`position` is 1 for the request that comes next. `start_s` is the expected start; None: unknown."""

    position: int
    cause: WaitCause
    start_s: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LeaseQuota:
    """What a user, or the members of a group together, may have. `user` "*" is each user. None: no limit.

    `hours` are the GPU-hours of the last 30 days.
    """

    user: str = ""
    group: str = ""
    gpus: float | None = None
    hours: float | None = None


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """`pass_limit_s`: the longest time in which later requests may take slots that a request could use."""

    pass_limit_s: float = 3600.0
    share_limit: int = 4
    no_show_after_s: float = 1800.0
    reserve_ahead_s: float = 14 * 86_400.0
    quotas: tuple[LeaseQuota, ...] = ()


@dataclass(frozen=True, slots=True)
class UserFacts:
    """Members of each group, and the GPU-hours of each user in the last 30 days; None: not known."""

    members: Mapping[str, frozenset[str]] = field(default_factory=dict)
    hours: Mapping[str, float] | None = None


class LeaseRefused(Exception):
    """A request that cannot be carried out. One line: what was requested, why not, and what to do."""
