"""The only code that changes a client's standing: idle, waiting, throttled, running, and revoked while idle.

With the standing it changes the GPU's queues, its sums over the running clients, and the bill of a turn. It decides
nothing. The GPU's turn clock must have been advanced to `now` before each call.
"""

from gpucommons.scheduler.policy import attained
from gpucommons.scheduler.policy.billing import TurnClock
from gpucommons.scheduler.policy.core_quotas import CoreQuotas
from gpucommons.scheduler.policy.state import Client, ClientStanding, GpuQueue, client_name
from gpucommons.scheduler.policy.terms import Terms

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
