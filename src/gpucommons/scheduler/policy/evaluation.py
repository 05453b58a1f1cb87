"""The rules, applied to one GPU after every event (numbers and order: the package's docstring)."""

from collections.abc import Iterable

from gpucommons.model.sharing import WaitReason
from gpucommons.scheduler.policy import demand
from gpucommons.scheduler.policy.admission import (
    REFIT_RATIO,
    biggest_waiter,
    blocked,
    in_the_way,
    is_exclusive,
    knows_demand,
    next_client,
    quantum_s,
    scan_queue,
)
from gpucommons.scheduler.policy.billing import EPSILON_S
from gpucommons.scheduler.policy.core_quotas import CoreQuotas
from gpucommons.scheduler.policy.revocations import Revocations
from gpucommons.scheduler.policy.state import (
    DROP_RESEND_S,
    NEVER,
    Action,
    Client,
    ClientStanding,
    Disconnect,
    DropReason,
    GpuQueue,
    Send,
)
from gpucommons.scheduler.policy.terms import Terms
from gpucommons.scheduler.policy.transitions import Transitions
from gpucommons.scheduler.protocol.wire import MessageType

DROP_LOCK = MessageType.DROP_LOCK
# How often one client per GPU is measured again.
SOLO_REFRESH_S = 60.0


class Evaluation:
    def __init__(self, terms: Terms, quotas: CoreQuotas, transitions: Transitions, revocations: Revocations) -> None:
        self._terms = terms
        self._settings = terms.settings
        self._quotas = quotas
        self._transitions = transitions
        self._revocations = revocations

    def advance(self, gpus: Iterable[GpuQueue], now: float) -> list[Action]:
        """Evaluates these GPUs at `now`."""
        actions: list[Action] = []
        for gpu in gpus:
            gpu.clock.advance(now)
            self.evaluate(gpu, now, actions)
        return actions

    def evaluate(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        """Applies every rule to one GPU. Its turn clock must have been advanced to `now`."""
        if gpu.draining:
            self._resend_drops(gpu, now, actions)
        if now >= gpu.solo_until_s:
            demand.end_solo(gpu)
        if gpu.running_bytes > gpu.safe_limit_bytes or gpu.overloaded:
            self._check_overload(gpu, now, actions)
        if gpu.throttled and now >= gpu.refill_s - EPSILON_S:
            self._refill(gpu, now)
        if gpu.limited_running:
            self._check_quotas(gpu, now, actions)
        deadline = NEVER
        if gpu.waiting:
            deadline = self._serve(gpu, now, actions)
        elif gpu.throttled and not gpu.running and self._settings.work_conserving:
            self._lend(gpu, now, actions)
        if gpu.draining:
            deadline = min(deadline, self._resend_due_s(gpu))
        if gpu.limited:
            deadline = min(deadline, self._quotas.due(gpu, now))
        if gpu.solo is not None:
            deadline = min(deadline, gpu.solo_until_s)
        gpu.deadline_s = deadline
        gpu.fast_path = not (
            gpu.draining
            or gpu.limited
            or gpu.revoked
            or gpu.solo
            or gpu.overloaded
            or knows_demand(self._terms, gpu, now)
        )
        gpu.next_client = next_client(self._terms, gpu)

    # Rule 1: resending

    def drop(self, gpu: GpuQueue, client: Client, reason: DropReason, now: float, actions: list[Action]) -> None:
        """Sends the first DROP_LOCK of a turn."""
        if client.bucket is not None:
            self._quotas.settle(client, now)
        client.drop_s = now
        client.drop_again_s = now + DROP_RESEND_S
        client.drop_reason = reason
        gpu.draining[client.id] = client
        gpu.drops[reason] += 1
        actions.append(Send(client, DROP_LOCK))

    def _resend_drops(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        for client in list(gpu.draining.values()):
            assert client.drop_s is not None
            if now >= client.drop_s + self._settings.revoke_after_s - EPSILON_S:
                self._revoke(gpu, client, now, actions)
            elif now >= client.drop_again_s - EPSILON_S:
                client.drop_again_s = now + DROP_RESEND_S
                gpu.drops[client.drop_reason] += 1
                actions.append(Send(client, DROP_LOCK))

    def _resend_due_s(self, gpu: GpuQueue) -> float:
        revoke_after_s = self._settings.revoke_after_s
        return min(
            min(client.drop_again_s, client.drop_s + revoke_after_s)
            for client in gpu.draining.values()
            if client.drop_s is not None
        )

    def _revoke(self, gpu: GpuQueue, client: Client, now: float, actions: list[Action]) -> None:
        self._transitions.revoke(gpu, client, now)
        gpu.drops[DropReason.REVOKED] += 1
        actions.append(Send(client, DROP_LOCK))
        if self._terms.fence.closes_after(self._revocations.add(client.process or client.id, now)):
            actions.append(Disconnect(client))

    # Rule 2: overload

    def _check_overload(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        if len(gpu.running) <= 1 or gpu.running_bytes <= gpu.safe_limit_bytes * REFIT_RATIO:
            gpu.overloaded = False
        elif gpu.running_bytes > gpu.safe_limit_bytes:
            gpu.overloaded = True
            for client in self.keep_oldest(gpu, DropReason.MEMORY, now, actions):
                client.must_refit = True

    def keep_oldest(self, gpu: GpuQueue, reason: DropReason, now: float, actions: list[Action]) -> list[Client]:
        """Drops all turns but the oldest that was not dropped yet; returns the dropped clients."""
        leaving = [client for client in gpu.running.values() if client.drop_s is None][1:]
        for client in leaving:
            self.drop(gpu, client, reason, now, actions)
        return leaving

    # Rules 3 and 4: core quotas

    def _refill(self, gpu: GpuQueue, now: float) -> None:
        for client in self._quotas.refilled(gpu, now):
            self._transitions.requeue(gpu, client, now)
        self._quotas.find_refill(gpu)

    def _check_quotas(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        lend = self._settings.work_conserving and gpu.clock.running == 1 and not gpu.waiting
        for client, bucket in self._quotas.spent(gpu, lend, now):
            bucket.borrowing = lend
            if not lend:
                bucket.throttled = True
                self.drop(gpu, client, DropReason.QUOTA, now, actions)

    def _lend(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        """No other client requests the GPU: the throttled client nearest to its refill may run."""
        nearest = min(gpu.throttled.values(), key=lambda client: client.bucket.refilled_s() if client.bucket else 0.0)
        if blocked(self._terms, gpu, nearest, now) is None:
            self._transitions.requeue(gpu, nearest, now)
            self._grant(gpu, nearest, now, actions)
            if nearest.bucket is not None:
                nearest.bucket.borrowing = True

    # Rule 5: admission

    def _serve(self, gpu: GpuQueue, now: float, actions: list[Action]) -> float:
        """Admits every client that may run, then makes room for the first that may not. Returns the next deadline."""
        terms, waiting = self._terms, gpu.waiting
        gpu.biggest_waiter = None
        while waiting:
            first = next(iter(waiting.values()))
            if blocked(terms, gpu, first, now) is None:
                self._grant(gpu, first, now, actions)
                if len(gpu.running) == 1 and is_exclusive(terms, gpu):
                    # The others wait at least the shortest quantum: how long exactly is computed then.
                    return now + terms.shortest_quantum_s if waiting else NEVER
                continue
            front, reason, fitting = scan_queue(terms, gpu, now)
            if fitting is not None:
                self._grant(gpu, fitting, now, actions)
            elif front is not None:
                if terms.auto:
                    gpu.biggest_waiter = biggest_waiter(gpu)
                return self._make_room(gpu, front, reason, now, actions)
            else:
                return NEVER
        return NEVER

    def _grant(self, gpu: GpuQueue, client: Client, now: float, actions: list[Action]) -> None:
        if not gpu.running and knows_demand(self._terms, gpu, now) and demand.must_be_alone(client):
            demand.begin_solo(gpu, client, now)
        self._transitions.begin_turn(gpu, client, now)
        if client.wait_for_mem_sent:
            client.wait_for_mem_sent = False
            gpu.mem_available += 1
            actions.append(Send(client, MessageType.MEM_AVAILABLE))
        actions.append(client.lock_ok)

    # Rule 6: making room

    def _make_room(self, gpu: GpuQueue, front: Client, reason: WaitReason, now: float, actions: list[Action]) -> float:
        """Drops the turns in the way of `front` once each has had its quantum. Returns the next deadline."""
        again_s = gpu.busy_until_s if reason is WaitReason.DEMAND or reason is WaitReason.SOLO else NEVER
        if gpu.solo is not None and reason is WaitReason.SOLO:
            return again_s
        victims = in_the_way(self._terms, gpu, front, reason)
        if not victims:
            return again_s
        due_s = max(victim.turn_s + quantum_s(self._terms, victim, front, reason) for victim in victims)
        if due_s > now + EPSILON_S:
            return min(due_s, again_s)
        for victim in victims:
            self.drop(gpu, victim, DropReason.QUANTUM, now, actions)
        return again_s

    # Demand

    def refresh_demand(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        """The client measured longest ago gets a solo turn: now if it runs, else in its next turn. Where memory has to
        be moved, always in its next turn: clients dropped now would begin a new quantum, and lengthen every wait."""
        client = demand.stalest(gpu, SOLO_REFRESH_S, now)
        if client is None:
            return
        gpu.refreshed_s = now
        client.refresh_demand = True
        if client.standing is ClientStanding.RUNNING and client.drop_s is None and gpu.biggest_waiter is None:
            demand.begin_solo(gpu, client, now)
            for other in gpu.running.values():
                if other is not client and other.drop_s is None:
                    self.drop(gpu, other, DropReason.QUANTUM, now, actions)
