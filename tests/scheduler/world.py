"""A policy with arbitrary clients, and the invariants that are checked after every step.

The world sees only events and actions, and keeps its own accounts: messages sent, clients that may hold the lock,
programs that are stopped, wall time in which a client ran. `check` compares them with the policy's.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.model.gpu import DeviceActivity
from gpucommons.scheduler.policy.evaluation import wait_reason
from gpucommons.scheduler.policy.policy import Policy
from gpucommons.scheduler.policy.state import (
    NEVER,
    PROGRAM,
    Action,
    Client,
    ClientStanding,
    Disconnect,
    GpuQueue,
    Measure,
    Mode,
    client_name,
)
from gpucommons.scheduler.protocol.wire import MessageType, Version

GPU = "GPU-test"
FIRST_S = 1000.0
# Longer than the longest quantum and the longest refill that a step can cause.
PATIENCE_S = 4000.0


@dataclass
class Peer:
    """A client as seen on the wire: whether it may hold the lock, and what it waits for.

    `sm` is its activity alone. A program holds while it takes part and runs, and awaits while it is stopped.
    """

    client: Client
    holds: bool = False
    awaits: bool = False
    must_drop: bool = False
    grants: int = 0
    sm: float = 0.5
    # When it got DROP_LOCK first, and since when it is stopped.
    dropped_s: float = NEVER
    stopped_s: float = NEVER


class World:
    def __init__(self, settings: SchedulerSettings, *, hand_over: bool = True) -> None:
        """`hand_over`: releases use the fast path where there is one, as the server does."""
        self._hand_over = hand_over
        self.now = FIRST_S
        self.policy = Policy(settings)
        self.gpu = self.policy.add_gpu(GPU, 0, self.now)
        self.peers: list[Peer] = []
        self.sent: Counter[MessageType] = Counter()
        self.departed_billed_s = 0.0
        self.busy_s = 0.0
        self.handed_over = 0
        self.log: list[tuple[float, int, str]] = []
        # Measurements that were requested and not answered yet.
        self.measurements: list[Measure] = []
        # The device's activity never exceeds this: clients that would need more are slowed down.
        self.max_activity = 1.0
        # The longest time for which a program was stopped, and how often the pauser resumed one by itself.
        self.longest_pause_s = 0.0
        self.resumed_by_pauser = 0
        self._ids = count(1)
        # Every queue that ever existed: the counts of a removed queue still matter.
        self._queues: dict[int, GpuQueue] = {}

    # Steps

    def join(self, version: Version, core: int, owner: str = "", sm: float = 0.5) -> Peer:
        return self._enter(Client(next(self._ids), self.gpu, version=version, owner=owner), core, sm)

    def start_program(self, core: int, owner: str = "", sm: float = 0.5) -> Peer:
        """A program is seen on the GPU; it does not compete yet."""
        return self._enter(Client(next(self._ids), self.gpu, version=PROGRAM, owner=owner), core, sm)

    def _enter(self, client: Client, core: int, sm: float) -> Peer:
        peer = Peer(client, sm=sm)
        self.peers.append(peer)
        self._perform(self.policy.register(client, self.now))
        self._perform(self.policy.limit_core(client, core, self.now))
        return peer

    def leave(self, peer: Peer) -> None:
        self.peers.remove(peer)
        self._continues(peer)
        actions = self.policy.disconnect(peer.client, self.now)
        self.departed_billed_s += peer.client.turn.billed_s
        self._perform(actions)

    def ask(self, peer: Peer) -> None:
        """A request; a program begins to compete."""
        if peer.client.is_program:
            if self.policy.on and peer.client.standing is ClientStanding.IDLE:
                peer.holds, peer.must_drop, peer.dropped_s = True, False, NEVER
            self._perform(self.policy.join(peer.client, self.now))
            return
        if not peer.holds or peer.must_drop:
            peer.awaits = True
        self._perform(self.policy.request(peer.client, self.now))

    def withdraw(self, peer: Peer) -> None:
        """A program no longer competes, and runs freely."""
        self._continues(peer)
        peer.holds = peer.awaits = peer.must_drop = False
        peer.dropped_s = NEVER
        self._perform(self.policy.withdraw(peer.client, self.now))

    def paused(self, peer: Peer) -> None:
        """The pauser has stopped a program that got DROP_LOCK."""
        peer.holds, peer.awaits, peer.must_drop = False, True, False
        peer.dropped_s, peer.stopped_s = NEVER, self.now
        self._perform(self.policy.record_pause(peer.client, self.now))

    def not_paused(self, peer: Peer, again_s: float) -> None:
        """The pauser could not stop a program that got DROP_LOCK."""
        peer.must_drop, peer.dropped_s = False, NEVER
        self._perform(self.policy.record_pause_failure(peer.client, self.now + again_s, self.now))

    def resumed(self, peer: Peer, again_s: float) -> None:
        """The pauser resumed a program by itself."""
        self._continues(peer)
        peer.holds, peer.awaits = True, False
        peer.grants += 1
        self._perform(self.policy.record_resume(peer.client, self.now + again_s, self.now))

    def rejoin(self, peer: Peer) -> None:
        """Its user has continued a program that had withdrawn because it was stopped."""
        if self.policy.on and peer.client.standing is ClientStanding.IDLE:
            peer.holds, peer.must_drop, peer.dropped_s = True, False, NEVER
        self._perform(self.policy.rejoin(peer.client, self.now))

    def hang(self, peer: Peer, hangs: bool) -> None:
        """The driver's call for a program does not return, or has returned."""
        self._perform((self.policy.hang if hangs else self.policy.record_return)(peer.client, self.now))

    def _continues(self, peer: Peer) -> None:
        if peer.stopped_s < NEVER:
            self.longest_pause_s = max(self.longest_pause_s, self.now - peer.stopped_s)
            peer.stopped_s = NEVER

    def release(self, peer: Peer) -> None:
        """A release; a program is paused if it got DROP_LOCK."""
        if peer.client.is_program:
            if peer.must_drop:
                self.paused(peer)
            return
        peer.holds = peer.must_drop = False
        peer.dropped_s = NEVER
        following = (
            peer.client.gpu.next_client if self._hand_over and peer.client.standing is ClientStanding.RUNNING else None
        )
        if following is None:
            self._perform(self.policy.release(peer.client, self.now))
        else:
            self.policy.hand_over(peer.client, following, self.now)
            self.handed_over += 1
            self._perform([following.lock_ok])

    def memory(self, peer: Peer, used_bytes: int) -> None:
        self._perform(self.policy.update_memory(peer.client, used_bytes, self.now))

    def overhead(self, peer: Peer, overhead_bytes: int) -> None:
        self._perform(self.policy.measure_memory(peer.client, peer.client.memory.nvml_bytes, overhead_bytes, self.now))

    def nvml(self, peer: Peer, nvml_bytes: int | None) -> None:
        client = peer.client
        self._perform(self.policy.measure_memory(client, nvml_bytes, client.memory.overhead_bytes, self.now))

    def limit(self, peer: Peer, core: int) -> None:
        self._perform(self.policy.limit_core(peer.client, core, self.now))

    def mode(self, mode: Mode) -> None:
        self._perform(self.policy.set_mode(mode, self.now))

    def quantum(self, seconds: float) -> None:
        self._perform(self.policy.set_quantum(seconds, self.now))

    def switch(self, on: bool) -> None:
        self._perform(self.policy.switch(on, self.now))

    def busy(self, ratio: float, window_s: float) -> None:
        self._perform(self.policy.sample_busy(self.gpu, ratio, window_s, self.now))

    def resize(self, total_bytes: int) -> None:
        self._perform(self.policy.resize(self.gpu, total_bytes, self.now))

    def meter(self, available: bool) -> None:
        self._perform(self.policy.meter(self.gpu, available, self.now))

    def measured(self, activity: DeviceActivity) -> None:
        """Answers the measurement that was requested last, if it is still open."""
        if self.measurements:
            asked = self.measurements.pop()
            self.measurements.clear()
            begin_s = min(self.now, asked.begin_s)
            self._perform(self.policy.record_activity(asked.gpu, asked.number, activity, begin_s, self.now)[1])

    def advance(self, seconds: float, *, obey: bool = False, delay_s: float = 0.0) -> None:
        """Lets time pass, with every deadline on the way. `obey`: clients that get DROP_LOCK release after `delay_s`,
        and measurements are answered. The pauser resumes what is stopped for longer than `max_pause_s`."""
        end = self.now + seconds
        turns = 0
        while (due := min(self.policy.next_deadline_s(), self._event_s(obey, delay_s))) <= end:
            turns += 1
            assert turns < 100_000, "the policy never stops to set deadlines"
            self._pass_until(max(due, self.now))
            if self.policy.next_deadline_s() <= self.now:
                self._perform(self.policy.tick(self.now))
            if obey:
                self._answer()
                self._obey(delay_s)
            self._resume_overdue()
        self._pass_until(end)

    def _event_s(self, obey: bool, delay_s: float) -> float:
        max_pause_s = self.policy.settings.max_pause_s
        due_s = min((peer.stopped_s + max_pause_s for peer in self.peers), default=NEVER)
        if obey:
            due_s = min(due_s, *(peer.dropped_s + delay_s for peer in self.peers), NEVER)
            due_s = min(due_s, *(asked.end_s for asked in self.measurements[-1:]), NEVER)
        return due_s

    def _answer(self) -> None:
        if self.measurements and self.now >= self.measurements[-1].end_s:
            self.measured(
                DeviceActivity(
                    min(self.max_activity, sum(p.sm for p in self.peers if p.client.id in self.gpu.turns.running))
                )
            )

    def _resume_overdue(self) -> None:
        max_pause_s = self.policy.settings.max_pause_s
        for peer in self.peers:
            if self.now >= peer.stopped_s + max_pause_s:
                self.resumed_by_pauser += 1
                self.resumed(peer, max_pause_s)

    def _pass_until(self, when_s: float) -> None:
        self._queues |= {id(gpu): gpu for gpu in self.policy.gpus.values()}
        self.busy_s += (when_s - self.now) * sum(bool(gpu.turns.running) for gpu in self.policy.gpus.values())
        self.now = when_s

    def _obey(self, delay_s: float = 0.0) -> None:
        for peer in self.peers:
            if self.now >= peer.dropped_s + delay_s:
                self.release(peer)

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Measure):
                self.measurements.append(action)
                continue
            if isinstance(action, Disconnect):
                self.log.append((self.now, action.client.id, "fence"))
                continue
            self.log.append((self.now, action.client.id, action.message.name))
            self.sent[action.message] += 1
            self._receive(next(p for p in self.peers if p.client is action.client), action.message)

    def _receive(self, peer: Peer, message: MessageType) -> None:
        if message is MessageType.LOCK_OK:
            self._continues(peer)
            assert peer.awaits or peer.holds, "a client without a request got the lock"
            peer.holds, peer.awaits, peer.must_drop = True, False, False
            peer.dropped_s = NEVER
            peer.grants += 1
        elif message is MessageType.DROP_LOCK:
            assert peer.holds, "a client without the lock got DROP_LOCK"
            peer.must_drop = True
            peer.dropped_s = min(peer.dropped_s, self.now)
        elif message in (MessageType.SCHED_ON, MessageType.SCHED_OFF):
            self._continues(peer)
            peer.holds, peer.awaits, peer.must_drop = False, False, False
            peer.dropped_s = NEVER
        elif message in (MessageType.WAIT_FOR_MEM, MessageType.MEM_AVAILABLE):
            assert peer.client.version == 2
            assert peer.awaits

    # Invariants

    def check(self) -> None:
        queues = list(self.policy.gpus.values())
        self._queues |= {id(gpu): gpu for gpu in queues}
        on_queues = {id: gpu for gpu in queues for id in gpu.clients}
        assert on_queues == {id: client.gpu for id, client in self.policy.clients.items()}
        assert set(self.policy.clients) == {peer.client.id for peer in self.peers}
        for gpu in queues:
            self._check_memory(gpu)
            self._check_queues(gpu)
            self._check_sums(gpu)
            self._check_no_client_is_forgotten(gpu)
        self._check_accounts()
        self._check_counters()

    def _peers_of(self, gpu: GpuQueue) -> list[Peer]:
        return [peer for peer in self.peers if peer.client.gpu is gpu]

    def _check_memory(self, gpu: GpuQueue) -> None:
        switched = [client for client in gpu.turns.running.values() if not client.is_program]
        if len(switched) > 1:
            running = sum(client.memory.need_bytes for client in switched)
            assert running <= gpu.memory.client_limit_bytes or gpu.memory.overloaded
        else:
            assert not gpu.memory.overloaded
        staying = [client for client in switched if client.turn.drop_s is None]
        if self.policy.terms.mode is Mode.SERIAL or gpu.memory.running_bytes > gpu.memory.client_limit_bytes:
            assert len(staying) <= 1

    def _check_queues(self, gpu: GpuQueue) -> None:
        places = {
            ClientStanding.WAITING: gpu.order.waiting,
            ClientStanding.THROTTLED: gpu.turns.throttled,
            ClientStanding.RUNNING: gpu.turns.running,
        }
        for peer in self._peers_of(gpu):
            client = peer.client
            for standing, place in places.items():
                assert (client.id in place) == (client.standing is standing)
            assert (client.id in gpu.turns.draining) == (client.turn.drop_s is not None)
            assert (client.id in gpu.turns.revoked) == client.turn.revoked
            assert not (client.turn.revoked and client.standing is not ClientStanding.IDLE)
            assert client.turn.wait_for_mem_sent <= (
                client.standing in (ClientStanding.WAITING, ClientStanding.THROTTLED)
            )
            if client.standing is ClientStanding.RUNNING:
                assert peer.holds, "the policy says that it runs, its messages do not"
            if client.is_program:
                waits = client.standing in (ClientStanding.WAITING, ClientStanding.THROTTLED)
                assert waits == (peer.stopped_s < NEVER), "a program waits and was not stopped, or the reverse"
        if gpu.next_client is not None:
            assert gpu.next_client is gpu.order.first_waiting()
            assert len(gpu.turns.running) == 1
            assert not gpu.turns.draining
        self._check_places(gpu)
        starts = [client.turn.begun_s for client in gpu.turns.running.values()]
        assert starts == sorted(starts)

    def _check_places(self, gpu: GpuQueue) -> None:
        """An owner that waits has one place in the queue, at its service; the anchor's owner has none."""
        assert set(gpu.order.lines) == {self._owner(client) for client in gpu.clients.values()}
        anchor = gpu.order.anchor
        assert anchor is None or (anchor.id in gpu.clients and not anchor.is_program)
        for owner, line in gpu.order.lines.items():
            of_owner = [client for client in gpu.clients.values() if self._owner(client) == owner]
            assert line.running == sum(c.standing is ClientStanding.RUNNING and not c.is_program for c in of_owner)
            assert line.has_anchor == (anchor in of_owner)
            waiting = [client for client in of_owner if client.standing is ClientStanding.WAITING]
            assert sorted(client.id for _, _, client in line.waiting) == sorted(client.id for client in waiting)
            assert [client.service.served_s for _, _, client in line.waiting] == sorted(
                client.service.served_s for client in waiting
            )
            assert (line.place is not None) == (bool(waiting) and not line.has_anchor)
            assert line.place is None or (line.place in gpu.order.places and line.place[0] == line.served_s)
        assert len(gpu.order.places) == sum(line.place is not None for line in gpu.order.lines.values())
        assert [served_s for served_s, _, _ in gpu.order.places] == sorted(
            served_s for served_s, _, _ in gpu.order.places
        )
        in_order = list(gpu.order.in_order())
        assert {client.id for client in in_order} == set(gpu.order.waiting)
        assert len(in_order) == len(gpu.order.waiting)
        assert gpu.order.first_waiting() is next(iter(in_order), None)

    def _owner(self, client: Client) -> str:
        return client.owner if self.policy.terms.fair_between_owners else client_name(client.id)

    def _check_sums(self, gpu: GpuQueue) -> None:
        running = list(gpu.turns.running.values())
        assert gpu.turns.clock.running == len(running)
        assert gpu.memory.running_bytes == sum(client.memory.need_bytes for client in running)
        assert (
            gpu.memory.managed_bytes
            == sum(client.memory.used_bytes for client in running)
            <= gpu.memory.peak_managed_bytes
        )
        assert gpu.memory.running_blind == sum(client.memory.blind for client in running)
        assert gpu.turns.programs == sum(client.is_program for client in running)
        assert gpu.programs == sum(client.is_program for client in gpu.clients.values())
        assert gpu.memory.resident_bytes == sum(client.memory.resident_bytes for client in gpu.clients.values())
        assert gpu.memory.client_limit_bytes == max(0, gpu.memory.safe_limit_bytes - gpu.memory.resident_bytes)
        for client in gpu.clients.values():
            assert client.memory.resident_bytes == (client.memory.nvml_bytes or 0 if client.is_program else 0)
            assert not (client.is_program and client.memory.need_bytes)
        assert gpu.memory.held_bytes == sum(client.memory.held_bytes for client in gpu.clients.values())
        for client in gpu.clients.values():
            assert client.memory.held_bytes == (
                min(client.memory.need_bytes, client.memory.nvml_bytes or 0) if client.turn.revoked else 0
            )
            assert client.memory.used_bytes <= gpu.memory.total_bytes or not gpu.memory.total_known
        active = [p.client for p in self._peers_of(gpu) if p.client.standing is not ClientStanding.IDLE]
        limited = {client.id for client in active if client.quota.bucket is not None}
        assert set(gpu.limits.clients) == limited
        assert set(gpu.limits.running) == limited & set(gpu.turns.running)
        assert gpu.limits.percent == sum(gpu.clients[id].quota.percent for id in limited)
        rates = sum(client.quota.bucket.rate for client in active if client.quota.bucket is not None)
        assert rates <= 1.0 + 1e-9

    def _check_accounts(self) -> None:
        """Bills sum to the wall time in which clients ran, over all queues that ever existed."""
        open_turns = 0.0
        for gpu in self.policy.gpus.values():
            gpu.turns.clock.advance(self.now)
            open_turns += sum(gpu.turns.clock.billed_s - client.turn.mark_s for client in gpu.turns.running.values())
        closed = sum(peer.client.turn.billed_s for peer in self.peers) + self.departed_billed_s
        assert abs(closed + open_turns - self.busy_s) < 1e-6 * max(1.0, self.busy_s)
        assert abs(sum(gpu.turns.clock.busy_s for gpu in self._queues.values()) - self.busy_s) < 1e-6 * max(
            1.0, self.busy_s
        )

    def _check_counters(self) -> None:
        queues = list(self._queues.values())
        assert sum(sum(gpu.turns.drops.values()) for gpu in queues) == self.sent[MessageType.DROP_LOCK]
        assert sum(gpu.turns.wait_for_mem for gpu in queues) == self.sent[MessageType.WAIT_FOR_MEM]
        assert sum(gpu.turns.mem_available for gpu in queues) == self.sent[MessageType.MEM_AVAILABLE]

    def _check_no_client_is_forgotten(self, gpu: GpuQueue) -> None:
        """Every waiting client is blocked by a deadline or by another client."""
        for client in gpu.order.waiting.values():
            blocked = wait_reason(self.policy.terms, client, self.now)
            front = gpu.order.first_waiting()
            assert blocked is not None or client is not front, "the first in the queue could run and does not"
        if gpu.order.waiting and not gpu.turns.running:
            assert gpu.turns.revoked, "nothing runs, nothing is in the way, and a client waits"
        if gpu.order.waiting and gpu.turns.running and not gpu.turns.revoked:
            assert gpu.deadline_s < float("inf"), "a client waits, and there is no deadline"
        if gpu.turns.throttled:
            assert gpu.deadline_s < float("inf")
        assert gpu.deadline_s > self.now - 1e-3

    def check_every_client_runs(self) -> None:
        """If clients release when they get DROP_LOCK, every waiting client gets its turn."""
        if not self.policy.on:
            return
        for peer in [p for p in self.peers if p.client.turn.revoked]:
            self.release(peer)
        for _ in range(2):
            self._obey()
        waiting = [p for p in self.peers if p.client.standing in (ClientStanding.WAITING, ClientStanding.THROTTLED)]
        grants = {id(peer): peer.grants for peer in waiting}
        until_s = self.now + PATIENCE_S
        while waiting and self.now < until_s:
            self.advance(min(5.0, until_s - self.now), obey=True)
            waiting = [peer for peer in waiting if peer.grants == grants[id(peer)]]
        assert not waiting, "a waiting client never ran although all others released"
