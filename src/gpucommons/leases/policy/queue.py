"""The queue of leases: which lease has which slots, which requests wait, what is reserved. Pure.

It takes events and the time. After each event the caller calls `settle`, which grants what can be granted and returns
it. Reservations come first: which slots they keep decides what is free.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from gpucommons.base.text import memory_text
from gpucommons.config.accounts import LeaseQuotaSettings, LeasesSettings
from gpucommons.leases.policy.plan import (
    LeaseBoard,
    LeaseDurations,
    find_exceeded_quota,
    fits,
    make_plan,
    quota_uses,
    sm_quota,
)
from gpucommons.leases.policy.values import LeasableSlot, LeaseRefused, SlotUse, UserFacts
from gpucommons.model.leases import Lease, LeaseQuotaUse, LeaseRequest, LeaseWait, Reservation, WaitCause

# Which slots a reservation keeps, and when it is released because it is not used. Pure.
#
# A reserved slot is not leased to other users beyond the start of the reservation. A lease that was given before the
# reservation was made may still be there at its start; the reservation then moves to a slot that is free, if any.


def assign(
    reservations: Iterable[Reservation], slots: Mapping[str, LeasableSlot], leases: Iterable[Lease]
) -> tuple[Reservation, ...]:
    """The reservations with their slots, earliest first. One has fewer slots than GPUs if not enough GPUs work."""
    on_slot: dict[str, list[Lease]] = {}
    for lease in leases:
        for uuid in lease.slots:
            on_slot.setdefault(uuid, []).append(lease)
    reservable = _reservable(slots)
    done: list[Reservation] = []
    for reservation in sorted(reservations, key=lambda reservation: (reservation.from_s, reservation.id)):
        taken = {uuid for other in done if _overlap(reservation, other) for uuid in other.slots}
        free = [uuid for uuid in reservable if uuid not in taken]
        best = sorted(free, key=lambda uuid: _rank(reservation, slots[uuid], on_slot.get(uuid, [])))
        done.append(replace(reservation, slots=tuple(sorted(best[: reservation.gpus], key=reservable.index))))
    return tuple(done)


def _reservable(slots: Mapping[str, LeasableSlot]) -> list[str]:
    """Whole GPUs; the MIG devices where there is no whole GPU."""
    working = [slot for slot in slots.values() if slot.use is not SlotUse.LOST]
    return [slot.uuid for slot in working if not slot.is_mig] or [slot.uuid for slot in working]


def _rank(reservation: Reservation, slot: LeasableSlot, leases: list[Lease]) -> tuple[bool, bool]:
    """Slots that are clear at its start first, of these the ones that it has."""
    clear = slot.use is SlotUse.FREE and all(_is_over(lease, reservation) for lease in leases)
    return not clear, slot.uuid not in reservation.slots


def _is_over(lease: Lease, reservation: Reservation) -> bool:
    limit_s = lease.request.limit_s
    own = lease.request.uid == reservation.uid
    return own or (limit_s is not None and lease.since_s + limit_s <= reservation.from_s)


def _overlap(first: Reservation, other: Reservation) -> bool:
    return first.from_s < other.until_s and other.from_s < first.until_s


def check_room(new: Reservation, others: Iterable[Reservation], slots: Mapping[str, LeasableSlot]) -> None:
    """Raises LeaseRefused if the new reservation and those of the same time need more slots than there are."""
    reservable = len(_reservable(slots))
    if new.gpus > reservable:
        raise LeaseRefused(f"{new.gpus} GPUs requested, {reservable} can be reserved on this node; request fewer")
    if any(len(reservation.slots) < reservation.gpus for reservation in assign((*others, new), slots, ())):
        raise LeaseRefused(
            f"{new.gpus} GPUs requested, fewer are left in that time: other reservations overlap; "
            "see 'gpucommons reservations', or choose another time"
        )


def mark_used(
    reservations: Iterable[Reservation], leases: Iterable[Lease], waiting: Iterable[LeaseRequest], now_s: float
) -> list[Reservation]:
    """With the time of last use: the owner has a lease on one of its slots, or waits for it.

    A waiting request uses as many reserved GPUs as it requests, of the earliest reservations first: one request cannot
    keep all of its user's reservations.
    """
    on_slots = {(lease.request.uid, uuid) for lease in leases for uuid in lease.slots}
    awaited: Counter[int] = Counter()
    for request in waiting:
        awaited[request.uid] += request.gpus
    marked = []
    for reservation in sorted(reservations, key=lambda reservation: (reservation.from_s, reservation.id)):
        if reservation.is_active(now_s):
            if any((reservation.uid, uuid) in on_slots for uuid in reservation.slots):
                reservation = replace(reservation, used_s=now_s)
            elif awaited[reservation.uid] > 0:
                awaited[reservation.uid] -= reservation.gpus
                reservation = replace(reservation, used_s=now_s)
        marked.append(reservation)
    return marked


def _reservations_at_once(
    reservations: Iterable[Reservation], from_s: float, until_s: float
) -> Iterator[Mapping[str, float]]:
    """GPUs reserved by each user, at the start of the period and whenever a reservation begins in it."""
    overlapping = [
        reservation for reservation in reservations if reservation.from_s < until_s and from_s < reservation.until_s
    ]
    for at_s in {from_s, *(reservation.from_s for reservation in overlapping if reservation.from_s > from_s)}:
        held: Counter[str] = Counter()
        for reservation in overlapping:
            if reservation.is_active(at_s):
                held[reservation.user] += reservation.gpus
        yield held


def is_no_show(reservation: Reservation, no_show_after_s: float, now_s: float) -> bool:
    last_s = reservation.from_s if reservation.used_s is None else max(reservation.from_s, reservation.used_s)
    return reservation.is_active(now_s) and now_s - last_s >= no_show_after_s


# How long the slots of a lease are held after a restart, until its client connects again; and the place in the queue.
HOLD_LEASE_S: Final = 60.0
HOLD_PLACE_S: Final = 10.0
# How long a slot whose lease ended without a word waits for the next reading, where GPUs are read seldom.
LONGEST_SETTLING_S: Final = 4.0
_MAX_RESERVATIONS_OF_USER: Final = 32
_LONGEST_RESERVATION_S: Final = 31 * 86_400.0
_NOT_ELIGIBLE: Final = (WaitCause.QUOTA, WaitCause.EARLIER)


class SettledLeases(NamedTuple):
    """What `settle` did: new leases, leases and requests of clients that did not come back, unused reservations.

    `aged`: since when a request may be served, or what it was promised, has changed.
    """

    grants: tuple[Lease, ...] = ()
    dropped: tuple[str, ...] = ()
    no_shows: tuple[Reservation, ...] = ()
    aged: bool = False


class QueueRecord(NamedTuple):
    """What survives a restart of the agent.

    `eligible_s` is since when each request may be served, and `promised_s` the start that was first estimated for it:
    without them a request would age from the restart on, and later ones could pass it again.
    """

    leases: tuple[Lease, ...] = ()
    waiting: tuple[LeaseRequest, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    ended: tuple[tuple[str, float], ...] = ()
    next_number: int = 1
    eligible_s: Mapping[str, float] = {}
    promised_s: Mapping[str, float] = {}


@dataclass(slots=True)
class _Absence:
    """Clients that were known before a restart, and until when they are waited for."""

    until_s: dict[str, float] = field(default_factory=dict)

    def find_expired(self, now_s: float) -> list[str]:
        return [id for id, until_s in self.until_s.items() if now_s >= until_s]


class LeaseQueue:
    def __init__(
        self,
        settings: LeasesSettings | None = None,
        quotas: Iterable[LeaseQuotaSettings] = (),
        record: QueueRecord | None = None,
        now_s: float = 0.0,
    ) -> None:
        record = record or QueueRecord()
        self._settings = settings or LeasesSettings()
        self._quotas = tuple(quotas)
        self._slots: Mapping[str, LeasableSlot] | None = None
        self._users = UserFacts()
        self._leases = {lease.request.id: lease for lease in record.leases}
        self._waiting = {request.id: request for request in record.waiting}
        self._reservations = {reservation.id: reservation for reservation in record.reservations}
        self._durations = LeaseDurations(record.ended)
        self._next_number = record.next_number
        self._absence = _Absence(
            dict.fromkeys(self._leases, now_s + HOLD_LEASE_S) | dict.fromkeys(self._waiting, now_s + HOLD_PLACE_S)
        )
        # Slots whose lease ended without a word, and when: they are given again once they were read after that.
        self._settling: dict[str, float] = {}
        self._eligible_s = dict(record.eligible_s)
        self._promised_s = dict(record.promised_s)
        self._waits: Mapping[str, LeaseWait] = {}
        self._ready_s: Mapping[str, float] = {}
        self._unchecked: set[str] = set()

    @property
    def slots(self) -> Mapping[str, LeasableSlot] | None:
        """None until the GPUs were read."""
        return self._slots

    @property
    def leases(self) -> Mapping[str, Lease]:
        return self._leases

    @property
    def waiting(self) -> Mapping[str, LeaseRequest]:
        return self._waiting

    @property
    def reservations(self) -> Mapping[str, Reservation]:
        return self._reservations

    @property
    def waits(self) -> Mapping[str, LeaseWait]:
        return self._waits

    @property
    def ready_s(self) -> Mapping[str, float]:
        """When each slot is expected to be free for a further request, where that is known."""
        return self._ready_s

    def quota_uses(self) -> Mapping[str, tuple[LeaseQuotaUse, ...]]:
        """By user, for all users that are known; "*" is any other user."""
        if not self._quotas:
            return {}
        held: dict[str, float] = {}
        for lease in self._leases.values():
            held[lease.request.user] = held.get(lease.request.user, 0.0) + lease.gpus
        members = {user for group in self._users.members.values() for user in group}
        users = {
            *held,
            *members,
            *(self._users.hours or ()),
            *(request.user for request in self._waiting.values()),
            "*",
        }
        by_user = {user: quota_uses(self._quotas, user, held, self._users) for user in users}
        return {user: uses for user, uses in by_user.items() if uses}

    def fitting(self, request: LeaseRequest) -> list[LeasableSlot]:
        """The slots that could serve a request: of the kind, model and size that it asks for."""
        return [slot for slot in (self._slots or {}).values() if fits(request, slot)]

    @property
    def users(self) -> UserFacts:
        return self._users

    def is_absent(self, id: str) -> bool:
        return id in self._absence.until_s

    def record(self) -> QueueRecord:
        return QueueRecord(
            tuple(self._leases.values()),
            tuple(self._waiting.values()),
            tuple(self._reservations.values()),
            tuple(self._durations.all()),
            self._next_number,
            dict(self._eligible_s),
            dict(self._promised_s),
        )

    def update_slots(self, slots: Iterable[LeasableSlot], read_s: float, users: UserFacts) -> None:
        """The slots as they were read at `read_s`."""
        self._slots = {slot.uuid: slot for slot in slots}
        self._users = users
        self._settling = {uuid: ended_s for uuid, ended_s in self._settling.items() if ended_s >= read_s}

    def forget_slots(self) -> None:
        """The driver does not answer: nothing is granted until it does."""
        self._slots = None

    def add(self, request: LeaseRequest) -> LeaseRequest:
        """Returns the request with its id. Raises LeaseRefused where it can never be granted on this node as it is."""
        sm_percent = self._sm_percent(request)
        number, self._next_number = self._next_number, self._next_number + 1
        request = replace(request, id=str(number), number=number, sm_percent=sm_percent)
        if self._slots is None:
            self._unchecked.add(request.id)
        else:
            self._check(request, self._slots)
        self._waiting[request.id] = request
        return request

    def _sm_percent(self, request: LeaseRequest) -> int | None:
        """What is requested; without a request, what the quotas permit. Raises LeaseRefused."""
        quota = sm_quota(self._quotas, request.user, self._users) if request.mps else None
        if quota is not None and request.sm_percent is not None and request.sm_percent > quota:
            raise LeaseRefused(
                f"--sm {request.sm_percent} requested, and the quota of {request.user} is {quota} % of a GPU "
                "(lease_quotas); request less, or ask the administrator"
            )
        return quota if request.sm_percent is None else request.sm_percent

    def _check(self, request: LeaseRequest, slots: Mapping[str, LeasableSlot]) -> None:
        if not slots:
            raise LeaseRefused("this node has no GPU; run the command without gpucommons run")
        if request.mps and request.gpus > 1:
            raise LeaseRefused(
                f"{request.gpus} GPUs requested with --share: under MPS (leases.mps) a command has one GPU; "
                "request one, or run it without --share"
            )
        fitting = sorted(slot.gpus for slot in slots.values() if fits(request, slot))
        if len(fitting) < request.gpus:
            raise LeaseRefused(_too_much(request, slots, len(fitting)))
        least = sum(fitting[: request.gpus])
        if (over := find_exceeded_quota(self._quotas, request.user, least, {}, self._users)) is not None:
            raise LeaseRefused(f"{request.gpus} GPUs requested, and {over}; request fewer, or ask the administrator")

    def impossible(self) -> Mapping[str, str]:
        """Waiting requests that were made before the GPUs were read and can never be granted, each with the reason."""
        unchecked, self._unchecked = self._unchecked, set()
        reasons: dict[str, str] = {}
        for id in unchecked & self._waiting.keys():
            try:
                self._check(self._waiting[id], self._slots or {})
            except LeaseRefused as refusal:
                reasons[id] = str(refusal)
        return reasons

    def resume(self, id: str) -> Lease | LeaseRequest | None:
        """The client is back. None where its lease or request is not known any more."""
        self._absence.until_s.pop(id, None)
        return self._leases.get(id) or self._waiting.get(id)

    def end(self, id: str, now_s: float, clean: bool = True) -> Lease | None:
        """The lease, or the request, is over. Without `clean` its programs may still run: its slots are read first."""
        self._absence.until_s.pop(id, None)
        self._eligible_s.pop(id, None)
        self._promised_s.pop(id, None)
        self._waiting.pop(id, None)
        lease = self._leases.pop(id, None)
        if lease is not None:
            self._durations.add(lease.request.user, max(0.0, now_s - lease.since_s))
            if not clean:
                self._settling |= dict.fromkeys(lease.slots, now_s)
        return lease

    def reserve(self, uid: int, user: str, gpus: int, from_s: float, until_s: float, now_s: float) -> Reservation:
        """Raises LeaseRefused."""
        if self._slots is None:
            raise LeaseRefused("the GPUs could not be read, so none can be reserved; try again later")
        if until_s <= max(from_s, now_s):
            raise LeaseRefused("the reservation would end before it begins; choose a later time")
        if until_s - from_s > _LONGEST_RESERVATION_S:
            raise LeaseRefused("a reservation lasts at most 31 days; choose a shorter time")
        if from_s - now_s > self._settings.reserve_ahead_d * 86_400:
            raise LeaseRefused(
                f"a reservation starts at most {self._settings.reserve_ahead_d:g} days from now "
                "(leases.reserve_ahead_d); choose an earlier time"
            )
        if sum(reservation.uid == uid for reservation in self._reservations.values()) >= _MAX_RESERVATIONS_OF_USER:
            raise LeaseRefused(f"a user may have {_MAX_RESERVATIONS_OF_USER} reservations; remove one first")
        begin_s = max(from_s, now_s)
        for held in _reservations_at_once(self._reservations.values(), begin_s, until_s):
            if (over := find_exceeded_quota(self._quotas, user, gpus, held, self._users)) is not None:
                raise LeaseRefused(
                    f"{gpus} GPUs requested, and {over}, reservations of that time included; request fewer, remove a "
                    "reservation, or ask the administrator"
                )
        number, self._next_number = self._next_number, self._next_number + 1
        new = Reservation(f"r{number}", uid, user, gpus, begin_s, until_s)
        check_room(new, self._reservations.values(), self._slots)
        self._reservations[new.id] = new
        self._assign()
        return self._reservations[new.id]

    def unreserve(self, id: str) -> Reservation | None:
        return self._reservations.pop(id, None)

    def shift(self, step_s: float) -> None:
        """The clock was set: moves what happened, so that no age changes. Reservations keep their time of day."""
        self._leases = {id: replace(lease, since_s=lease.since_s + step_s) for id, lease in self._leases.items()}
        self._waiting = {
            id: replace(request, arrived_s=request.arrived_s + step_s) for id, request in self._waiting.items()
        }
        for times in (self._settling, self._eligible_s, self._promised_s, self._absence.until_s):
            times.update({key: at_s + step_s for key, at_s in times.items()})

    def settle(self, now_s: float) -> SettledLeases:
        """Drops clients that did not come back, releases unused reservations, and grants what can be granted."""
        dropped = tuple(self._absence.find_expired(now_s))
        for id in dropped:
            self.end(id, now_s, clean=False)
        no_shows = self._settle_reservations(now_s)
        self._settling = {
            uuid: ended_s for uuid, ended_s in self._settling.items() if now_s - ended_s < LONGEST_SETTLING_S
        }
        plan = make_plan(self._board(), now_s)
        self._ready_s = plan.ready_s
        for lease in plan.grants:
            self._waiting.pop(lease.request.id)
            self._leases[lease.request.id] = lease
        before = dict(self._eligible_s), dict(self._promised_s)
        self._remember(plan.waits, now_s)
        return SettledLeases(plan.grants, dropped, no_shows, before != (self._eligible_s, self._promised_s))

    def _settle_reservations(self, now_s: float) -> tuple[Reservation, ...]:
        self._assign()
        left = [reservation for reservation in self._reservations.values() if now_s < reservation.until_s]
        # A request over its quota waits for its user's own leases, not for a reserved slot.
        waits = self._waits
        waiting = [
            request
            for id, request in self._waiting.items()
            if id not in waits or waits[id].cause is not WaitCause.QUOTA
        ]
        current = mark_used(left, self._leases.values(), waiting, now_s)
        no_shows = tuple(
            reservation for reservation in current if is_no_show(reservation, self._settings.no_show_after_s, now_s)
        )
        self._reservations = {reservation.id: reservation for reservation in current if reservation not in no_shows}
        return no_shows

    def _assign(self) -> None:
        if self._slots is not None:
            assigned = assign(self._reservations.values(), self._slots, self._leases.values())
            self._reservations = {reservation.id: reservation for reservation in assigned}

    def _board(self) -> LeaseBoard:
        return LeaseBoard(
            self._slots or {},
            tuple(self._leases.values()),
            tuple(self._waiting.values()),
            tuple(self._reservations.values()),
            frozenset(self._settling),
            frozenset(self._absence.until_s),
            self._eligible_s,
            self._promised_s,
            self._durations,
            self._settings,
            self._quotas,
            self._users,
        )

    def _remember(self, waits: Mapping[str, LeaseWait], now_s: float) -> None:
        """Since when each request may be served, and the start that was first estimated for it."""
        self._waits = waits
        for id, wait in waits.items():
            if wait.cause in _NOT_ELIGIBLE:
                self._eligible_s.pop(id, None)
                self._promised_s.pop(id, None)
            else:
                self._eligible_s.setdefault(id, now_s)
                if wait.start_s is not None:
                    self._promised_s.setdefault(id, wait.start_s)
        for id in [id for id in self._eligible_s if id not in waits]:
            self._eligible_s.pop(id)
            self._promised_s.pop(id, None)


def _too_much(request: LeaseRequest, slots: Mapping[str, LeasableSlot], fitting: int) -> str:
    lost = sum(slot.use is SlotUse.LOST for slot in slots.values())
    working = [slot for slot in slots.values() if slot.use is not SlotUse.LOST]
    whole = sum(not slot.is_mig for slot in working)
    mig = len(working) - whole
    has = f"{whole} GPU{'' if whole == 1 else 's'}"
    has += f" and {mig} MIG devices, which cannot be combined" if mig else ""
    has += f" ({lost} lost)" if lost else ""
    kind = f" of model {request.model!r}" if request.model else ""
    kind += f" named {request.slot!r}" if request.slot else ""
    names = {name for slot in slots.values() for name in (slot.uuid, slot.name, slot.name.partition(".")[0])}
    if request.slot and request.slot not in names:
        return f"this node has no GPU {request.slot!r}; see 'gpucommons gpus'"
    models = ", ".join(sorted({slot.model for slot in working if slot.model})) or "unknown models"
    if request.model and not any(request.model.lower() in slot.model.lower() for slot in working):
        return f"this node has no GPU of model {request.model!r}; it has {models}"
    if kind or request.whole:
        asked = replace(request, model="", slot="", whole=False)
        others = sum(fits(asked, slot) for slot in working)
        if others >= request.gpus or request.memory_bytes is None:
            return (
                f"{request.gpus} GPU{'' if request.gpus == 1 else 's'}{kind}{' without MIG' if request.whole else ''} "
                f"requested, this node has {has} ({models}), of which {fitting} fit; see 'gpucommons gpus'"
            )
    if request.memory_bytes is None or fitting == len(working):
        return f"{request.gpus} GPUs requested, this node has {has}; request fewer"
    memory = memory_text(request.memory_bytes)
    largest = max((slot.total_bytes or 0 for slot in working), default=0)
    return (
        f"{request.gpus} GPU{'' if request.gpus == 1 else 's'} with {memory} of memory requested, {fitting} of this "
        f"node {'has' if fitting == 1 else 'have'} that much, the largest has "
        f"{memory_text(largest, request.memory_bytes)}; request less"
    )
