"""The only code that changes a client's standing: idle, waiting, throttled, running, and revoked while idle.

With the standing it changes the GPU's queues, the memory that clients need and its sums over those that run, and the
bill of a turn. It decides nothing. The GPU's turn clock must have been advanced to `now` before each call.
"""

from gpucommons.scheduler.policy import attained
from gpucommons.scheduler.policy.core_limits import CoreQuotas
from gpucommons.scheduler.policy.state import (
    DROP_RESEND_S,
    Action,
    Client,
    ClientStanding,
    ClientTurn,
    DropReason,
    GpuQueue,
    Send,
    Terms,
    TurnClock,
    client_name,
)
from gpucommons.scheduler.protocol.wire import MessageType

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
        if client.turn.revoked:
            self.forget_revocation(gpu, client)
        client.turn.requested_again = False
        if client.quota.bucket is not None and self._quotas.request(client, now):
            client.turn.wait_s = client.turn.eligible_s = now
            client.standing = THROTTLED
            gpu.turns.throttled[client.id] = client
            self._quotas.find_refill(gpu)
        else:
            self.enqueue_unlimited(gpu, client, now)

    def enqueue_unlimited(self, gpu: GpuQueue, client: Client, now: float) -> None:
        """A request of a client without a core limit, or within it."""
        client.turn.wait_s = client.turn.eligible_s = now
        client.standing = WAITING
        attained.queue(gpu, client, now)

    def requeue(self, gpu: GpuQueue, client: Client, now: float) -> None:
        """A throttled client may run again. Its wait for other clients begins now."""
        del gpu.turns.throttled[client.id]
        attained.queue(gpu, client, now)
        client.standing = WAITING
        client.turn.eligible_s = now
        self._quotas.refill(client)

    def dequeue(self, gpu: GpuQueue, client: Client, now: float) -> None:
        """A waiting or throttled client withdraws its request; for others nothing changes."""
        if client.standing is WAITING:
            attained.unqueue(gpu, client, now)
        elif client.standing is THROTTLED:
            del gpu.turns.throttled[client.id]
        else:
            return
        client.standing = IDLE
        client.turn.wait_for_mem_sent = False
        self._quotas.leave(client, now)

    def request_again(self, client: Client) -> None:
        """The client requests its next turn before it has ended this one."""
        client.turn.requested_again = True

    def wait_for_memory(self, gpu: GpuQueue, client: Client) -> None:
        """WAIT_FOR_MEM is sent to the client: once for each wait."""
        client.turn.wait_for_mem_sent = True
        gpu.turns.wait_for_mem += 1

    # Turns

    def begin_turn(self, gpu: GpuQueue, client: Client, now: float, guest_until_s: float | None = None) -> None:
        attained.unqueue(gpu, client, now)
        attained.begin(gpu, client, guest_until_s, now)
        self._occupy(gpu, client)
        client.standing = RUNNING
        client.turn.begun_s = now
        client.turn.mark_s = gpu.turns.clock.billed_s
        client.memory.must_refit = False
        gpu.turns.changed_s = now
        if client.quota.bucket is not None:
            self._quotas.begin_turn(client, now)
        gpu.turns.waits.observe(now - client.turn.wait_s)

    def end_turn(self, gpu: GpuQueue, client: Client, now: float) -> None:
        """The turn ends in the accounts."""
        clock = gpu.turns.clock
        if client.turn.window_end_s != clock.window_end_s:
            _open_window(client.turn, clock)
        client.turn.billed_s += clock.billed_s - client.turn.mark_s
        client.turn.count += 1
        if client.quota.bucket is not None:
            self._quotas.end_turn(client, now)
        late_s = 0.0
        released = client.turn.drop_s is None
        if client.turn.drop_s is not None:
            late_s = now - client.turn.drop_s
            gpu.turns.drains.observe(late_s)
            client.turn.drop_s = None
            del gpu.turns.draining[client.id]
        self._vacate(gpu, client)
        attained.end(gpu, client, late_s, now, released)
        gpu.turns.changed_s = now
        gpu.turns.lengths.observe(now - client.turn.begun_s)
        client.standing = IDLE

    def hand_over(self, gpu: GpuQueue, old: Client, new: Client, now: float) -> None:
        """`end_turn` and `begin_turn` of clients without a core limit, where turns are exclusive: the hot path."""
        turns, memory, ending, beginning = gpu.turns, gpu.memory, old.turn, new.turn
        clock = turns.clock
        if now >= clock.window_end_s:
            clock.advance(now)
        if ending.window_end_s != clock.window_end_s:
            _open_window(ending, clock)
        # One client runs before and after: the clock is not set, it advances as the wall clock.
        billed = clock.billed_s + now - clock.at_s
        ending.billed_s += billed - ending.mark_s
        ending.count += 1
        old.standing = IDLE
        turns.handovers.extend((now - ending.begun_s, now - beginning.wait_s))
        running = turns.running
        del running[old.id]

        attained.hand_over(gpu, old, new, now)
        running[new.id] = new
        new.standing = RUNNING
        beginning.begun_s = now
        beginning.mark_s = billed
        needed = new.memory
        memory.running_bytes = needed.need_bytes
        managed = memory.managed_bytes = needed.used_bytes
        if managed > memory.peak_managed_bytes:
            memory.peak_managed_bytes = managed
        memory.running_blind = needed.blind

    def revoke(self, gpu: GpuQueue, client: Client, now: float) -> None:
        """The turn ends in the accounts; the client may still run, and the memory that NVML shows still counts."""
        self.end_turn(gpu, client, now)
        client.turn.revoked = True
        client.turn.requested_again = False
        gpu.turns.revoked[client.id] = client
        gpu.turns.drops[DropReason.REVOKED] += 1
        client.memory.held_bytes = _confirmed_bytes(client)
        gpu.memory.held_bytes += client.memory.held_bytes

    def forget_revocation(self, gpu: GpuQueue, client: Client) -> None:
        if client.turn.revoked:
            client.turn.revoked = False
            gpu.memory.held_bytes -= client.memory.held_bytes
            client.memory.held_bytes = 0
            del gpu.turns.revoked[client.id]

    def continue_turn(self, gpu: GpuQueue, client: Client) -> None:
        """The turn goes on, although its end was requested."""
        client.turn.drop_s = None
        del gpu.turns.draining[client.id]

    def keep(self, client: Client, until_s: float) -> None:
        """No rule stops the program before `until_s`."""
        client.turn.keep_until_s = until_s

    def hang(self, client: Client) -> None:
        """The driver's call for a program does not return."""
        client.gpu.turns.hung[client.id] = client

    def record_return(self, client: Client) -> None:
        client.gpu.turns.hung.pop(client.id, None)

    # Memory

    def resize(self, gpu: GpuQueue, total_bytes: int, safe_bytes: int, *, known: bool) -> None:
        memory = gpu.memory
        memory.total_bytes = total_bytes
        memory.total_known = known
        memory.safe_limit_bytes = safe_bytes
        memory.client_limit_bytes = max(0, safe_bytes - memory.resident_bytes)

    def claim_memory(self, client: Client, claimed_bytes: int) -> None:
        client.memory.claimed_bytes = claimed_bytes
        self.change_need(client)

    def measure_memory(self, client: Client, nvml_bytes: int | None, overhead_bytes: int | None) -> None:
        memory = client.memory
        memory.nvml_bytes = nvml_bytes
        memory.peak_nvml_bytes = max(memory.peak_nvml_bytes, nvml_bytes or 0)
        memory.overhead_bytes = overhead_bytes
        self.change_need(client)

    def limit_memory(self, client: Client, limit_bytes: int) -> None:
        client.memory.limit_bytes = limit_bytes

    def overload(self, gpu: GpuQueue, overloaded: bool) -> None:
        gpu.memory.overloaded = overloaded

    def require_margin(self, client: Client) -> None:
        """The client was dropped by an overload: it must fit with a margin before it joins others again."""
        client.memory.must_refit = True

    def change_need(self, client: Client) -> None:
        """The client's memory or overhead changed, or its GPU's size.

        A client cannot use more than the device has, nor less than NVML shows. v1 clients do not report their memory:
        they need what NVML shows, or else their overhead.
        """
        gpu, memory = client.gpu, client.memory
        if client.is_program:
            self._count_resident(gpu, client, memory.nvml_bytes or 0)
            return
        total = gpu.memory
        need_before, managed_before, blind_before = memory.need_bytes, memory.used_bytes, memory.blind
        memory.used_bytes = total.possible_bytes(memory.claimed_bytes)
        memory.peak_bytes = max(total.possible_bytes(memory.peak_bytes), memory.used_bytes)
        memory.need_bytes = max(memory.used_bytes + (memory.overhead_bytes or 0), memory.nvml_bytes or 0)
        memory.blind = client.version == 1 and memory.nvml_bytes is None
        if client.standing is RUNNING:
            total.running_blind += memory.blind - blind_before
            total.running_bytes += memory.need_bytes - need_before
            total.managed_bytes += memory.used_bytes - managed_before
            total.peak_managed_bytes = max(total.peak_managed_bytes, total.managed_bytes)
        elif client.turn.revoked:
            held = _confirmed_bytes(client)
            total.held_bytes += held - memory.held_bytes
            memory.held_bytes = held

    # Clients come, go and move

    def enter(self, gpu: GpuQueue, client: Client) -> None:
        gpu.clients[client.id] = client
        gpu.programs += client.is_program
        attained.enter(gpu, client, self._line_key(client))

    def leave(self, gpu: GpuQueue, client: Client) -> None:
        del gpu.clients[client.id]
        gpu.turns.hung.pop(client.id, None)
        gpu.programs -= client.is_program
        self._count_resident(gpu, client, 0)
        gpu.phases.coruns.forget(client.id)
        key = self._line_key(client)
        # A client without an owner does not come back.
        attained.leave(gpu, client, key, remember=key != client_name(client.id))

    def _line_key(self, client: Client) -> str:
        return client.owner if self._terms.fair_between_owners else client_name(client.id)

    def _count_resident(self, gpu: GpuQueue, client: Client, resident_bytes: int) -> None:
        gpu.memory.resident_bytes += resident_bytes - client.memory.resident_bytes
        client.memory.resident_bytes = resident_bytes
        gpu.memory.client_limit_bytes = max(0, gpu.memory.safe_limit_bytes - gpu.memory.resident_bytes)

    def move(self, client: Client, target: GpuQueue, now: float) -> None:
        """Moves a client to another GPU as it is: standing, turn, wait and debt. Both queues must be ordered again."""
        source, id = client.gpu, client.id
        if id in source.turns.hung:
            target.turns.hung[id] = client
        served_s = attained.service_s(client.service.line, now)
        self.leave(source, client)
        self.enter(target, client)
        attained.carry(client, source, served_s, target)
        if client.turn.revoked:
            source.memory.held_bytes -= client.memory.held_bytes
            target.memory.held_bytes += client.memory.held_bytes
            target.turns.revoked[id] = source.turns.revoked.pop(id)
        self._quotas.move(client, target, now)
        if client.standing is WAITING:
            attained.move(client, source, target)
        elif client.standing is THROTTLED:
            target.turns.throttled[id] = source.turns.throttled.pop(id)
            self._quotas.find_refill(source)
            self._quotas.find_refill(target)
        elif client.standing is RUNNING:
            client.turn.billed_s += source.turns.clock.billed_s - client.turn.mark_s
            client.turn.mark_s = target.turns.clock.billed_s
            self._vacate(source, client)
            self._occupy(target, client)
            source.turns.changed_s = target.turns.changed_s = now
            if client.turn.drop_s is not None:
                target.turns.draining[id] = source.turns.draining.pop(id)
        self.change_need(client)

    def order_again(self, gpu: GpuQueue, now: float) -> None:
        """Clients came from another queue: the turns are in the order in which they began."""
        gpu.turns.running = dict(sorted(gpu.turns.running.items(), key=lambda item: item[1].turn.begun_s))
        attained.order_again(gpu, now)

    def _occupy(self, gpu: GpuQueue, client: Client) -> None:
        memory, needed = gpu.memory, client.memory
        gpu.turns.running[client.id] = client
        gpu.turns.programs += client.is_program
        gpu.turns.clock.running += 1
        memory.running_bytes += needed.need_bytes
        memory.managed_bytes += needed.used_bytes
        if memory.managed_bytes > memory.peak_managed_bytes:
            memory.peak_managed_bytes = memory.managed_bytes
        memory.running_blind += needed.blind

    def _vacate(self, gpu: GpuQueue, client: Client) -> None:
        memory, needed = gpu.memory, client.memory
        del gpu.turns.running[client.id]
        gpu.turns.programs -= client.is_program
        gpu.turns.clock.running -= 1
        memory.running_bytes -= needed.need_bytes
        memory.managed_bytes -= needed.used_bytes
        memory.running_blind -= needed.blind


def _confirmed_bytes(client: Client) -> int:
    """How much of a revoked client's need counts: it ignores orders, so its own claim is not trusted."""
    return min(client.memory.need_bytes, client.memory.nvml_bytes or 0)


def _open_window(turn: ClientTurn, clock: TurnClock) -> None:
    """Records what the client had been billed when the present window began."""
    turn.window_end_s = clock.window_end_s
    turn.window_base_s = turn.billed_s + max(0.0, clock.window_billed_s - turn.mark_s)


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
        if client.turn.wait_for_mem_sent:
            client.turn.wait_for_mem_sent = False
            gpu.turns.mem_available += 1
            actions.append(Send(client, MessageType.MEM_AVAILABLE))
        actions.append(client.lock_ok)

    def drop(self, gpu: GpuQueue, client: Client, reason: DropReason, now: float, actions: list[Action]) -> None:
        """Sends the first DROP_LOCK of a turn."""
        if client.quota.bucket is not None:
            self._quotas.settle(client, now)
        client.turn.drop_s = now
        client.turn.drop_again_s = now + DROP_RESEND_S
        client.turn.drop_reason = reason
        gpu.turns.draining[client.id] = client
        gpu.turns.drops[reason] += 1
        actions.append(Send(client, MessageType.DROP_LOCK))

    def drop_again(self, gpu: GpuQueue, client: Client, now: float, actions: list[Action]) -> None:
        """The client has not answered."""
        client.turn.drop_again_s = now + DROP_RESEND_S
        gpu.turns.drops[client.turn.drop_reason] += 1
        actions.append(Send(client, MessageType.DROP_LOCK))
