"""The rules, applied to one GPU after every event (numbers and order: the package's docstring)."""

from collections.abc import Iterable
from typing import Final

from gpucommons.model.sharing import WaitReason
from gpucommons.scheduler.corun.coruns import SETTLE_S
from gpucommons.scheduler.policy.admission import (
    REFIT_RATIO,
    biggest_waiter,
    blocked,
    in_the_way,
    is_exclusive,
    next_client,
    room_due_s,
    scan_queue,
)
from gpucommons.scheduler.policy.attained import give_way
from gpucommons.scheduler.policy.billing import EPSILON_S
from gpucommons.scheduler.policy.core_quotas import CoreQuotas
from gpucommons.scheduler.policy.grants import Grants
from gpucommons.scheduler.policy.phasing import Phasing, knows_activity
from gpucommons.scheduler.policy.revocations import Revocations
from gpucommons.scheduler.policy.state import (
    DROP_RESEND_S,
    NEVER,
    Action,
    Client,
    Disconnect,
    DropReason,
    GpuQueue,
    Measure,
    Send,
)
from gpucommons.scheduler.policy.terms import Terms
from gpucommons.scheduler.policy.transitions import Transitions
from gpucommons.scheduler.protocol.wire import MessageType

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
            gpu.clock.advance(now)
            self.evaluate(gpu, now, actions)
        return actions

    def evaluate(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        """Applies every rule to one GPU. Its turn clock must have been advanced to `now`."""
        if gpu.draining:
            self._resend_drops(gpu, now, actions)
        if gpu.running_bytes > gpu.client_limit_bytes or gpu.overloaded:
            self._check_overload(gpu, now, actions)
        if gpu.throttled and now >= gpu.refill_s - EPSILON_S:
            self._refill(gpu, now)
        if gpu.limited_running:
            self._check_quotas(gpu, now, actions)
        deadline = NEVER
        if not gpu.hung and self.phasing.applies(gpu, now):
            deadline = self.phasing.run(gpu, now, actions)
        else:
            self.phasing.leave(gpu, now)
            if gpu.waiting:
                deadline = self._serve(gpu, now, actions)
        if not gpu.waiting and gpu.throttled and not gpu.running and self._settings.work_conserving:
            self._lend(gpu, now, actions)
        if gpu.draining:
            deadline = min(deadline, self._resend_due_s(gpu, now))
        if gpu.limited:
            deadline = min(deadline, self._quotas.due(gpu, now))
        gpu.deadline_s = deadline
        gpu.fast_path = not (
            gpu.draining
            or gpu.limited
            or gpu.revoked
            or gpu.programs
            or gpu.overloaded
            or knows_activity(self._terms, gpu, now)
        )
        gpu.next_client = next_client(self._terms, gpu)

    # Rule 1: resending

    def _resend_drops(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        for client in list(gpu.draining.values()):
            assert client.drop_s is not None
            if now >= client.drop_s + self._patience_s(client, now) - EPSILON_S:
                self._revoke(gpu, client, now, actions)
            elif now >= client.drop_again_s - EPSILON_S:
                client.drop_again_s = now + DROP_RESEND_S
                gpu.drops[client.drop_reason] += 1
                actions.append(Send(client, DROP_LOCK))

    def _patience_s(self, client: Client, now: float) -> float:
        """After how long without an answer a turn is revoked. One that was revoked a while ago makes it shorter for all
        processes of the owner: those that answer within the time of a resend notice nothing."""
        revoke_after_s = self._settings.revoke_after_s
        deaf = not client.is_program and self._revocations.count(client.owner, now) > 0
        return min(revoke_after_s, DROP_RESEND_S) if deaf else revoke_after_s

    def _resend_due_s(self, gpu: GpuQueue, now: float) -> float:
        return min(
            min(client.drop_again_s, client.drop_s + self._patience_s(client, now))
            for client in gpu.draining.values()
            if client.drop_s is not None
        )

    def _revoke(self, gpu: GpuQueue, client: Client, now: float, actions: list[Action]) -> None:
        self._transitions.revoke(gpu, client, now)
        gpu.drops[DropReason.REVOKED] += 1
        actions.append(Send(client, DROP_LOCK))
        self._revocations.add(client.owner, now)
        if self._terms.fence.closes_after(self._revocations.add(client.process or client.id, now)):
            actions.append(Disconnect(client))

    # Rule 2: overload

    def _check_overload(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        switched = len(gpu.running) - gpu.running_programs
        if switched <= 1 or gpu.running_bytes <= gpu.client_limit_bytes * REFIT_RATIO:
            gpu.overloaded = False
        elif gpu.running_bytes > gpu.client_limit_bytes:
            gpu.overloaded = True
            for client in self.keep_oldest(gpu, DropReason.MEMORY, now, actions):
                client.must_refit = True

    def keep_oldest(self, gpu: GpuQueue, reason: DropReason, now: float, actions: list[Action]) -> list[Client]:
        """Drops all turns but the oldest that was not dropped yet; returns the dropped clients. Programs continue:
        their memory would stay."""
        leaving = [c for c in gpu.running.values() if c.drop_s is None and not c.is_program][1:]
        for client in leaving:
            self._grants.drop(gpu, client, reason, now, actions)
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
                self._grants.drop(gpu, client, DropReason.QUOTA, now, actions)

    def _lend(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        """No other client requests the GPU: the throttled client nearest to its refill may run."""
        nearest = min(gpu.throttled.values(), key=lambda client: client.bucket.refilled_s() if client.bucket else 0.0)
        if blocked(self._terms, gpu, nearest, now) is None:
            self._transitions.requeue(gpu, nearest, now)
            self._grants.grant(gpu, nearest, now, actions)
            if nearest.bucket is not None:
                nearest.bucket.borrowing = True

    # Rule 6: admission

    def _serve(self, gpu: GpuQueue, now: float, actions: list[Action]) -> float:
        """Admits every client that may run, then makes room for the first that may not. Returns the next deadline."""
        terms, waiting = self._terms, gpu.waiting
        gpu.biggest_waiter = None
        if gpu.programs:
            # Their memory stays where it is, so they are in the way of none: only phases and quotas stop them.
            for client in [client for client in waiting.values() if client.is_program]:
                self._grants.grant(gpu, client, now, actions)
        while waiting:
            first = gpu.first_waiting()
            assert first is not None
            if blocked(terms, gpu, first, now) is None:
                # Where no room had to be made for it, it does not take the anchor's part.
                fits = gpu.anchor is not None and gpu.anchor.id in gpu.running and first is not gpu.front
                self._grant(gpu, first, now, actions, NEVER if fits else None)
                if len(gpu.running) == 1 and is_exclusive(terms, gpu):
                    # The others wait at least the shortest quantum: how long exactly is computed then.
                    return now + terms.shortest_quantum_s if waiting else NEVER
                continue
            front, reason, fitting, guest_until_s = scan_queue(terms, gpu, now)
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
        alone = not gpu.running
        self._grants.grant(gpu, client, now, actions, guest_until_s)
        if alone and gpu.metered and (gpu.waiting or gpu.throttled):
            gpu.measured_phase += 1
            begin_s = now + SETTLE_S
            actions.append(Measure(gpu, gpu.measured_phase, begin_s, begin_s + _TURN_MEASURE_S))

    # Rule 7: making room

    def _make_room(self, gpu: GpuQueue, front: Client, reason: WaitReason, now: float, actions: list[Action]) -> float:
        """Drops the turns in the way of `front` once each has had its quantum. Returns the next deadline."""
        by_activity = reason is WaitReason.DEMAND or reason is WaitReason.SOLO
        again_s = gpu.busy_until_s if by_activity and not gpu.metered else NEVER
        gpu.front = front
        victims = in_the_way(self._terms, gpu, front, reason, now)
        if not victims:
            return again_s
        due_s = room_due_s(self._terms, victims, front, reason, now)
        if due_s > now + EPSILON_S:
            return min(due_s, again_s)
        for victim in victims:
            give_way(victim, front, now)
            self._grants.drop(gpu, victim, DropReason.QUANTUM, now, actions)
        return again_s
