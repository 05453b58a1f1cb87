"""Leases at an instant: which command has which slots, which requests wait and why, what is reserved.

MPS daemons of leases are part of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from gpucommons.model.process_identity import ProcessKey


class MpsDaemonReading(NamedTuple):
    """`user` is empty for a daemon that serves all users. `stage` is starting, running, stopping or broken.

    `reason` is why it is broken. `gpu` is the name of the slot.
    """

    user: str
    gpu_uuid: str
    gpu: str
    stage: str
    since_wall_s: float
    reason: str = ""


class MpsEvent(NamedTuple):
    """`kind` is started, stopped, failed, died or log. `sentence` is one printable line."""

    id: str
    kind: str
    wall_s: float
    user: str
    gpu_uuid: str
    gpu: str
    sentence: str


@dataclass(frozen=True, slots=True)
class MpsReading:
    """`unavailable` is why MPS cannot be used, empty where it can. `events` are the latest, in order.

    `starts`, `failures` and `deaths` are counted since the agent started.
    """

    mode: str
    unavailable: str = ""
    daemons: tuple[MpsDaemonReading, ...] = ()
    events: tuple[MpsEvent, ...] = ()
    starts: int = 0
    failures: int = 0
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """`limit_s` is the time after which its command is ended; None: no limit.

    `mps` is per_user or all_users if its command runs under MPS, by which daemon; empty: without MPS. `sm_percent` is
    the most of the GPU's threads that it may use; None: all. `sharing_class` is that of its programs where the GPU is
    shared; empty: not given. The queue sets `id`, and `number`, which orders requests
    by arrival.
    """

    uid: int
    user: str
    arrived_s: float
    gpus: int = 1
    memory_bytes: int | None = None
    share: bool = False
    limit_s: float | None = None
    name: str = ""
    mps: str = ""
    sm_percent: int | None = None
    id: str = ""
    number: int = 0
    sharing_class: str = ""


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
    """`position` is 1 for the request that comes next. `start_s` is the start that the queue plans with; None: never.

    `is_guess`: a lease ahead has no time limit, and no lease has ended yet that shows how long it may last. `room_s` is
    when parking is expected to have made room; None: it does not, or that is not known.
    """

    position: int
    cause: WaitCause
    start_s: float | None = None
    detail: str = ""
    is_guess: bool = False
    room_s: float | None = None

    @property
    def expected_start_s(self) -> float | None:
        """None: not known."""
        known = [at_s for at_s in (None if self.is_guess else self.start_s, self.room_s) if at_s is not None]
        return min(known, default=None)

    @property
    def sentence(self) -> str:
        return f"{CAUSES[self.cause]}: {self.detail}" if self.detail else CAUSES[self.cause]


class Trespasser(NamedTuple):
    """A process on an exclusively leased slot that belongs neither to the lease's user nor to its command.

    `paused`: it is paused until the lease ends. `spared` is why it is not, or why it was not ended, where that was to
    be done. `overdue`: it is left from a lease that is over its time limit; `lease_id` is that lease, unless another
    one has the slot now.
    """

    lease_id: str
    slot: str
    pid: int
    key: ProcessKey | None
    user: str
    process_name: str
    paused: bool = False
    spared: str = ""
    overdue: bool = False


@dataclass(frozen=True, slots=True)
class LeaseCounters:
    """Counted since the agent started. `lost`: the client went away without ending its lease or its request.

    `expired`: the client did not end its lease at its time limit.
    """

    granted: int = 0
    ended: int = 0
    lost: int = 0
    cancelled: int = 0
    refused: int = 0
    no_shows: int = 0
    expired: int = 0
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LeasesReading:
    """`off_reason` is why no lease is given, empty where leases are given. `slots` are names by UUID.

    `waiting` is in the order in which the requests are served. `no_shows` are the last reservations that were released
    because they were not used. `recorded`: the record, which outlives the agent, can be written. `clients` are the
    processes that have leases, by the lease's id: the command descends from its client. `mps` is None where leases do
    not use MPS.
    """

    off_reason: str = ""
    slots: Mapping[str, str] = field(default_factory=dict)
    leases: tuple[Lease, ...] = ()
    waiting: tuple[tuple[LeaseRequest, LeaseWait], ...] = ()
    reservations: tuple[Reservation, ...] = ()
    trespassers: tuple[Trespasser, ...] = ()
    no_shows: tuple[Reservation, ...] = ()
    counters: LeaseCounters = field(default_factory=LeaseCounters)
    recorded: bool = True
    clients: Mapping[str, ProcessKey] = field(default_factory=dict)
    mps: MpsReading | None = None


@dataclass(frozen=True, slots=True)
class TrespassReport:
    """The leases whose GPUs each process uses without a lease, as of `as_of_s` of the monotonic clock."""

    leases: Mapping[ProcessKey, frozenset[str]] = field(default_factory=dict)
    as_of_s: float = 0.0
