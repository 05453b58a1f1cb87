"""Leases at an instant: which command has which slots, which requests wait and why, what is reserved.

MPS daemons of leases are part of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gpucommons.base.periods import spoken_duration
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


class MpsReading(NamedTuple):
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
    shared; empty: not given. The queue sets `id`, and `number`, which orders requests by arrival. `model` is a part of
    the GPU's product name, `slot` the name or UUID of the GPU or MIG device that is asked for; empty: any. `whole`: no
    MIG device. `name` is what its user calls it, for its user and administrators alone; `program` is the program of its
    command, as `ps` shows it to every user.
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
    model: str = ""
    slot: str = ""
    whole: bool = False
    program: str = ""


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


class SlotBlocker(NamedTuple):
    """A slot that could serve a request, and is held. `users` are its holders; empty where they are hidden.

    `idle_s` is how long none of them has used it; None: it is used, or that is not known. `leased`: one has a lease.
    """

    slot: str
    users: tuple[str, ...]
    idle_s: float | None = None
    leased: bool = False

    @property
    def sentence(self) -> str:
        """`GPU 3 is held by emeka, idle for 2 min`."""
        more = f" and {len(self.users) - 1} more" if len(self.users) > 1 else ""
        holder = f"{self.users[0]}{more}" if self.users else "another user"
        idle = "" if self.idle_s is None else f", idle for {spoken_duration(self.idle_s)}"
        return f"GPU {self.slot} is held by {holder}{idle}"


class LeaseWait(NamedTuple):
    """`position` is 1 for the request that comes next. `start_s` is the start that the queue plans with; None: never.

    `is_guess`: a lease ahead has no time limit, and no lease has ended yet that shows how long it may last. `room_s` is
    when parking is expected to have made room; None: it does not, or that is not known. `blockers` are the slots that
    could serve the request and are held, the longest idle first.
    """

    position: int
    cause: WaitCause
    start_s: float | None = None
    detail: str = ""
    is_guess: bool = False
    room_s: float | None = None
    blockers: tuple[SlotBlocker, ...] = ()

    @property
    def expected_start_s(self) -> float | None:
        """None: not known."""
        starts_s = [at_s for at_s in (None if self.is_guess else self.start_s, self.room_s) if at_s is not None]
        return min(starts_s, default=None)

    @property
    def sentence(self) -> str:
        """Why it waits. Where GPUs are in use: which one, held by whom, and for how long it has been idle."""
        if self.cause is WaitCause.BUSY and self.blockers:
            first, *others = self.blockers
            more = f"; {len(others)} more that fit {'is' if len(others) == 1 else 'are'} in use" if others else ""
            return f"{first.sentence}{more}"
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


class LeaseCounters(NamedTuple):
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


class LeaseQuotaUse(NamedTuple):
    """What a user, or a group of users together, may have, and has. None: no limit; for `used_hours`, not known."""

    whose: str
    gpus: float | None
    held_gpus: float
    hours: float | None
    used_hours: float | None

    @property
    def sentence(self) -> str:
        """`user emeka: 1 of 2 GPUs; 12.5 of 100 GPU-hours in 30 days`."""
        parts = [] if self.gpus is None else [f"{self.held_gpus:g} of {self.gpus:g} GPUs"]
        if self.hours is not None:
            used = "?" if self.used_hours is None else f"{self.used_hours:.1f}"
            parts.append(f"{used} of {self.hours:g} GPU-hours in 30 days")
        return f"{self.whose}: {'; '.join(parts)}"


class LeasesReading(NamedTuple):
    """`off_reason` is why no lease is given, empty where leases are given. `slots` are names by UUID.

    `waiting` is in the order in which the requests are served. `no_shows` are the last reservations that were released
    because they were not used. `recorded`: the record, which outlives the agent, can be written. `clients` are the
    processes that have leases, by the lease's id: the command descends from its client. `mps` is None where leases do
    not use MPS. `ready_s` is when each slot is expected to be free for a further request, by UUID, where that is known.
    `held_reservations` are those in force of which other users still hold slots. `quotas` are those of leases, by user;
    "*" is any other user.
    """

    off_reason: str = ""
    slots: Mapping[str, str] = {}
    leases: tuple[Lease, ...] = ()
    waiting: tuple[tuple[LeaseRequest, LeaseWait], ...] = ()
    reservations: tuple[Reservation, ...] = ()
    trespassers: tuple[Trespasser, ...] = ()
    no_shows: tuple[Reservation, ...] = ()
    counters: LeaseCounters = LeaseCounters()
    recorded: bool = True
    clients: Mapping[str, ProcessKey] = {}
    mps: MpsReading | None = None
    ready_s: Mapping[str, float] = {}
    held_reservations: Mapping[str, tuple[SlotBlocker, ...]] = {}
    quotas: Mapping[str, tuple[LeaseQuotaUse, ...]] = {}


class TrespassReport(NamedTuple):
    """The leases whose GPUs each process uses without a lease, as of `as_of_s` of the monotonic clock."""

    leases: Mapping[ProcessKey, frozenset[str]] = {}
    as_of_s: float = 0.0
