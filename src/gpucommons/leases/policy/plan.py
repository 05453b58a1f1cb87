"""The plan: which waiting requests get slots now, and when the others are expected to. Pure.

What a user's quotas permit and how long leases usually last come first: the plan uses both.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from gpucommons.config.accounts import LeaseQuotaSettings, LeasesSettings
from gpucommons.leases.policy.values import LeasableSlot, SlotUse, UserFacts
from gpucommons.model.allocations import SlotStatus
from gpucommons.model.leases import Lease, LeaseQuotaUse, LeaseRequest, LeaseWait, Reservation, SlotBlocker, WaitCause
from gpucommons.model.names import account_name

# What the quotas of `[lease_quotas]` permit to a user. Pure.

# Parts of a GPU are sums of sevenths.
_ROUNDING = 1e-6


def find_exceeded_quota(
    quotas: Iterable[LeaseQuotaSettings], user: str, gpus: float, held: Mapping[str, float], facts: UserFacts
) -> str | None:
    """The sentence of the first quota that `gpus` more would exceed; None if none does. `held` is by user name."""
    for quota in quotas:
        users = _users(quota, user, facts)
        if users is None:
            continue
        whose = f"group {quota.group}" if quota.group else f"user {user}"
        has = sum(held.get(member, 0.0) for member in users)
        if quota.gpus and has + gpus > quota.gpus + _ROUNDING:
            return f"{whose} has {has:g} of {quota.gpus:g} GPUs"
        spent = None if facts.hours is None else sum(facts.hours.get(member, 0.0) for member in users)
        if quota.hours and spent is not None and spent >= quota.hours:
            return f"{whose} has used {spent:.1f} of {quota.hours:g} GPU-hours in 30 days"
    return None


def quota_uses(
    quotas: Iterable[LeaseQuotaSettings], user: str, held: Mapping[str, float], facts: UserFacts
) -> tuple[LeaseQuotaUse, ...]:
    """The limits of GPUs and hours that apply to a user, and what of them is used."""
    uses = []
    for quota in quotas:
        users = _users(quota, user, facts)
        if users is None or not (quota.gpus or quota.hours):
            continue
        whose = f"group {quota.group}" if quota.group else "each user" if user == "*" else f"user {user}"
        spent = None if facts.hours is None else sum(facts.hours.get(member, 0.0) for member in users)
        has = sum(held.get(member, 0.0) for member in users)
        uses.append(LeaseQuotaUse(whose, quota.gpus or None, has, quota.hours or None, spent))
    return tuple(uses)


def sm_quota(quotas: Iterable[LeaseQuotaSettings], user: str, facts: UserFacts) -> int | None:
    """The part of a GPU that a lease of this user may use under MPS, in percent; None: no limit."""
    limits = [quota.sm_percent for quota in quotas if quota.sm_percent and _users(quota, user, facts) is not None]
    return min(limits, default=None)


def _users(quota: LeaseQuotaSettings, user: str, facts: UserFacts) -> frozenset[str] | None:
    """The users who share the quota; None if it does not apply to `user`."""
    if quota.group:
        members = facts.members.get(quota.group, frozenset())
        return members if user in members else None
    return frozenset({user}) if fnmatchcase(user, quota.user) else None


# How long leases last, by the leases that ended before. Pure.

# Where no lease has ended yet.
_UNKNOWN_S: Final = 3600.0
_KEPT: Final = 200
_OF_USER: Final = 20
# The duration that three of four leases do not exceed: a later request that passes should be done in time.
_QUANTILE: Final = 0.75


class LeaseDurations:
    """The last leases that ended: user and seconds."""

    def __init__(self, ended: Iterable[tuple[str, float]] = ()) -> None:
        self._ended: deque[tuple[str, float]] = deque(ended, maxlen=_KEPT)

    def add(self, user: str, seconds: float) -> None:
        self._ended.append((user, seconds))

    def all(self) -> list[tuple[str, float]]:
        return list(self._ended)

    def expected_s(self, request: LeaseRequest) -> float:
        """Its time limit, or what the leases of its user lasted, or those of all users."""
        return _UNKNOWN_S if request.limit_s is None and not self._ended else self._estimate(request, 0.0)

    def left_s(self, lease: Lease, now_s: float) -> float:
        """A lease that has lasted longer than all before it is expected to last as long again."""
        age_s = _age_s(lease, now_s)
        return max(0.0, self._estimate(lease.request, age_s) - age_s)

    def is_left_guess(self, lease: Lease, now_s: float) -> bool:
        return self.is_guess(lease.request, _age_s(lease, now_s))

    def is_guess(self, request: LeaseRequest, age_s: float = 0.0) -> bool:
        """Whether nothing shows how long it lasts: it has no limit, and no lease has lasted for longer than it."""
        return request.limit_s is None and all(seconds <= age_s for _, seconds in self._ended)

    def _estimate(self, request: LeaseRequest, age_s: float) -> float:
        if request.limit_s is not None:
            return request.limit_s
        of_user = [seconds for user, seconds in self._ended if user == request.user][-_OF_USER:]
        for durations in (of_user, [seconds for _, seconds in self._ended]):
            longer = [seconds for seconds in durations if seconds > age_s]
            if longer:
                return _quantile(longer)
        return max(2 * age_s, _UNKNOWN_S)


def _age_s(lease: Lease, now_s: float) -> float:
    return max(0.0, now_s - lease.since_s)


def _quantile(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(_QUANTILE * len(values)))]


# The plan: which waiting requests get slots now, and when the others are expected to. Pure.
#
# Requests are taken in order: those that were passed for `pass_limit_s` first, oldest first; then by the GPUs that the
# user has, fewest first, then by age. The requests of one user keep their order. A request that cannot be served claims
# the slots that it is expected to get. A later request may take a claimed slot only if it is expected to end before the
# start that was first estimated for the claim, and before `pass_limit_s` is over.

_NEVER = math.inf
_WHOLE_PERCENT = 100


@dataclass(frozen=True, slots=True)
class LeaseBoard:
    """What a plan is made from. `settling`: slots whose last lease ended without a word, until they were read again.

    `absent`: waiting requests whose client is not connected. `eligible_s`: since when each request is the first of its
    user and within the quotas. `promised_s`: its expected start as first estimated.
    """

    slots: Mapping[str, LeasableSlot]
    leases: tuple[Lease, ...] = ()
    waiting: tuple[LeaseRequest, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    settling: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    eligible_s: Mapping[str, float] = field(default_factory=dict)
    promised_s: Mapping[str, float] = field(default_factory=dict)
    durations: LeaseDurations = field(default_factory=LeaseDurations)
    settings: LeasesSettings = field(default_factory=LeasesSettings)
    quotas: Sequence[LeaseQuotaSettings] = ()
    users: UserFacts = field(default_factory=UserFacts)


class LeasePlan(NamedTuple):
    """`grants` are new leases; `waits` are by request.

    `ready_s` is when each slot is expected to be free for a further request, where that is known.
    """

    grants: tuple[Lease, ...]
    waits: Mapping[str, LeaseWait]
    ready_s: Mapping[str, float]


class _Window(NamedTuple):
    from_s: float
    until_s: float
    uid: int


@dataclass(slots=True)
class _Seat:
    """A slot during one plan. `kept_from_s`: when the earliest claim on it starts. `is_guess`: `ready_s` is."""

    slot: LeasableSlot
    leases: list[LeaseRequest]
    ready_s: float
    settling: bool
    windows: list[_Window]
    kept_from_s: float = _NEVER
    is_guess: bool = False

    def may_join(self, request: LeaseRequest, share_limit: int) -> bool:
        """Leases under MPS are on one slot neither with other leases nor with programs that may be paused."""
        shared = all(lease.share and lease.mps == request.mps for lease in self.leases)
        if request.mps and self.slot.in_turns:
            return False
        return shared and len(self.leases) < share_limit and self.slot.use in (SlotUse.FREE, SlotUse.USED)

    def has_room(self, request: LeaseRequest, share_limit: int) -> bool:
        """Whether it can be given now, whatever is reserved or kept."""
        if self.settling or not fits(request, self.slot):
            return False
        if not request.share:
            free = self.slot.use is SlotUse.FREE and not self.slot.kept_bytes(request.id)
            return free and not self.leases and _has_free(request, self.slot)
        return self.may_join(request, share_limit) and self._has_memory(request) and self._has_threads(request)

    def _has_memory(self, request: LeaseRequest) -> bool:
        if request.memory_bytes is None:
            return True
        slot = self.slot
        promised = {lease.id: max(0, (lease.memory_bytes or 0) - slot.parked.get(lease.id, 0)) for lease in self.leases}
        if slot.total_bytes is None or request.memory_bytes > slot.total_bytes - sum(promised.values()):
            return False
        # Programs without a lease may use the slot, too; and what a lease was promised may not be in use yet. A lease
        # that uses more than it was promised does not make the room of another one smaller.
        unused = sum(max(0, amount - slot.used.get(id, 0)) for id, amount in promised.items())
        return _has_free(request, slot, unused + slot.kept_bytes(request.id))

    def _has_threads(self, request: LeaseRequest) -> bool:
        promised = sum(lease.sm_percent or 0 for lease in self.leases)
        return request.sm_percent is None or request.sm_percent + promised <= _WHOLE_PERCENT

    def after_reservations(self, request: LeaseRequest, start_s: float) -> float:
        """The first time from `start_s` on at which no other user's reservation begins before the request ends."""
        limit_s = _NEVER if request.limit_s is None else request.limit_s
        for window in self.windows:
            if window.uid != request.uid and window.until_s > start_s and start_s + limit_s > window.from_s:
                start_s = window.until_s
        return start_s


def fits(request: LeaseRequest, slot: LeasableSlot) -> bool:
    """Whether the slot is of the right kind and size. CUDA uses one MIG device at most, so several GPUs are whole.

    MPS serves whole GPUs here.
    """
    if slot.use is SlotUse.LOST or ((request.gpus > 1 or request.mps or request.whole) and slot.is_mig):
        return False
    if request.model and request.model.lower() not in slot.model.lower():
        return False
    # GPU 6 is the whole GPU, or each of its MIG devices.
    if request.slot and request.slot not in (slot.name, slot.name.partition(".")[0], slot.uuid):
        return False
    return request.memory_bytes is None or (slot.total_bytes is not None and slot.total_bytes >= request.memory_bytes)


def _has_free(request: LeaseRequest, slot: LeasableSlot, kept_bytes: int = 0) -> bool:
    if request.memory_bytes is None or slot.free_bytes is None:
        return True
    return slot.free_bytes - kept_bytes >= request.memory_bytes


def make_plan(board: LeaseBoard, now_s: float) -> LeasePlan:
    return _Planner(board, now_s).run()


class _Planner:
    def __init__(self, board: LeaseBoard, now_s: float) -> None:
        self._board, self._now_s = board, now_s
        self._seats = list(_seats(board, now_s))
        self._held: dict[int, float] = {}
        self._held_by_name: dict[str, float] = {}
        for lease in board.leases:
            self._hold(lease.request, lease.gpus)
        # When the first waiting request of a user starts: no later one of that user starts before.
        self._blocked: dict[int, float] = {}
        # The users of whose waiting requests one has a start that is a guess.
        self._guessed: set[int] = set()
        self._grants: list[Lease] = []
        self._waits: dict[str, LeaseWait] = {}

    def run(self) -> LeasePlan:
        queues: dict[int, list[LeaseRequest]] = {}
        for request in sorted(self._board.waiting, key=lambda waiting: waiting.number, reverse=True):
            queues.setdefault(request.uid, []).append(request)
        heads = [self._key(queue[-1]) for queue in queues.values()]
        heapq.heapify(heads)
        while heads:
            uid = heapq.heappop(heads)[-1]
            queue = queues[uid]
            self._serve(queue.pop())
            if queue:
                heapq.heappush(heads, self._key(queue[-1]))
        certain_s = {
            seat.slot.uuid: seat.ready_s for seat in self._seats if seat.ready_s != _NEVER and not seat.is_guess
        }
        return LeasePlan(tuple(self._grants), self._waits, certain_s)

    def _key(self, request: LeaseRequest) -> tuple[bool, float, int, int]:
        overdue = self._is_overdue(request)
        return not overdue, 0.0 if overdue else self._held.get(request.uid, 0.0), request.number, request.uid

    def _is_overdue(self, request: LeaseRequest) -> bool:
        return self._now_s >= self._pass_end_s(request)

    def _pass_end_s(self, request: LeaseRequest) -> float:
        return self._board.eligible_s.get(request.id, self._now_s) + self._board.settings.pass_limit_s

    def _serve(self, request: LeaseRequest) -> None:
        if not self._seats:
            self._wait(request, WaitCause.UNREAD)
        elif request.uid in self._blocked:
            self._claim(request, WaitCause.EARLIER)
        else:
            self._grant_or_claim(request)

    def _grant_or_claim(self, request: LeaseRequest) -> None:
        open_seats = [seat for seat in self._seats if seat.has_room(request, self._board.settings.share_limit)]
        free = [seat for seat in open_seats if self._may_take(request, seat)]
        chosen = self._best(request, free) if len(free) >= request.gpus else []
        over = self._over_quota(request, chosen)
        if over is not None:
            self._wait(request, WaitCause.QUOTA, detail=over)
            self._blocked[request.uid] = _NEVER
        elif not chosen:
            self._claim(request, self._cause(request, open_seats))
        elif request.id in self._board.absent:
            self._claim(request, WaitCause.KEPT)
        else:
            self._grant(request, chosen)

    def _may_take(self, request: LeaseRequest, seat: _Seat) -> bool:
        now_s = self._now_s
        if seat.after_reservations(request, now_s) > now_s:
            return False
        return seat.kept_from_s == _NEVER or now_s + self._board.durations.expected_s(request) <= seat.kept_from_s

    def _cause(self, request: LeaseRequest, open_seats: list[_Seat]) -> WaitCause:
        if len(open_seats) < request.gpus:
            return WaitCause.BUSY
        unreserved = [seat for seat in open_seats if seat.after_reservations(request, self._now_s) <= self._now_s]
        return WaitCause.RESERVED if len(unreserved) < request.gpus else WaitCause.KEPT

    def _best(self, request: LeaseRequest, seats: list[_Seat]) -> list[_Seat]:
        """Its own reserved slots first; then those with the fewest users; then the smallest that has the memory.

        Without a stated memory it is the largest: a whole GPU before a MIG device.
        """
        now_s = self._now_s

        def key(seat: _Seat) -> tuple[object, ...]:
            own = any(window.uid == request.uid and window.from_s <= now_s < window.until_s for window in seat.windows)
            size = seat.slot.gpus, seat.slot.total_bytes or 0
            smallest = size if request.memory_bytes is not None else (-size[0], -size[1])
            users = len(seat.leases) + (seat.slot.use is SlotUse.USED)
            return not own, users, bool(seat.windows), smallest

        return sorted(seats, key=key)[: request.gpus]

    def _over_quota(self, request: LeaseRequest, chosen: list[_Seat]) -> str | None:
        """`chosen` is empty while none is free: then the smallest slots that fit are counted."""
        if not self._board.quotas:
            return None
        parts = [seat.slot.gpus for seat in chosen]
        if not parts:
            parts = sorted(seat.slot.gpus for seat in self._seats if fits(request, seat.slot))[: request.gpus]
        held = dict(self._held_by_name)
        for user, reserved in self._unused_reservations(request, chosen).items():
            held[user] = held.get(user, 0.0) + reserved
        return find_exceeded_quota(self._board.quotas, request.user, sum(parts), held, self._board.users)

    def _unused_reservations(self, request: LeaseRequest, chosen: list[_Seat]) -> Mapping[str, float]:
        """GPUs that each user's reservations keep now, without those that the user's leases and this request use.

        While none is chosen, the request waits for as many of them as it needs.
        """
        leased = {(lease.request.uid, uuid) for lease in (*self._board.leases, *self._grants) for uuid in lease.slots}
        taken = {seat.slot.uuid for seat in chosen}
        unused: dict[str, float] = {}
        awaited = 0 if chosen else request.gpus
        for reservation in self._board.reservations:
            if not reservation.is_active(self._now_s):
                continue
            for uuid in reservation.slots:
                is_own = reservation.uid == request.uid
                if (reservation.uid, uuid) in leased or (is_own and uuid in taken):
                    continue
                if is_own and awaited:
                    awaited -= 1
                    continue
                slot = self._board.slots.get(uuid)
                unused[reservation.user] = unused.get(reservation.user, 0.0) + (1.0 if slot is None else slot.gpus)
        return unused

    def _grant(self, request: LeaseRequest, chosen: list[_Seat]) -> None:
        lease = Lease(request, tuple(seat.slot.uuid for seat in chosen), sum(s.slot.gpus for s in chosen), self._now_s)
        self._grants.append(lease)
        self._hold(request, lease.gpus)
        end_s = self._now_s + self._board.durations.expected_s(request)
        for seat in chosen:
            seat.leases.append(request)
            seat.ready_s = max(seat.ready_s, end_s)
            seat.is_guess |= self._board.durations.is_guess(request)

    def _hold(self, request: LeaseRequest, gpus: float) -> None:
        self._held[request.uid] = self._held.get(request.uid, 0.0) + gpus
        self._held_by_name[request.user] = self._held_by_name.get(request.user, 0.0) + gpus

    def _claim(self, request: LeaseRequest, cause: WaitCause) -> None:
        """Keeps the slots that are expected to be free first, from its start on."""
        share_limit = self._board.settings.share_limit
        starts = sorted(
            # Of two slots that start alike, one that is free now comes first, so that no later request takes it.
            (self._start_s(request, seat), not seat.has_room(request, share_limit), number)
            for number, seat in enumerate(self._seats)
            if fits(request, seat.slot)
        )[: request.gpus]
        if len(starts) < request.gpus:
            # Not enough GPUs work now. The request waits for one to come back, and keeps no slot meanwhile.
            self._wait(request, cause)
            self._blocked.setdefault(request.uid, _NEVER)
            return
        start_s = max(starts[-1][0], self._blocked.get(request.uid, self._now_s))
        is_known = not math.isinf(start_s)
        # The start of the user's earlier request counts as well.
        seats_are_guesses = any(self._seats[number].is_guess for *_, number in starts)
        is_guess = start_s > self._now_s and (seats_are_guesses or request.uid in self._guessed)
        for *_, number in starts:
            seat = self._seats[number]
            if is_known:
                seat.ready_s = max(seat.ready_s, start_s + self._board.durations.expected_s(request))
                seat.is_guess |= is_guess or self._board.durations.is_guess(request)
            if cause is not WaitCause.EARLIER:
                seat.kept_from_s = min(seat.kept_from_s, self._kept_from_s(request, start_s))
        self._blocked.setdefault(request.uid, start_s)
        if is_guess:
            self._guessed.add(request.uid)
        self._wait(request, cause, start_s if is_known else None, is_guess=is_guess)

    def _kept_from_s(self, request: LeaseRequest, start_s: float) -> float:
        promised_s = self._board.promised_s.get(request.id, _NEVER)
        return min(start_s, promised_s, self._pass_end_s(request))

    def _start_s(self, request: LeaseRequest, seat: _Seat) -> float:
        joins = (
            request.share and seat.has_room(request, self._board.settings.share_limit) and seat.kept_from_s == _NEVER
        )
        return seat.after_reservations(request, self._now_s if joins else seat.ready_s)

    def _wait(
        self,
        request: LeaseRequest,
        cause: WaitCause,
        start_s: float | None = None,
        detail: str = "",
        is_guess: bool = False,
    ) -> None:
        self._waits[request.id] = LeaseWait(len(self._waits) + 1, cause, start_s, detail, is_guess)


def _seats(board: LeaseBoard, now_s: float) -> Iterable[_Seat]:
    leases: dict[str, list[Lease]] = {}
    for lease in board.leases:
        for uuid in lease.slots:
            leases.setdefault(uuid, []).append(lease)
    left_s = {lease.request.id: board.durations.left_s(lease, now_s) for lease in board.leases}
    windows: dict[str, list[_Window]] = {}
    for reservation in sorted(board.reservations, key=lambda reserved: reserved.from_s):
        for uuid in reservation.slots:
            windows.setdefault(uuid, []).append(_Window(reservation.from_s, reservation.until_s, reservation.uid))
    for uuid, slot in board.slots.items():
        here = leases.get(uuid, [])
        ready_s = now_s if slot.use is SlotUse.FREE else _NEVER
        ready_s = max((ready_s, *(now_s + left_s[lease.request.id] for lease in here)))
        requests = [lease.request for lease in here]
        is_guess = any(board.durations.is_left_guess(lease, now_s) for lease in here)
        yield _Seat(slot, requests, ready_s, uuid in board.settling, windows.get(uuid, []), is_guess=is_guess)


def blockers_of(
    fitting: Mapping[str, str], statuses: Mapping[str, SlotStatus], leases: Iterable[Lease]
) -> tuple[SlotBlocker, ...]:
    """The slots that could serve a request and are held, with or without a lease: the longest idle first.

    `fitting` are the slots that fit the request, names by UUID. A lease counts from its grant on, which is before the
    next snapshot.
    """
    leased: dict[str, list[str]] = {}
    for lease in leases:
        for uuid in lease.slots:
            leased.setdefault(uuid, []).append(lease.request.user)
    blockers = []
    for uuid, name in fitting.items():
        status = statuses.get(uuid)
        holders = (
            () if status is None else tuple(account_name(holder.account) for holder in status.holders if holder.share)
        )
        users = tuple(dict.fromkeys((*holders, *leased.get(uuid, ()))))
        if users:
            blockers.append(SlotBlocker(name, users, None if status is None else status.idle_s, uuid in leased))
    return tuple(sorted(blockers, key=lambda blocker: -(blocker.idle_s or 0.0)))
