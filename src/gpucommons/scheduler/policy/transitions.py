"""The only code that changes a client's standing: idle, waiting, throttled, running, and revoked.

A core quota decides when a client is throttled, and a grant is the transition to running with its counters and its
message.
"""

from collections.abc import Iterator
from typing import Final

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.scheduler.policy import attained
from gpucommons.scheduler.policy.billing import EPSILON_S, QuotaBucket, TurnClock
from gpucommons.scheduler.policy.state import (
    DROP_RESEND_S,
    NEVER,
    Action,
    Client,
    ClientStanding,
    DropReason,
    GpuQueue,
    Send,
    Terms,
    client_name,
)
from gpucommons.scheduler.protocol.wire import MessageType

# The core quotas of one GPU's clients: which clients have one, at what rate it fills, when it is spent or refilled.
#
# Accounts only: evaluation.py decides what follows from a spent or refilled quota.

# The share of the longest pause for which a quota stops a program.
_LONGEST_WAIT_RATIO: Final = 0.5


class CoreQuotas:
    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._tail_billing_ratio = settings.drop_tail_billing_percent / 100
        self._sample_interval_s = settings.quota_sample_interval_ms / 1000
        self._longest_wait_s = _LONGEST_WAIT_RATIO * settings.max_pause_s

    def limit(self, client: Client, percent: int, now: float) -> None:
        """A changed limit keeps the balance: a change of quota does not cancel a debt."""
        gpu = client.gpu
        self.leave(client, now)
        client.core_limit_percent = percent
        if percent >= 100:
            client.bucket = None
            gpu.limited_running.pop(client.id, None)
        elif client.bucket is None:
            client.bucket = QuotaBucket(percent, self._settings, now)
        else:
            client.bucket.rate = percent / 100
        if client.standing is not ClientStanding.IDLE:
            self._join(client, now)
        if client.standing is ClientStanding.RUNNING and client.bucket is not None:
            gpu.limited_running[client.id] = client
            client.settled_mark_s = gpu.clock.billed_s
        self.find_refill(gpu)

    def move(self, client: Client, target: GpuQueue, now: float) -> None:
        """Makes `target` the client's GPU; the balance is kept. Both turn clocks must have been advanced to `now`."""
        self.leave(client, now)
        running = client.gpu.limited_running.pop(client.id, None)
        client.gpu = target
        client.settled_mark_s = target.clock.billed_s
        if running is not None:
            target.limited_running[client.id] = client
        if client.standing is not ClientStanding.IDLE:
            self._join(client, now)

    def request(self, client: Client, now: float) -> bool:
        """A client with a quota requests a turn. Returns whether it must wait for a refill first."""
        bucket = client.bucket
        assert bucket is not None
        bucket.settle_idle(now)
        self._join(client, now)
        bucket.throttled = bucket.is_over() or (bucket.throttled and bucket.balance_s < bucket.band_s - EPSILON_S)
        return bucket.throttled

    def begin_turn(self, client: Client, now: float) -> None:
        bucket = client.bucket
        assert bucket is not None
        bucket.settle_waiting(now, 0.0)
        bucket.throttled = False
        client.settled_mark_s = client.gpu.clock.billed_s
        client.gpu.limited_running[client.id] = client

    def end_turn(self, client: Client, now: float) -> None:
        self.leave(client, now)
        del client.gpu.limited_running[client.id]
        bucket = client.bucket
        assert bucket is not None
        bucket.borrowing = False
        if client.drop_s is not None:
            bucket.learn_tail(now - client.drop_s)

    def leave(self, client: Client, now: float) -> None:
        """The client withdraws its request or ends its turn, or its quota is about to change."""
        gpu = client.gpu
        if client.bucket is not None and gpu.limited.pop(client.id, None) is not None:
            self._settle_standing(client, now)
            gpu.limited_percent -= client.core_limit_percent
            client.bucket.rate = client.core_limit_percent / 100
            self._rescale(gpu, now)

    def settle(self, client: Client, now: float) -> None:
        """Brings the bucket of a running client up to now. After DROP_LOCK only the tail's share is billed."""
        bucket = client.bucket
        assert bucket is not None
        billed = client.gpu.clock.billed_s
        spent = billed - client.settled_mark_s
        if client.drop_s is not None:
            spent *= self._tail_billing_ratio
        bucket.settle_running(now, spent)
        client.settled_mark_s = billed

    def spent(self, gpu: GpuQueue, lend: bool, now: float) -> Iterator[tuple[Client, QuotaBucket]]:
        """The running clients whose quota is spent and that can be dropped. Borrowing ends unless `lend` is still
        true."""
        for client in gpu.limited_running.values():
            if client.drop_s is None:
                self.settle(client, now)
                bucket = client.bucket
                assert bucket is not None
                bucket.borrowing = bucket.borrowing and lend
                left = bucket.spent_after_s(gpu.clock.running)
                if left is not None and left <= EPSILON_S and now >= max(client.keep_until_s, gpu.measured_until_s):
                    yield client, bucket

    def refilled(self, gpu: GpuQueue, now: float) -> list[Client]:
        """The throttled clients whose quota is refilled, in the order of the refills."""
        back = [(self._refilled_s(client), client) for client in gpu.throttled.values()]
        back.sort(key=lambda pair: pair[0])
        return [client for due, client in back if due <= now + EPSILON_S]

    def find_refill(self, gpu: GpuQueue) -> None:
        """Sets when the next throttled client is refilled."""
        gpu.refill_s = min(map(self._refilled_s, gpu.throttled.values()), default=NEVER)

    def _refilled_s(self, client: Client) -> float:
        """When the client may run again: at the latest before the pauser would resume it."""
        refilled_s = NEVER if client.bucket is None else client.bucket.refilled_s()
        return min(refilled_s, client.wait_s + self._longest_wait_s) if client.is_program else refilled_s

    def due(self, gpu: GpuQueue, now: float) -> float:
        """When the next quota is spent or refilled. The buckets of running clients must have been settled at `now`."""
        due = gpu.refill_s if gpu.throttled else NEVER
        for client in gpu.limited_running.values():
            if client.drop_s is None and client.bucket is not None:
                left = client.bucket.spent_after_s(gpu.clock.running)
                if left is not None:
                    # It may have begun its turn with a spent quota.
                    left = left if left > EPSILON_S else self._sample_interval_s
                    due = min(due, max(now + left, client.keep_until_s, gpu.measured_until_s))
        return due

    def _join(self, client: Client, now: float) -> None:
        gpu = client.gpu
        if client.bucket is not None:
            gpu.limited[client.id] = client
            gpu.limited_percent += client.core_limit_percent
            client.bucket.rate = client.core_limit_percent / 100 * gpu.limited_scale
            self._rescale(gpu, now)

    def _rescale(self, gpu: GpuQueue, now: float) -> None:
        """Limits above 100 in sum are scaled in proportion among the clients that run, wait or are throttled."""
        scale = 1.0 if gpu.limited_percent <= 100 else 100 / gpu.limited_percent
        if scale == gpu.limited_scale:
            return
        gpu.limited_scale = scale
        for client in gpu.limited.values():
            self._settle_standing(client, now)
            assert client.bucket is not None
            client.bucket.rate = client.core_limit_percent / 100 * scale
        self.find_refill(gpu)

    def _settle_standing(self, client: Client, now: float) -> None:
        if client.standing is ClientStanding.RUNNING:
            self.settle(client, now)
        elif client.bucket is not None:
            client.bucket.settle_waiting(now, 0.0)


# The only code that changes a client's standing: idle, waiting, throttled, running, and revoked while idle.
#
# With the standing it changes the GPU's queues, its sums over the running clients, and the bill of a turn. It decides
# nothing. The GPU's turn clock must have been advanced to `now` before each call.

IDLE, WAITING, THROTTLED, RUNNING = (
    ClientStanding.IDLE,
    ClientStanding.WAITING,
    ClientStanding.THROTTLED,
    ClientStanding.RUNNING,
)


class Transitions:
    def __init__(self, quotas: CoreQuotas, terms: Terms) -> None:
        self._quotas = quotas
        self._terms = terms

    # Waiting

    def enqueue(self, gpu: GpuQueue, client: Client, now: float) -> None:
        """A request. A revoked client that requests again has stopped: the memory that it holds counts no more."""
        if client.revoked:
            self.forget_revocation(gpu, client)
        client.requested_again = False
        if client.bucket is not None and self._quotas.request(client, now):
            client.wait_s = client.eligible_s = now
            client.standing = THROTTLED
            gpu.throttled[client.id] = client
            self._quotas.find_refill(gpu)
        else:
            self.enqueue_unlimited(gpu, client, now)

    def enqueue_unlimited(self, gpu: GpuQueue, client: Client, now: float) -> None:
        """A request of a client without a core limit, or within it."""
        client.wait_s = client.eligible_s = now
        client.standing = WAITING
        attained.queue(gpu, client, now)

    def requeue(self, gpu: GpuQueue, client: Client, now: float) -> None:
        """A throttled client may run again. Its wait for other clients begins now."""
        del gpu.throttled[client.id]
        attained.queue(gpu, client, now)
        client.standing = WAITING
        client.eligible_s = now
        if client.bucket is not None:
            client.bucket.throttled = False

    def dequeue(self, gpu: GpuQueue, client: Client, now: float) -> None:
        """A waiting or throttled client withdraws its request; for others nothing changes."""
        if client.standing is WAITING:
            attained.unqueue(gpu, client, now)
        elif client.standing is THROTTLED:
            del gpu.throttled[client.id]
        else:
            return
        client.standing = IDLE
        client.wait_for_mem_sent = False
        self._quotas.leave(client, now)

    # Turns

    def begin_turn(self, gpu: GpuQueue, client: Client, now: float, guest_until_s: float | None = None) -> None:
        attained.unqueue(gpu, client, now)
        attained.begin(gpu, client, guest_until_s, now)
        self._occupy(gpu, client)
        client.standing = RUNNING
        client.turn_s = now
        client.turn_mark_s = gpu.clock.billed_s
        client.must_refit = False
        gpu.changed_s = now
        if client.bucket is not None:
            self._quotas.begin_turn(client, now)
        gpu.turns_wait.observe(now - client.wait_s)

    def end_turn(self, gpu: GpuQueue, client: Client, now: float) -> None:
        """The turn ends in the accounts."""
        clock = gpu.clock
        if client.window_end_s != clock.window_end_s:
            _open_window(client, clock)
        client.billed_s += clock.billed_s - client.turn_mark_s
        client.turns += 1
        if client.bucket is not None:
            self._quotas.end_turn(client, now)
        late_s = 0.0
        if client.drop_s is not None:
            late_s = now - client.drop_s
            gpu.turns_drain.observe(late_s)
            client.drop_s = None
            del gpu.draining[client.id]
        self._vacate(gpu, client)
        attained.end(gpu, client, late_s, now)
        gpu.changed_s = now
        gpu.turns_length.observe(now - client.turn_s)
        client.standing = IDLE

    def hand_over(self, gpu: GpuQueue, old: Client, new: Client, now: float) -> None:
        """`end_turn` and `begin_turn` of clients without a core limit, where turns are exclusive: the hot path."""
        clock = gpu.clock
        if now >= clock.window_end_s:
            clock.advance(now)
        if old.window_end_s != clock.window_end_s:
            _open_window(old, clock)
        # One client runs before and after: the clock is not set, it advances as the wall clock.
        billed = clock.billed_s + now - clock.at_s
        old.billed_s += billed - old.turn_mark_s
        old.turns += 1
        old.standing = IDLE
        gpu.handovers.extend((now - old.turn_s, now - new.wait_s))
        running = gpu.running
        del running[old.id]

        attained.hand_over(gpu, old, new, now)
        running[new.id] = new
        new.standing = RUNNING
        new.turn_s = now
        new.turn_mark_s = billed
        gpu.running_bytes = new.need_bytes
        managed = gpu.running_managed_bytes = new.used_bytes
        if managed > gpu.peak_managed_bytes:
            gpu.peak_managed_bytes = managed
        gpu.running_blind = new.blind

    def revoke(self, gpu: GpuQueue, client: Client, now: float) -> None:
        """The turn ends in the accounts; the client may still run, and the memory that NVML shows still counts."""
        self.end_turn(gpu, client, now)
        client.revoked = True
        client.requested_again = False
        gpu.revoked[client.id] = client
        client.held_bytes = _confirmed_bytes(client)
        gpu.held_bytes += client.held_bytes

    def forget_revocation(self, gpu: GpuQueue, client: Client) -> None:
        if client.revoked:
            client.revoked = False
            gpu.held_bytes -= client.held_bytes
            client.held_bytes = 0
            del gpu.revoked[client.id]

    # Any standing

    def change_need(self, client: Client) -> None:
        """The client's memory or overhead changed, or its GPU's size.

        A client cannot use more than the device has, nor less than NVML shows. v1 clients do not report their memory:
        they need what NVML shows, or else their overhead.
        """
        gpu = client.gpu
        if client.is_program:
            self._count_resident(gpu, client, client.nvml_bytes or 0)
            return
        managed_before = client.used_bytes
        client.used_bytes = gpu.possible_bytes(client.claimed_bytes)
        client.peak_bytes = max(gpu.possible_bytes(client.peak_bytes), client.used_bytes)
        need = max(client.used_bytes + (client.overhead_bytes or 0), client.nvml_bytes or 0)
        blind = client.version == 1 and client.nvml_bytes is None
        if client.standing is RUNNING:
            gpu.running_blind += blind - client.blind
        client.blind = blind
        grown = need - client.need_bytes
        client.need_bytes = need
        if client.standing is RUNNING:
            gpu.running_bytes += grown
            gpu.running_managed_bytes += client.used_bytes - managed_before
            gpu.peak_managed_bytes = max(gpu.peak_managed_bytes, gpu.running_managed_bytes)
        elif client.revoked:
            held = _confirmed_bytes(client)
            gpu.held_bytes += held - client.held_bytes
            client.held_bytes = held

    def enter(self, gpu: GpuQueue, client: Client) -> None:
        gpu.clients[client.id] = client
        gpu.programs += client.is_program
        attained.enter(gpu, client, self._line_key(client))

    def leave(self, gpu: GpuQueue, client: Client) -> None:
        del gpu.clients[client.id]
        gpu.hung.pop(client.id, None)
        gpu.programs -= client.is_program
        self._count_resident(gpu, client, 0)
        gpu.coruns.forget(client.id)
        key = self._line_key(client)
        # A client without an owner does not come back.
        attained.leave(gpu, client, key, remember=key != client_name(client.id))

    def _line_key(self, client: Client) -> str:
        return client.owner if self._terms.fair_between_owners else client_name(client.id)

    def _count_resident(self, gpu: GpuQueue, client: Client, resident_bytes: int) -> None:
        gpu.resident_bytes += resident_bytes - client.resident_bytes
        client.resident_bytes = resident_bytes
        gpu.client_limit_bytes = max(0, gpu.safe_limit_bytes - gpu.resident_bytes)

    def move(self, client: Client, target: GpuQueue, now: float) -> None:
        """Moves a client to another GPU as it is: standing, turn, wait and debt. Both queues must be ordered again."""
        source, id = client.gpu, client.id
        if id in source.hung:
            target.hung[id] = client
        served_s = attained.service_s(client.line, now)
        self.leave(source, client)
        self.enter(target, client)
        attained.carry(client, source, served_s, target)
        if client.revoked:
            source.held_bytes -= client.held_bytes
            target.held_bytes += client.held_bytes
            target.revoked[id] = source.revoked.pop(id)
        self._quotas.move(client, target, now)
        if client.standing is WAITING:
            target.waiting[id] = source.waiting.pop(id)
        elif client.standing is THROTTLED:
            target.throttled[id] = source.throttled.pop(id)
            self._quotas.find_refill(source)
            self._quotas.find_refill(target)
        elif client.standing is RUNNING:
            client.billed_s += source.clock.billed_s - client.turn_mark_s
            client.turn_mark_s = target.clock.billed_s
            self._vacate(source, client)
            self._occupy(target, client)
            source.changed_s = target.changed_s = now
            if client.drop_s is not None:
                target.draining[id] = source.draining.pop(id)
        self.change_need(client)

    def _occupy(self, gpu: GpuQueue, client: Client) -> None:
        gpu.running[client.id] = client
        gpu.clock.running += 1
        gpu.running_bytes += client.need_bytes
        gpu.running_managed_bytes += client.used_bytes
        if gpu.running_managed_bytes > gpu.peak_managed_bytes:
            gpu.peak_managed_bytes = gpu.running_managed_bytes
        gpu.running_blind += client.blind
        gpu.running_programs += client.is_program

    def _vacate(self, gpu: GpuQueue, client: Client) -> None:
        del gpu.running[client.id]
        gpu.clock.running -= 1
        gpu.running_bytes -= client.need_bytes
        gpu.running_managed_bytes -= client.used_bytes
        gpu.running_blind -= client.blind
        gpu.running_programs -= client.is_program


def _confirmed_bytes(client: Client) -> int:
    """How much of a revoked client's need counts: it ignores orders, so its own claim is not trusted."""
    return min(client.need_bytes, client.nvml_bytes or 0)


def _open_window(client: Client, clock: TurnClock) -> None:
    """Records what the client had been billed when the present window began."""
    client.window_end_s = clock.window_end_s
    client.window_base_s = client.billed_s + max(0.0, clock.window_billed_s - client.turn_mark_s)


# How a turn begins and how its end is requested: the transition, the counters and the message. It decides nothing.


class Grants:
    def __init__(self, quotas: CoreQuotas, transitions: Transitions) -> None:
        self._quotas = quotas
        self._transitions = transitions

    def grant(
        self, gpu: GpuQueue, client: Client, now: float, actions: list[Action], guest_until_s: float | None = None
    ) -> None:
        """A waiting client's turn begins; `guest_until_s`: in the room that others leave over."""
        self._transitions.begin_turn(gpu, client, now, guest_until_s)
        if client.wait_for_mem_sent:
            client.wait_for_mem_sent = False
            gpu.mem_available += 1
            actions.append(Send(client, MessageType.MEM_AVAILABLE))
        actions.append(client.lock_ok)

    def drop(self, gpu: GpuQueue, client: Client, reason: DropReason, now: float, actions: list[Action]) -> None:
        """Sends the first DROP_LOCK of a turn."""
        if client.bucket is not None:
            self._quotas.settle(client, now)
        client.drop_s = now
        client.drop_again_s = now + DROP_RESEND_S
        client.drop_reason = reason
        gpu.draining[client.id] = client
        gpu.drops[reason] += 1
        actions.append(Send(client, MessageType.DROP_LOCK))
