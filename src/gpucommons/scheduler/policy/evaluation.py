"""The rules, applied to one GPU after every event (numbers and order: the package's docstring).

The verdicts come first: which clients may run, what is in the way, how long a turn lasts.
"""

from collections.abc import Hashable, Iterable
from itertools import islice
from typing import Final, NamedTuple

from gpucommons.model.sharing import WaitReason
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.corun.coruns import SETTLE_S, PhaseCause, Way
from gpucommons.scheduler.policy.attained import (
    claim_room,
    inherit,
    owe_turn,
    own_service_s,
    promise_room,
    promised_s,
    service_s,
)
from gpucommons.scheduler.policy.core_limits import CoreQuotas
from gpucommons.scheduler.policy.phasing import Phasing
from gpucommons.scheduler.policy.quota_bucket import EPSILON_S
from gpucommons.scheduler.policy.state import (
    DROP_RESEND_S,
    GIB,
    NEVER,
    Action,
    Client,
    ClientStanding,
    Disconnect,
    DropReason,
    GpuQueue,
    Send,
    Terms,
)
from gpucommons.scheduler.policy.transitions import Grants, Transitions
from gpucommons.scheduler.protocol.wire import MessageType

# The recent revocations of each process, so that a client cannot end its record by connecting again. Pure.

# How long a revocation is remembered.
REMEMBERED_S: Final = 600.0
_MAX_PROCESSES: Final = 10_000


class Revocations:
    """By process, or by client where the process is not known."""

    def __init__(self) -> None:
        # The times of the revocations. In the order of the latest one: the first entry expires first.
        self._times: dict[Hashable, list[float]] = {}

    def add(self, key: Hashable, now: float) -> int:
        """Records a revocation; returns how many are remembered of this key."""
        recent = [*self._recent(key, now), now]
        self._times.pop(key, None)
        self._times[key] = recent
        while len(self._times) > _MAX_PROCESSES or self._times[next(iter(self._times))][-1] < now - REMEMBERED_S:
            del self._times[next(iter(self._times))]
        return len(recent)

    def count(self, key: Hashable, now: float) -> int:
        return len(self._recent(key, now))

    def _recent(self, key: Hashable, now: float) -> list[float]:
        return [time_s for time_s in self._times.get(key, ()) if time_s >= now - REMEMBERED_S]


# Verdicts on one GPU's clients: which may run, what is in the way, how long a turn lasts. They change nothing.

BACKGROUND: Final = SharingClass.BACKGROUND
TURN, MEMORY, DEMAND, SOLO = WaitReason.TURN, WaitReason.MEMORY, WaitReason.DEMAND, WaitReason.SOLO
# Overload ends, and a client dropped by it may join others again, only this far below the safe limit.
REFIT_RATIO: Final = 0.9
# Where memory is switched, phases are too short for a trial: clients whose activities sum to at most this run together.
# On an H200, pairs at 0.71 gain a fifth, and pairs at 1.15 nothing.
_LIGHT_SM: Final = 0.75
_LIGHT_UTILISATION: Final = 1.0
# How many waiting clients are checked for one that fits: bounds the work of one message.
_BYPASS_WINDOW: Final = 64


def wait_reason(terms: Terms, client: Client, now: float) -> WaitReason | None:
    """Why a client waits; None if it does not wait, or is about to run."""
    if client.standing is ClientStanding.THROTTLED:
        return WaitReason.QUOTA
    return find_wait_reason(terms, client.gpu, client, now) if client.standing is ClientStanding.WAITING else None


def find_wait_reason(terms: Terms, gpu: GpuQueue, client: Client, now: float) -> WaitReason | None:
    """Why this client may not run now, its core quota aside; None: it may."""
    if gpu.phases.current is not None:
        if client.sharing_class is BACKGROUND and not all(_is_background(gpu, id) for id in gpu.phases.current.clients):
            return WaitReason.BACKGROUND
        if gpu.phases.current.way is Way.MEASURING:
            return SOLO
        return WaitReason.FAIRNESS if gpu.phases.current.cause is PhaseCause.FAIRNESS else DEMAND
    if client.is_program:
        # Its memory stays where it is: only phases stop it.
        return None
    if len(gpu.turns.running) == gpu.turns.programs:
        return MEMORY if is_blocked_by_revoked(gpu, client) else None
    if terms.serial or (terms.v1_alone and (gpu.memory.running_blind or client.memory.blind)):
        return TURN
    needed = gpu.memory.running_bytes + gpu.memory.held_bytes + client.memory.need_bytes
    if gpu.memory.overloaded or needed > room_bytes(gpu, client):
        return MEMORY
    return _find_activity_reason(gpu, client) if has_activity(terms, gpu, now) else None


def has_activity(terms: Terms, gpu: GpuQueue, now: float) -> bool:
    """Whether mode auto has measurements to decide by."""
    return terms.auto and (gpu.phases.metered or now < gpu.phases.busy_until_s)


def _is_background(gpu: GpuQueue, id: int) -> bool:
    return id in gpu.clients and gpu.clients[id].sharing_class is BACKGROUND


def _find_activity_reason(gpu: GpuQueue, client: Client) -> WaitReason | None:
    total = 0.0
    for competitor in (client, *_switched_clients(gpu)):
        activity = gpu.phases.coruns.solo_activity(competitor.id)
        if activity is None:
            return SOLO
        total += activity.sm
    return DEMAND if total > _light(gpu) else None


def _light(gpu: GpuQueue) -> float:
    return _LIGHT_SM if gpu.phases.metered else _LIGHT_UTILISATION


def _switched_clients(gpu: GpuQueue) -> list[Client]:
    """The running clients whose memory may have to make room: not the programs."""
    return [client for client in gpu.turns.running.values() if not client.is_program]


def is_exclusive(terms: Terms, gpu: GpuQueue) -> bool:
    """Whether the running clients exclude every other client."""
    if terms.serial:
        return bool(gpu.turns.running)
    return terms.v1_alone and gpu.memory.running_blind > 0


def is_blocked_by_revoked(gpu: GpuQueue, client: Client) -> bool:
    """Whether the client could not even run alone, because of the memory that revoked clients hold."""
    return (
        gpu.memory.held_bytes > 0 and gpu.memory.held_bytes + client.memory.need_bytes > gpu.memory.client_limit_bytes
    )


def room_bytes(gpu: GpuQueue, client: Client) -> float:
    return gpu.memory.client_limit_bytes * REFIT_RATIO if client.memory.must_refit else gpu.memory.client_limit_bytes


class QueueScan(NamedTuple):
    """The first client that the running ones block, why they do, and the first client that may run: if it passes the
    other, until `guest_until_s`."""

    front: Client | None
    reason: WaitReason
    fitting: Client | None
    guest_until_s: float | None = None


def scan_queue(terms: Terms, gpu: GpuQueue, now: float) -> QueueScan:
    front: Client | None = None
    reason = TURN
    room: _Reservation | None = None
    for client in islice(gpu.order.in_order(), _BYPASS_WINDOW):
        blocked_by = find_wait_reason(terms, gpu, client, now)
        if blocked_by is None:
            if room is None:
                return QueueScan(front, reason, client)
            until_s = room.admits(client, now)
            if until_s is not None:
                return QueueScan(front, reason, client, until_s)
        elif front is None and not is_blocked_by_revoked(gpu, client):
            front, reason = client, blocked_by
            if is_exclusive(terms, gpu) or is_closed(terms, gpu, front, now):
                break
            room = _Reservation(terms, gpu, front, reason, now)
    return QueueScan(front, reason, None)


def is_closed(terms: Terms, gpu: GpuQueue, front: Client, now: float) -> bool:
    """Whether no client may pass `front`: a client was just dropped for it, or it has waited for too long."""
    if any(
        client.turn.drop_s is not None and now - client.turn.drop_s < DROP_RESEND_S
        for client in gpu.turns.draining.values()
    ):
        return True
    limit_s = terms.settings.max_bypass_s
    return limit_s > 0 and now - front.turn.eligible_s >= limit_s


class _Reservation:
    """The room of `front`, from the time when it is due. A client that passes `front` does not delay it."""

    def __init__(self, terms: Terms, gpu: GpuQueue, front: Client, reason: WaitReason, now: float) -> None:
        self._terms = terms
        self._gpu = gpu
        self._front = front
        self._reason = reason
        leaving = in_the_way(terms, gpu, front, reason, now)
        self._due_s = room_due_s(terms, leaving, front, reason, now) if leaving else NEVER
        self._remaining = [c for c in _switched_clients(gpu) if c.turn.drop_s is None and c not in leaving]
        self._by_activity = has_activity(terms, gpu, now)

    def admits(self, client: Client, now: float) -> float | None:
        """Until when the client may run: NEVER if it fits next to `front`, None if it may not."""
        if self._reason is not TURN and self._reason is not SOLO and self._fits_with_front(client):
            return NEVER
        own_s = quantum_s(self._terms, client, client, MEMORY)
        if self._due_s == NEVER:
            # What is in the way was dropped, and does not stop.
            return now + own_s
        return self._due_s if self._due_s - now >= own_s else None

    def _fits_with_front(self, client: Client) -> bool:
        gpu, together = self._gpu, (client, self._front, *self._remaining)
        if self._by_activity and any(gpu.phases.coruns.solo_activity(member.id) is None for member in together):
            return False
        room = min(room_bytes(gpu, client), room_bytes(gpu, self._front))
        if gpu.memory.held_bytes + sum(member.memory.need_bytes for member in together) > room:
            return False
        return not self._by_activity or sum(_solo_sm(gpu, member) for member in together) <= _light(gpu)


def in_the_way(terms: Terms, gpu: GpuQueue, front: Client, reason: WaitReason, now: float) -> list[Client]:
    """The turns that must end before `front` fits, without those that were dropped already: of the owners that have had
    most. If its own owner has a turn, that one ends before the turns of other owners.

    It fits by memory and by activity, whichever of them is `reason`: what is left must not block it for the other.
    """
    staying = [client for client in _switched_clients(gpu) if client.turn.drop_s is None]
    staying.sort(
        key=lambda client: (
            client.service.line is not front.service.line,
            -service_s(client.service.line, now),
            -own_service_s(client, now),
        )
    )
    by_activity = has_activity(terms, gpu, now)
    unknown = any(gpu.phases.coruns.solo_activity(client.id) is None for client in (front, *staying))
    if reason is TURN or (by_activity and unknown):
        return staying
    need = front.memory.need_bytes + gpu.memory.held_bytes + sum(client.memory.need_bytes for client in staying)
    busy = _solo_sm(gpu, front) + sum(_solo_sm(gpu, client) for client in staying)
    room = room_bytes(gpu, front)
    most_busy = _light(gpu) if by_activity else NEVER
    leaving: list[Client] = []
    for client in staying:
        if need <= room and busy <= most_busy:
            break
        leaving.append(client)
        need -= client.memory.need_bytes
        busy -= _solo_sm(gpu, client)
    # The last one may have made so much room that an earlier one need not leave.
    for client in leaving[-2::-1]:
        if need + client.memory.need_bytes <= room and busy + _solo_sm(gpu, client) <= most_busy:
            leaving.remove(client)
            need += client.memory.need_bytes
            busy += _solo_sm(gpu, client)
    return leaving


def room_due_s(terms: Terms, leaving: list[Client], front: Client, reason: WaitReason, now: float) -> float:
    """When the turns that are in the way of `front` have lasted long enough to be ended, all at once. Turns that began
    after it became the front do not put that off, and guests leave when the others do."""
    owed = [client for client in leaving if client.service.guest_until_s is None]
    lasted_s = max((_turn_due_s(terms, client, front, reason, now) for client in owed), default=now)
    guests_s = [until_s for client in leaving if (until_s := client.service.guest_until_s) is not None]
    if front.gpu.turns.draining and guests_s:
        # They use the time until a client that was dropped stops.
        return max(lasted_s, *guests_s)
    return min(promised_s(front.gpu, front), lasted_s)


def _turn_due_s(terms: Terms, holder: Client, front: Client, reason: WaitReason, now: float) -> float:
    """A turn lasts a quantum, and until its client has had as much as `front`."""
    behind_s = 0.0
    if holder.service.line is front.service.line:
        behind_s = front.service.served_s - own_service_s(holder, now)
    elif not front.service.line.has_anchor:
        behind_s = front.service.line.served_s - service_s(holder.service.line, now)
    due_s = holder.turn.begun_s + quantum_s(terms, holder, front, reason)
    return max(due_s, now + behind_s) if behind_s > 0.0 else due_s


def _solo_sm(gpu: GpuQueue, client: Client) -> float:
    activity = gpu.phases.coruns.solo_activity(client.id)
    return 0.0 if activity is None else activity.sm


def quantum_s(terms: Terms, holder: Client, front: Client, reason: WaitReason) -> float:
    """How long the turn of `holder` lasts while `front` waits for its room."""
    settings = terms.settings
    if terms.operator_quantum_s is not None:
        return terms.operator_quantum_s
    if front.gpu.phases.current is not None:
        return settings.turn_quantum_s
    if reason is DEMAND or reason is SOLO:
        # Turns that end in a switch of memory are long. If the others were short, their clients would get next to
        # nothing: all turns are long.
        front = front.gpu.biggest_waiter or front
    if terms.fixed_switch_time:
        return settings.switch_time_fixed_s
    moved_gib = max(_moved_bytes(holder), _moved_bytes(front)) / GIB
    return min(max(settings.switch_time_multiplier * moved_gib, terms.SWITCH_TIME_MIN_S), terms.SWITCH_TIME_MAX_S)


def _moved_bytes(client: Client) -> int:
    """What a switch moves of a client's memory: its claim, as far as NVML has seen the process use it. Where NVML
    shows neither the process nor the device, at most the memory that is assumed for the device."""
    gpu, seen_bytes = client.gpu, client.memory.peak_nvml_bytes
    return min(client.memory.used_bytes, seen_bytes if seen_bytes or gpu.memory.total_known else gpu.memory.total_bytes)


def biggest_waiter(gpu: GpuQueue) -> Client:
    return max(islice(gpu.order.in_order(), _BYPASS_WINDOW), key=_moved_bytes)


def next_client(terms: Terms, gpu: GpuQueue) -> Client | None:
    """The client that runs when the running one releases, where that is certain: turns are exclusive, and no quota,
    drain or measurement matters."""
    if (
        not gpu.fast_path
        or len(gpu.turns.running) != 1
        or gpu.order.anchor is None
        or gpu.order.anchor.id not in gpu.turns.running
    ):
        return None
    return following_client(terms, gpu)


def following_client(terms: Terms, gpu: GpuQueue) -> Client | None:
    """`next_client` after a hand-over: only who waits has changed."""
    first = gpu.order.first_waiting()
    if first is None or first.turn.wait_for_mem_sent or first is gpu.order.claim:
        return None
    if not (terms.serial or (terms.v1_alone and first.memory.blind)):
        return None
    return first


# The rules, applied to one GPU after every event (numbers and order: the package's docstring).

DROP_LOCK = MessageType.DROP_LOCK
# A long turn is measured over this time, once it has settled.
_TURN_MEASURE_S: Final = 0.6


class Evaluation:
    def __init__(self, terms: Terms, quotas: CoreQuotas, transitions: Transitions, revocations: Revocations) -> None:
        self._terms = terms
        self._settings = terms.settings
        self._quotas = quotas
        self._transitions = transitions
        self._revocations = revocations
        self._grants = Grants(quotas, transitions)
        self.phasing = Phasing(terms, self._grants)

    def advance(self, gpus: Iterable[GpuQueue], now: float) -> list[Action]:
        """Evaluates these GPUs at `now`."""
        actions: list[Action] = []
        for gpu in gpus:
            gpu.turns.clock.advance(now)
            self.evaluate(gpu, now, actions)
        return actions

    def evaluate(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        """Applies every rule to one GPU. Its turn clock must have been advanced to `now`."""
        if gpu.turns.draining:
            self._resend_drops(gpu, now, actions)
        if gpu.memory.running_bytes > gpu.memory.client_limit_bytes or gpu.memory.overloaded:
            self._check_overload(gpu, now, actions)
        if gpu.turns.throttled and now >= gpu.limits.refill_s - EPSILON_S:
            self._refill(gpu, now)
        if gpu.limits.running:
            self._check_quotas(gpu, now, actions)
        deadline = NEVER
        knows_activity = has_activity(self._terms, gpu, now)
        if knows_activity and not gpu.turns.hung and self.phasing.applies(gpu, now):
            deadline = self.phasing.run(gpu, now, actions)
        else:
            if gpu.phases.current is not None:
                self.phasing.leave(gpu, now)
            if gpu.order.waiting:
                deadline = self._serve(gpu, now, actions)
        if not gpu.order.waiting and gpu.turns.throttled and not gpu.turns.running and self._settings.work_conserving:
            self._lend(gpu, now, actions)
        if gpu.turns.draining:
            deadline = min(deadline, self._resend_due_s(gpu, now))
        if gpu.limits.clients:
            deadline = min(deadline, self._quotas.due(gpu, now))
        gpu.deadline_s = deadline
        gpu.fast_path = not (
            gpu.turns.draining
            or gpu.limits.clients
            or gpu.turns.revoked
            or gpu.programs
            or gpu.memory.overloaded
            or knows_activity
        )
        gpu.next_client = next_client(self._terms, gpu)

    def becomes_first(self, gpu: GpuQueue, now: float) -> bool:
        """The next client after an exclusive turn: sets when that may have to end. False if it may already."""
        due_s = next(iter(gpu.turns.running.values())).turn.begun_s + self._terms.shortest_quantum_s
        if due_s <= now:
            return False
        gpu.deadline_s = min(gpu.deadline_s, due_s)
        gpu.next_client = next_client(self._terms, gpu)
        return True

    def hand_over(self, old: Client, new: Client, now: float) -> None:
        """A release where `new` is the GPU's `next_client` and was sent LOCK_OK: the same as the event, but faster."""
        gpu = old.gpu
        self._transitions.hand_over(gpu, old, new, now)
        gpu.next_client = following_client(self._terms, gpu)
        gpu.deadline_s = now + self._terms.shortest_quantum_s if gpu.order.waiting else NEVER

    # Rule 1: resending

    def _resend_drops(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        for client in list(gpu.turns.draining.values()):
            assert client.turn.drop_s is not None
            if now >= client.turn.drop_s + self._patience_s(client, now) - EPSILON_S:
                self._revoke(gpu, client, now, actions)
            elif now >= client.turn.drop_again_s - EPSILON_S:
                self._grants.drop_again(gpu, client, now, actions)

    def _patience_s(self, client: Client, now: float) -> float:
        """After how long without an answer a turn is revoked. One that was revoked a while ago makes it shorter for all
        processes of the owner: those that answer within the time of a resend notice nothing."""
        revoke_after_s = self._settings.revoke_after_s
        deaf = not client.is_program and self._revocations.count(client.owner, now) > 0
        return min(revoke_after_s, DROP_RESEND_S) if deaf else revoke_after_s

    def _resend_due_s(self, gpu: GpuQueue, now: float) -> float:
        return min(
            min(client.turn.drop_again_s, client.turn.drop_s + self._patience_s(client, now))
            for client in gpu.turns.draining.values()
            if client.turn.drop_s is not None
        )

    def _revoke(self, gpu: GpuQueue, client: Client, now: float, actions: list[Action]) -> None:
        self._transitions.revoke(gpu, client, now)
        actions.append(Send(client, DROP_LOCK))
        self._revocations.add(client.owner, now)
        if self._terms.fence.closes_after(self._revocations.add(client.process or client.id, now)):
            actions.append(Disconnect(client))

    # Rule 2: overload

    def _check_overload(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        switched = len(gpu.turns.running) - gpu.turns.programs
        if switched <= 1 or gpu.memory.running_bytes <= gpu.memory.client_limit_bytes * REFIT_RATIO:
            self._transitions.overload(gpu, False)
        elif gpu.memory.running_bytes > gpu.memory.client_limit_bytes:
            self._transitions.overload(gpu, True)
            for client in self.keep_oldest(gpu, DropReason.MEMORY, now, actions):
                self._transitions.require_margin(client)

    def keep_oldest(self, gpu: GpuQueue, reason: DropReason, now: float, actions: list[Action]) -> list[Client]:
        """Drops all turns but the oldest that was not dropped yet; returns the dropped clients. Programs continue:
        their memory would stay."""
        leaving = [c for c in gpu.turns.running.values() if c.turn.drop_s is None and not c.is_program][1:]
        for client in leaving:
            self._grants.drop(gpu, client, reason, now, actions)
        return leaving

    # Rules 3 and 4: core quotas

    def _refill(self, gpu: GpuQueue, now: float) -> None:
        for client in self._quotas.find_refilled(gpu, now):
            self._transitions.requeue(gpu, client, now)
        self._quotas.find_refill(gpu)

    def _check_quotas(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        lend = self._settings.work_conserving and gpu.turns.clock.running == 1 and not gpu.order.waiting
        for client in self._quotas.find_spent(gpu, lend, now):
            self._grants.drop(gpu, client, DropReason.QUOTA, now, actions)

    def _lend(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        """No other client requests the GPU: the throttled client nearest to its refill may run."""
        nearest = min(
            gpu.turns.throttled.values(),
            key=lambda client: client.quota.bucket.refilled_s() if client.quota.bucket else 0.0,
        )
        if find_wait_reason(self._terms, gpu, nearest, now) is None:
            self._transitions.requeue(gpu, nearest, now)
            self._grants.grant(gpu, nearest, now, actions)
            self._quotas.lend(nearest)

    # Rule 6: admission

    def _serve(self, gpu: GpuQueue, now: float, actions: list[Action]) -> float:
        """Admits every client that may run, then makes room for the first that may not. Returns the next deadline."""
        terms, waiting = self._terms, gpu.order.waiting
        gpu.biggest_waiter = None
        if gpu.programs:
            # Their memory stays where it is, so they are in the way of none: only phases and quotas stop them.
            for client in [client for client in waiting.values() if client.is_program]:
                self._grants.grant(gpu, client, now, actions)
        while waiting:
            first = gpu.order.first_waiting()
            assert first is not None
            if find_wait_reason(terms, gpu, first, now) is None:
                # Where no room had to be made for it, it does not take the anchor's part.
                fits = (
                    gpu.order.anchor is not None
                    and gpu.order.anchor.id in gpu.turns.running
                    and first is not gpu.order.front
                )
                self._grant(gpu, first, now, actions, NEVER if fits else None)
                owe_turn(first)
                if len(gpu.turns.running) == 1 and is_exclusive(terms, gpu):
                    # The others wait at least the shortest quantum: how long exactly is computed then.
                    return now + terms.shortest_quantum_s if waiting else NEVER
                continue
            front, reason, fitting, guest_until_s = scan_queue(terms, gpu, now)
            if front is not None and self._pass_anchor_on(gpu, front, reason, now):
                continue
            if fitting is not None:
                self._grant(gpu, fitting, now, actions, guest_until_s)
            elif front is not None:
                gpu.biggest_waiter = biggest_waiter(gpu)
                return self._make_room(gpu, front, reason, now, actions)
            else:
                return NEVER
        return NEVER

    def _grant(
        self, gpu: GpuQueue, client: Client, now: float, actions: list[Action], guest_until_s: float | None = None
    ) -> None:
        alone = not gpu.turns.running
        self._grants.grant(gpu, client, now, actions, guest_until_s)
        if alone and gpu.phases.metered and (gpu.order.waiting or gpu.turns.throttled):
            begin_s = now + SETTLE_S
            actions.append(self.phasing.measure(gpu, begin_s, begin_s + _TURN_MEASURE_S))

    def _pass_anchor_on(self, gpu: GpuQueue, front: Client, reason: WaitReason, now: float) -> bool:
        """The anchor stopped early or disconnected, and `front` waits for the turn of another client, which has not
        lasted long enough: that one is the anchor from now on. Returns whether the order has changed."""
        anchor = gpu.order.anchor
        if anchor is not None and anchor.id in gpu.turns.running:
            return False
        victims = in_the_way(self._terms, gpu, front, reason, now)
        owed = [client for client in victims if client.service.guest_until_s is None]
        if not owed or room_due_s(self._terms, victims, front, reason, now) <= now + EPSILON_S:
            return False
        inherit(gpu, max(owed, key=lambda client: _turn_due_s(self._terms, client, front, reason, now)), now)
        return True

    # Rule 7: making room

    def _make_room(self, gpu: GpuQueue, front: Client, reason: WaitReason, now: float, actions: list[Action]) -> float:
        """Drops the turns in the way of `front` once each has had its quantum. Returns the next deadline."""
        by_activity = has_activity(self._terms, gpu, now)
        again_s = gpu.phases.busy_until_s if by_activity and not gpu.phases.metered else NEVER
        victims = in_the_way(self._terms, gpu, front, reason, now)
        due_s = room_due_s(self._terms, victims, front, reason, now) if victims else promised_s(gpu, front)
        promise_room(gpu, front, due_s)
        if not victims:
            return again_s
        if due_s > now + EPSILON_S:
            return min(due_s, again_s)
        for victim in victims:
            self._grants.drop(gpu, victim, DropReason.QUANTUM, now, actions)
        claim_room(gpu, front)
        return again_s
