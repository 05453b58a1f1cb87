"""Every rule of whose turn it is. Pure: (event, now) in, actions out; no clock, socket or thread.

An event is a method call: it changes the state, then the GPU that it touched is evaluated again, at once and
in full, and what came of it is returned. `deadline_s` of a GPU says when `tick` must be called next.

The rules, in the order in which `_evaluate` applies them:

 1. Pressing. A client that does not answer DROP_LOCK is told again every `drop_resend_s`. After
    `revoke_after_s` its turn ends in the accounts (revoked); the memory it holds still counts; `fence` closes
    its socket.
 2. Overload. Running clients grew past the safe limit: all but the oldest are dropped (memory), and nobody
    joins until what runs is down to 90 % of the limit, or alone.
 3. Refill. A throttled client may run again once its bucket is refilled; it queues from then on.
 4. Spending. A running client whose core quota is spent is dropped (quota). Limits that sum above 100 among
    those that want to run are scaled down in proportion. `work_conserving`: not while it is alone and nobody
    waits.
 5. Admission. First come, first served. A client may run if nothing runs, or if it fits beside what runs:
      - serial: nothing fits. v1 clients do not tell their memory: they run alone, except in concurrent mode.
      - memory: the needs (D + O_base) of all that run, with what revoked clients hold, stay within the safe
        limit.
      - auto, while the GPU's utilisation is known: the demands sum to at most `corun_limit`. A client of
        unknown demand runs alone until it is measured; one per GPU is measured again each `solo_refresh_s`.
    One that does not fit may be passed by later ones that do, until it has waited `max_bypass_s` or somebody
    was just asked to go: then the room is kept for it. Who waits for memory is told WAIT_FOR_MEM once, and
    MEM_AVAILABLE before LOCK_OK.
 6. Making room. While the first in the queue waits for room, the oldest turns that must end for it are
    dropped (quantum), all at once, when each of them has had its quantum. It is `turn_quantum_s` where only
    demand is in the way and all that want to run fit into memory; else it grows with the memory to be moved.

Each GPU has its own queue, by UUID. Clients whose GPU is not known yet share one queue, whatever they name: two
clients that may mean the same GPU are never in two queues, so they never both have an exclusive turn. Once their GPUs
are known:

 7. Moving. All such clients go to the queues of their GPUs at once, with their turns, waits and debts, before any
    queue is served again. Where a turn arrives on a GPU that has turns of its own, all but the oldest are dropped
    (quantum); the admission rules count every one of them until it is released.

Repeats are harmless: REQ_LOCK of a runner is answered again, of a waiter ignored; LOCK_RELEASED out of turn
is ignored; all are counted in `refusals`. While the scheduler is off every client runs free, unbilled.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import islice
from operator import attrgetter
from typing import Final

from gpucommons.scheduler.policy import demand
from gpucommons.scheduler.policy.billing import EPSILON_S, TurnClock
from gpucommons.scheduler.policy.settings import GIB, Mode, PolicySettings, SwitchTime
from gpucommons.scheduler.policy.settings import Fence as FenceMode
from gpucommons.scheduler.policy.shares import Shares
from gpucommons.scheduler.policy.state import (
    NEVER,
    Action,
    Client,
    ClientStanding,
    Disconnect,
    DropReason,
    GpuQueue,
    Send,
)
from gpucommons.scheduler.protocol.wire import MessageType

IDLE, WAITING, THROTTLED, RUNNING = (
    ClientStanding.IDLE,
    ClientStanding.WAITING,
    ClientStanding.THROTTLED,
    ClientStanding.RUNNING,
)
LOCK_OK, DROP_LOCK = MessageType.LOCK_OK, MessageType.DROP_LOCK
SERIAL, CONCURRENT, AUTO = Mode.SERIAL, Mode.CONCURRENT, Mode.AUTO

# Overload ends, and a client dropped by it may join others again, only this far below the safe limit.
_REFIT_RATIO: Final = 0.9
# How many waiters are looked at for one that fits: bounds the work of one message.
_BYPASS_WINDOW: Final = 64


class Block(StrEnum):
    """Why a client that asked does not run."""

    QUOTA = "quota"
    TURN = "turn"
    MEMORY = "memory"
    DEMAND = "demand"
    SOLO = "solo"


class Policy:
    """The state of all GPUs and clients, and the events that move it."""

    def __init__(self, settings: PolicySettings) -> None:
        self.settings = settings
        self.mode = settings.mode
        self._serial = settings.mode is SERIAL
        self.on = True
        self.operator_quantum_s: float | None = None
        self.gpus: dict[str, GpuQueue] = {}
        self.clients: dict[int, Client] = {}
        self.refusals: Counter[str] = Counter()
        self._shares = Shares(settings)
        self._corun_milli = round(settings.corun_limit * 1000)
        self._shortest_quantum_s = (
            settings.switch_time_fixed_s
            if settings.switch_time_mode is SwitchTime.FIXED
            else settings.switch_time_min_s
        )

    # Events: devices

    def add_gpu(self, key: str, index: int | None, now: float) -> GpuQueue:
        gpu = GpuQueue(key, index, now, self.settings.compute_window_s)
        self.gpus[key] = gpu
        self._set_total(gpu, self.settings.default_gpu_memory_bytes, known=False)
        return gpu

    def remove_gpu(self, gpu: GpuQueue) -> None:
        """Only one without clients can go."""
        if not gpu.clients:
            del self.gpus[gpu.key]

    def resize(self, gpu: GpuQueue, total_bytes: int, now: float) -> list[Action]:
        """NVML told how much memory the device has."""
        self._set_total(gpu, total_bytes, known=True)
        return self._after(gpu, now)

    def sample_busy(self, gpu: GpuQueue, busy_ratio: float, window_s: float, now: float) -> list[Action]:
        """The device was busy for this share of the last `window_s`."""
        actions: list[Action] = []
        demand.sampled(gpu, window_s, now)
        gpu.clock.advance(now)
        measured = demand.measured_client(gpu, window_s, now)
        if measured is not None:
            demand.learn(gpu, measured, busy_ratio, now)
        elif self.mode is AUTO:
            self._refresh_demand(gpu, now, actions)
        self._evaluate(gpu, now, actions)
        return actions

    # Events: clients

    def register(self, client: Client, now: float, core_percent: int = 100, memory_bytes: int = 0) -> list[Action]:
        """A new client with its limits (100 and 0: none). It is told its status before anything else."""
        self.clients[client.id] = client
        client.gpu.clients[client.id] = client
        self._shares.limit(client, core_percent, now)
        return [self.status_of(client), *self.limit_memory(client, memory_bytes, now)]

    def request(self, client: Client, now: float) -> Sequence[Action]:
        gpu = client.gpu
        nobody_joins = gpu.running if self._serial else self._nothing_fits(gpu)
        if (
            nobody_joins
            and gpu.plain
            and client.standing is IDLE
            and client.bucket is None
            and (gpu.waiting or self._first_in_line(gpu, client, now))
        ):
            # It queues, and nothing else changes.
            client.wait_s = client.eligible_s = now
            client.standing = WAITING
            gpu.waiting[client.id] = client
            return ()
        actions: list[Action] = []
        if client.standing is not IDLE:
            self._repeated_request(client, actions)
        elif not self.on:
            actions.append(client.lock_ok)
        else:
            gpu.clock.advance(now)
            self._want(gpu, client, now)
            self._evaluate(gpu, now, actions)
            if client.standing is WAITING and client.version == 2 and not client.told_to_wait:
                self._tell_to_wait(gpu, client, now, actions)
        return actions

    def _first_in_line(self, gpu: GpuQueue, client: Client, now: float) -> bool:
        """The first to wait for an exclusive turn: notes when that may have to end. False if it may already."""
        due = next(iter(gpu.running.values())).turn_s + self._shortest_quantum_s
        if due <= now:
            return False
        gpu.deadline_s = min(gpu.deadline_s, due)
        if len(gpu.running) == 1 and (self._serial or client.version == 1):
            gpu.heir = client
        return True

    def release(self, client: Client, now: float) -> Sequence[Action]:
        gpu = client.gpu
        actions: list[Action] = []
        gpu.clock.advance(now)
        if client.standing is RUNNING:
            self._end_turn(gpu, client, now)
            if client.asked_again:
                self._want(gpu, client, now)
        elif client.revoked:
            self.refusals["release_after_revocation"] += 1
            self._forget_revocation(gpu, client)
        else:
            self.refusals["release_out_of_turn"] += 1
            return actions
        self._evaluate(gpu, now, actions)
        return actions

    def hand_over(self, old: Client, new: Client, now: float) -> None:
        """A release where `new` is the GPU's heir and was sent LOCK_OK: what release would do, in one go."""
        gpu = old.gpu
        clock = gpu.clock
        if now >= clock.window_end_s:
            clock.advance(now)
        if old.window_end_s != clock.window_end_s:
            self._open_window(old, clock)
        # One client runs before and after: the clock needs no setting, it goes as the wall's.
        billed = clock.billed_s + now - clock.at_s
        old.billed_s += billed - old.turn_mark_s
        old.turns += 1
        old.standing = IDLE
        gpu.handovers.extend((now - old.turn_s, now - new.wait_s))
        running = gpu.running
        del running[old.id]

        id = new.id
        del gpu.waiting[id]
        running[id] = new
        new.standing = RUNNING
        new.turn_s = now
        new.turn_mark_s = billed
        need = gpu.running_bytes = new.need_bytes
        if need > gpu.peak_running_bytes:
            gpu.peak_running_bytes = need
        gpu.running_v1 = 2 - new.version
        gpu.demand_milli = new.demand_milli or 0
        gpu.heir = heir = self._find_heir(gpu)
        gpu.deadline_s = NEVER if heir is None and not gpu.waiting else now + self._shortest_quantum_s

    def disconnect(self, client: Client, now: float) -> list[Action]:
        gpu = client.gpu
        gpu.clock.advance(now)
        if client.standing is RUNNING:
            self._end_turn(gpu, client, now)
        else:
            self._stop_wanting(gpu, client, now)
        self._forget_revocation(gpu, client)
        del self.clients[client.id]
        del gpu.clients[client.id]
        return self._after(gpu, now)

    def move(self, moves: Sequence[tuple[Client, GpuQueue]], now: float) -> list[Action]:
        """The GPUs of these clients are known now: each goes on there, as it stands."""
        sources = {client.gpu.key: client.gpu for client, _ in moves}
        targets = {gpu.key: gpu for _, gpu in moves}
        touched = (sources | targets).values()
        for gpu in touched:
            gpu.clock.advance(now)
        occupied = {key for key, gpu in targets.items() if gpu.running}
        met = {gpu.key for client, gpu in moves if client.standing is RUNNING} & occupied
        # Nothing is evaluated before the last has moved: a waiter must not pass a turn that is still on its way.
        for client, gpu in moves:
            self._move(client, gpu, now)
        actions: list[Action] = []
        for key, gpu in targets.items():
            gpu.waiting = dict(sorted(gpu.waiting.items(), key=lambda item: item[1].eligible_s))
            gpu.running = dict(sorted(gpu.running.items(), key=lambda item: item[1].turn_s))
            if key in met:
                self._keep_oldest(gpu, DropReason.QUANTUM, now, actions)
        for gpu in touched:
            self._evaluate(gpu, now, actions)
        return actions

    def update_memory(self, client: Client, used_bytes: int, now: float) -> list[Action]:
        client.used_bytes = used_bytes
        if used_bytes > client.peak_bytes:
            client.peak_bytes = used_bytes
        return self._need_changed(client, now)

    def update_overhead(self, client: Client, overhead_bytes: int, now: float) -> list[Action]:
        client.overhead_bytes = overhead_bytes
        return self._need_changed(client, now)

    def limit_core(self, client: Client, percent: int, now: float) -> list[Action]:
        """100 means no limit."""
        if percent == client.core_limit_percent:
            return []
        gpu = client.gpu
        gpu.clock.advance(now)
        self._shares.limit(client, percent, now)
        if client.standing is THROTTLED and client.bucket is None:
            self._requeue(gpu, client, now)
        actions = self._after(gpu, now)
        if client.version == 2:
            actions.insert(0, Send(client, MessageType.UPDATE_CORE_LIMIT, percent))
        return actions

    def limit_memory(self, client: Client, limit_bytes: int, now: float) -> list[Action]:
        """0 means no limit. The client enforces it; what it may hold changes nothing of what it does hold."""
        if limit_bytes == client.memory_limit_bytes:
            return []
        client.memory_limit_bytes = limit_bytes
        return [Send(client, MessageType.UPDATE_LIMIT, limit_bytes)] if client.version == 2 else []

    # Events: the operator, and time

    def switch(self, on: bool, now: float) -> list[Action]:
        """Off ends every turn and empties every queue: each client believes to hold the lock."""
        if on == self.on:
            return []
        self.on = on
        for gpu in self.gpus.values():
            gpu.clock.advance(now)
            for client in list(gpu.running.values()):
                self._end_turn(gpu, client, now)
            for client in (*gpu.waiting.values(), *gpu.throttled.values()):
                self._stop_wanting(gpu, client, now)
            for client in list(gpu.revoked.values()):
                self._forget_revocation(gpu, client)
            self._evaluate(gpu, now, [])
        return [self.status_of(client) for client in self.clients.values()]

    def set_quantum(self, seconds: float, now: float) -> list[Action]:
        self.operator_quantum_s = self._shortest_quantum_s = seconds
        return self._everywhere(now)

    def set_mode(self, mode: Mode, now: float) -> list[Action]:
        self.mode = mode
        self._serial = mode is SERIAL
        actions: list[Action] = []
        for gpu in self.gpus.values():
            gpu.clock.advance(now)
            demand.end_solo(gpu)
            if mode is SERIAL:
                self._keep_oldest(gpu, DropReason.QUANTUM, now, actions)
            self._evaluate(gpu, now, actions)
        return actions

    def tick(self, now: float) -> list[Action]:
        """A deadline has come. Early or needless calls change nothing."""
        actions: list[Action] = []
        for gpu in self.gpus.values():
            if gpu.deadline_s <= now:
                gpu.clock.advance(now)
                self._evaluate(gpu, now, actions)
        return actions

    def next_deadline_s(self) -> float:
        return min((gpu.deadline_s for gpu in self.gpus.values()), default=NEVER)

    # Questions

    def status_of(self, client: Client) -> Send:
        message = MessageType.SCHED_ON if self.on else MessageType.SCHED_OFF
        return Send(client, message, client.core_limit_percent)

    def why_waiting(self, client: Client, now: float) -> Block | None:
        """What holds up a client that asked; None if it does not wait (or is about to run)."""
        if client.standing is THROTTLED:
            return Block.QUOTA
        if client.standing is not WAITING:
            return None
        return self._blocked(client.gpu, client, now)

    def quantum_s(self, holder: Client, front: Client, why: Block) -> float:
        """How long `holder` may go on while `front` waits for its room."""
        settings = self.settings
        if self.operator_quantum_s is not None:
            return self.operator_quantum_s
        if why is Block.DEMAND or why is Block.SOLO:
            # Turns that end in a switch of memory are long. If the others were short, who has those would get next to
            # nothing: all are long, unless nobody's memory has to be moved.
            # Nor is a client of known demand kept waiting for long to be measured again.
            biggest = front.gpu.biggest_waiter
            if biggest is None or (why is Block.SOLO and front.demand_milli is not None):
                return settings.turn_quantum_s
            front = biggest
        if settings.switch_time_mode is SwitchTime.FIXED:
            return settings.switch_time_fixed_s
        moved_gib = max(holder.used_bytes, front.used_bytes) / GIB
        wanted = settings.switch_time_s_per_gib * moved_gib
        return min(max(wanted, settings.switch_time_min_s), settings.switch_time_max_s)

    def knows_demand(self, gpu: GpuQueue, now: float) -> bool:
        """Whether `auto` has something to decide by."""
        return self.mode is AUTO and now < gpu.busy_until_s

    # Evaluation

    def _after(self, gpu: GpuQueue, now: float) -> list[Action]:
        actions: list[Action] = []
        gpu.clock.advance(now)
        self._evaluate(gpu, now, actions)
        return actions

    def _everywhere(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for gpu in self.gpus.values():
            gpu.clock.advance(now)
            self._evaluate(gpu, now, actions)
        return actions

    def _evaluate(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        """Applies every rule to one GPU. The turn clock must stand at `now`."""
        if gpu.draining:
            self._press(gpu, now, actions)
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
        elif gpu.throttled and not gpu.running and self.settings.work_conserving:
            self._lend(gpu, now, actions)
        if gpu.draining:
            deadline = min(deadline, self._pressing_due(gpu))
        if gpu.limited:
            deadline = min(deadline, self._shares.due(gpu, now))
        if gpu.solo is not None:
            deadline = min(deadline, gpu.solo_until_s)
        gpu.deadline_s = deadline
        gpu.plain = not (
            gpu.draining or gpu.limited or gpu.revoked or gpu.solo or gpu.overloaded or self.knows_demand(gpu, now)
        )
        gpu.heir = self._find_heir(gpu)

    def _serve(self, gpu: GpuQueue, now: float, actions: list[Action]) -> float:
        """Admits all that may run; then makes room for the first that may not. Returns when to look again."""
        waiting = gpu.waiting
        gpu.biggest_waiter = None
        while waiting:
            first = next(iter(waiting.values()))
            if self._blocked(gpu, first, now) is None:
                self._grant(gpu, first, now, actions)
                if len(gpu.running) == 1 and self._nothing_fits(gpu):
                    # The others wait at least the shortest quantum: how long exactly is worked out then.
                    return now + self._shortest_quantum_s if waiting else NEVER
                continue
            front, why, fitting = self._look_down_the_queue(gpu, now)
            if fitting is not None:
                self._grant(gpu, fitting, now, actions)
            elif front is not None:
                if self.mode is AUTO:
                    gpu.biggest_waiter = self._find_biggest_waiter(gpu)
                return self._make_room(gpu, front, why, now, actions)
            else:
                return NEVER
        return NEVER

    def _look_down_the_queue(self, gpu: GpuQueue, now: float) -> tuple[Client | None, Block, Client | None]:
        """The first that what runs holds up, why it does, and the first that may run in passing it."""
        front: Client | None = None
        why = Block.TURN
        for client in islice(gpu.waiting.values(), _BYPASS_WINDOW):
            blocked = self._blocked(gpu, client, now)
            if blocked is None:
                return front, why, client
            if front is None and not self._held_up_by_revoked(gpu, client):
                front, why = client, blocked
                if self._nothing_fits(gpu) or self._room_is_kept(gpu, front, why, now):
                    break
        return front, why, None

    def _find_biggest_waiter(self, gpu: GpuQueue) -> Client | None:
        """None where all that run and wait fit into memory at once: their turns move nothing."""
        waiting = list(islice(gpu.waiting.values(), _BYPASS_WINDOW))
        needed = gpu.running_bytes + gpu.held_bytes + sum(client.need_bytes for client in waiting)
        if needed <= gpu.safe_limit_bytes and all(client.version == 2 for client in waiting):
            return None
        return max(waiting, key=attrgetter("used_bytes"))

    def _find_heir(self, gpu: GpuQueue) -> Client | None:
        """Who runs next if the one that runs lets go, where that is plain to see: turns are exclusive, and
        neither quota, drain nor measurement has a say."""
        if not gpu.plain or len(gpu.running) != 1:
            return None
        for first in gpu.waiting.values():
            exclusive = self._serial or (first.version == 1 and self.mode is not CONCURRENT)
            return first if exclusive and not first.told_to_wait else None
        return None

    def _blocked(self, gpu: GpuQueue, client: Client, now: float) -> Block | None:
        """Why this client may not run now, quota aside; None: it may."""
        if not gpu.running:
            return Block.MEMORY if self._held_up_by_revoked(gpu, client) else None
        if self._nothing_fits(gpu):
            return Block.TURN
        if client.version == 1 and self.mode is not CONCURRENT:
            return Block.TURN
        wanted = gpu.running_bytes + gpu.held_bytes + client.need_bytes
        if gpu.overloaded or wanted > self._room_for(gpu, client):
            return Block.MEMORY
        if self.knows_demand(gpu, now):
            if gpu.solo is not None or demand.must_be_alone(client):
                return Block.SOLO
            if gpu.demand_milli + (client.demand_milli or 0) > self._corun_milli:
                return Block.DEMAND
        return None

    def _nothing_fits(self, gpu: GpuQueue) -> bool:
        """Whether what runs excludes everybody else, whoever asks."""
        if self._serial:
            return bool(gpu.running)
        return gpu.running_v1 > 0 and self.mode is not CONCURRENT

    def _held_up_by_revoked(self, gpu: GpuQueue, client: Client) -> bool:
        """Whether it could not even run alone, for what revoked clients still hold."""
        return gpu.held_bytes > 0 and gpu.held_bytes + client.need_bytes > gpu.safe_limit_bytes

    def _room_for(self, gpu: GpuQueue, client: Client) -> float:
        return gpu.safe_limit_bytes * _REFIT_RATIO if client.must_refit else gpu.safe_limit_bytes

    def _room_is_kept(self, gpu: GpuQueue, front: Client, why: Block, now: float) -> bool:
        """Whether the first waiter has been passed for long enough, or room is being made: not for who just gave it."""
        patience_s = self.settings.drop_resend_s
        if any(client.drop_s is not None and now - client.drop_s < patience_s for client in gpu.draining.values()):
            return True
        limit = self.settings.max_bypass_s
        if limit is None:
            holder = next(iter(gpu.running.values()), front)
            limit = 2 * self.quantum_s(holder, front, why)
        return now - front.eligible_s >= limit

    def _make_room(self, gpu: GpuQueue, front: Client, why: Block, now: float, actions: list[Action]) -> float:
        """Drops what must go for `front` once all of it has had its quantum. Returns when to look again."""
        again = gpu.busy_until_s if why is Block.DEMAND or why is Block.SOLO else NEVER
        if gpu.solo is not None and why is Block.SOLO:
            return again
        victims = self._in_the_way(gpu, front, why)
        if not victims:
            return again
        due = max(victim.turn_s + self.quantum_s(victim, front, why) for victim in victims)
        if due > now + EPSILON_S:
            return min(due, again)
        for victim in victims:
            self._drop(gpu, victim, DropReason.QUANTUM, now, actions)
        return again

    def _in_the_way(self, gpu: GpuQueue, front: Client, why: Block) -> list[Client]:
        """The oldest turns that must end before `front` fits; those already told to end are not named."""
        staying = [client for client in gpu.running.values() if client.drop_s is None]
        if why is Block.TURN or why is Block.SOLO:
            return staying
        need = front.need_bytes + gpu.held_bytes + sum(client.need_bytes for client in staying)
        busy_milli = (front.demand_milli or 0) + sum(client.demand_milli or 0 for client in staying)
        room = self._room_for(gpu, front)
        by_demand = why is Block.DEMAND
        for count, client in enumerate(staying):
            if need <= room and not (by_demand and busy_milli > self._corun_milli):
                return staying[:count]
            need -= client.need_bytes
            busy_milli -= client.demand_milli or 0
        return staying

    # Turns

    def _grant(self, gpu: GpuQueue, client: Client, now: float, actions: list[Action]) -> None:
        del gpu.waiting[client.id]
        if not gpu.running and self.knows_demand(gpu, now) and demand.must_be_alone(client):
            demand.begin_solo(gpu, client, now)
        self._occupy(gpu, client)
        client.standing = RUNNING
        client.turn_s = now
        client.turn_mark_s = gpu.clock.billed_s
        client.must_refit = False
        if client.bucket is not None:
            self._shares.begin_turn(client, now)
        if client.told_to_wait:
            client.told_to_wait = False
            gpu.mem_available += 1
            actions.append(Send(client, MessageType.MEM_AVAILABLE))
        gpu.turns_wait.observe(now - client.wait_s)
        actions.append(client.lock_ok)

    def _open_window(self, client: Client, clock: TurnClock) -> None:
        """Notes what the client had been billed when the present window began."""
        client.window_end_s = clock.window_end_s
        client.window_base_s = client.billed_s + max(0.0, clock.window_billed_s - client.turn_mark_s)

    def _end_turn(self, gpu: GpuQueue, client: Client, now: float) -> None:
        """The turn ends in the accounts. The turn clock must stand at `now`."""
        clock = gpu.clock
        if client.window_end_s != clock.window_end_s:
            self._open_window(client, clock)
        client.billed_s += clock.billed_s - client.turn_mark_s
        client.turns += 1
        if client.bucket is not None:
            self._shares.end_turn(client, now)
        if client.drop_s is not None:
            self._end_drain(gpu, client, now)
        self._vacate(gpu, client)
        demand.turn_ended(gpu, client, now)
        gpu.turns_length.observe(now - client.turn_s)
        client.standing = IDLE

    def _end_drain(self, gpu: GpuQueue, client: Client, now: float) -> None:
        assert client.drop_s is not None
        tail = now - client.drop_s
        gpu.turns_drain.observe(tail)
        client.drop_s = None
        del gpu.draining[client.id]

    def _drop(self, gpu: GpuQueue, client: Client, why: DropReason, now: float, actions: list[Action]) -> None:
        if client.bucket is not None:
            self._shares.settle(client, now)
        client.drop_s = now
        client.drop_again_s = now + self.settings.drop_resend_s
        client.drop_reason = why
        gpu.draining[client.id] = client
        gpu.drops[why] += 1
        actions.append(Send(client, DROP_LOCK))

    def _press(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        for client in list(gpu.draining.values()):
            assert client.drop_s is not None
            if now >= client.drop_s + self.settings.revoke_after_s - EPSILON_S:
                self._revoke(gpu, client, now, actions)
            elif now >= client.drop_again_s - EPSILON_S:
                client.drop_again_s = now + self.settings.drop_resend_s
                gpu.drops[client.drop_reason] += 1
                actions.append(Send(client, DROP_LOCK))

    def _pressing_due(self, gpu: GpuQueue) -> float:
        revoke_after_s = self.settings.revoke_after_s
        return min(
            min(client.drop_again_s, client.drop_s + revoke_after_s)
            for client in gpu.draining.values()
            if client.drop_s is not None
        )

    def _revoke(self, gpu: GpuQueue, client: Client, now: float, actions: list[Action]) -> None:
        self._end_turn(gpu, client, now)
        client.revoked = True
        client.asked_again = False
        gpu.revoked[client.id] = client
        gpu.held_bytes += client.need_bytes
        gpu.drops[DropReason.REVOKED] += 1
        actions.append(Send(client, DROP_LOCK))
        if self.settings.fence is FenceMode.DISCONNECT:
            actions.append(Disconnect(client))

    def _forget_revocation(self, gpu: GpuQueue, client: Client) -> None:
        if client.revoked:
            client.revoked = False
            gpu.held_bytes -= client.need_bytes
            del gpu.revoked[client.id]

    # Moving

    def _move(self, client: Client, target: GpuQueue, now: float) -> None:
        """Takes everything that a client's GPU remembers of it to another GPU, and serves neither."""
        source, id = client.gpu, client.id
        del source.clients[id]
        target.clients[id] = client
        if client.revoked:
            source.held_bytes -= client.need_bytes
            target.held_bytes += client.need_bytes
            target.revoked[id] = source.revoked.pop(id)
        self._shares.move(client, target, now)
        if client.standing is WAITING:
            target.waiting[id] = source.waiting.pop(id)
        elif client.standing is THROTTLED:
            target.throttled[id] = source.throttled.pop(id)
            self._shares.find_refill(source)
            self._shares.find_refill(target)
        elif client.standing is RUNNING:
            client.billed_s += source.clock.billed_s - client.turn_mark_s
            client.turn_mark_s = target.clock.billed_s
            self._vacate(source, client)
            demand.turn_ended(source, client, now)
            self._occupy(target, client)
            # What the device did until now may have been the doing of others.
            target.alone_s = now
            if client.drop_s is not None:
                target.draining[id] = source.draining.pop(id)

    def _occupy(self, gpu: GpuQueue, client: Client) -> None:
        """The client is one of those that run."""
        gpu.running[client.id] = client
        gpu.clock.running += 1
        gpu.running_bytes += client.need_bytes
        if gpu.running_bytes > gpu.peak_running_bytes:
            gpu.peak_running_bytes = gpu.running_bytes
        if client.version == 1:
            gpu.running_v1 += 1
        if client.demand_milli is not None:
            gpu.demand_milli += client.demand_milli

    def _vacate(self, gpu: GpuQueue, client: Client) -> None:
        """It no longer is."""
        del gpu.running[client.id]
        gpu.clock.running -= 1
        gpu.running_bytes -= client.need_bytes
        if client.version == 1:
            gpu.running_v1 -= 1
        if client.demand_milli is not None:
            gpu.demand_milli -= client.demand_milli

    # Wanting

    def _want(self, gpu: GpuQueue, client: Client, now: float) -> None:
        """The client queues. A revoked one that asks has stopped by itself: it blocks nobody any more."""
        if client.revoked:
            self._forget_revocation(gpu, client)
        client.asked_again = False
        client.wait_s = client.eligible_s = now
        client.standing = WAITING
        if client.bucket is not None and self._shares.want(client, now):
            client.standing = THROTTLED
            gpu.throttled[client.id] = client
            self._shares.find_refill(gpu)
        else:
            gpu.waiting[client.id] = client

    def _stop_wanting(self, gpu: GpuQueue, client: Client, now: float) -> None:
        if client.standing is WAITING:
            del gpu.waiting[client.id]
        elif client.standing is THROTTLED:
            del gpu.throttled[client.id]
        else:
            return
        client.standing = IDLE
        client.told_to_wait = False
        self._shares.leave(client, now)

    def _repeated_request(self, client: Client, actions: list[Action]) -> None:
        self.refusals["repeated_request"] += 1
        if client.standing is RUNNING:
            if client.drop_s is None:
                actions.append(client.lock_ok)
            else:
                client.asked_again = True

    def _tell_to_wait(self, gpu: GpuQueue, client: Client, now: float, actions: list[Action]) -> None:
        if self._blocked(gpu, client, now) is Block.MEMORY:
            client.told_to_wait = True
            gpu.wait_for_mem += 1
            actions.append(Send(client, MessageType.WAIT_FOR_MEM))

    # Memory

    def _set_total(self, gpu: GpuQueue, total_bytes: int, *, known: bool) -> None:
        gpu.total_bytes = total_bytes
        gpu.total_known = known
        gpu.safe_limit_bytes = int(total_bytes * (1 - self.settings.memory_reserve_percent / 100))

    def _need_changed(self, client: Client, now: float) -> list[Action]:
        gpu = client.gpu
        need = client.used_bytes + (client.overhead_bytes or 0)
        grown = need - client.need_bytes
        client.need_bytes = need
        if client.standing is RUNNING:
            gpu.running_bytes += grown
            if gpu.running_bytes > gpu.peak_running_bytes:
                gpu.peak_running_bytes = gpu.running_bytes
        elif client.revoked:
            gpu.held_bytes += grown
        return self._after(gpu, now)

    def _check_overload(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        if len(gpu.running) <= 1 or gpu.running_bytes <= gpu.safe_limit_bytes * _REFIT_RATIO:
            gpu.overloaded = False
        elif gpu.running_bytes > gpu.safe_limit_bytes:
            gpu.overloaded = True
            for client in self._keep_oldest(gpu, DropReason.MEMORY, now, actions):
                client.must_refit = True

    def _keep_oldest(self, gpu: GpuQueue, why: DropReason, now: float, actions: list[Action]) -> Iterable[Client]:
        """Back to one at a time: drops all turns but the oldest that was not dropped yet."""
        leaving = [client for client in gpu.running.values() if client.drop_s is None][1:]
        for client in leaving:
            self._drop(gpu, client, why, now, actions)
        return leaving

    # Core quota

    def _check_quotas(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        lend = self.settings.work_conserving and gpu.clock.running == 1 and not gpu.waiting
        for client, bucket in self._shares.spent(gpu, lend, now):
            bucket.borrowing = lend
            if not lend:
                bucket.throttled = True
                self._drop(gpu, client, DropReason.QUOTA, now, actions)

    def _refill(self, gpu: GpuQueue, now: float) -> None:
        for client in self._shares.refilled(gpu, now):
            self._requeue(gpu, client, now)
        self._shares.find_refill(gpu)

    def _requeue(self, gpu: GpuQueue, client: Client, now: float) -> None:
        """A throttled client may run again: it is last in the queue, and its wait for others begins now."""
        del gpu.throttled[client.id]
        gpu.waiting[client.id] = client
        client.standing = WAITING
        client.eligible_s = now
        if client.bucket is not None:
            client.bucket.throttled = False

    def _lend(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        """Nobody else wants the GPU: the throttled client that is nearest to its refill may have it."""
        nearest = min(gpu.throttled.values(), key=lambda client: client.bucket.refilled_s() if client.bucket else 0.0)
        if self._blocked(gpu, nearest, now) is None:
            self._requeue(gpu, nearest, now)
            self._grant(gpu, nearest, now, actions)
            if nearest.bucket is not None:
                nearest.bucket.borrowing = True

    # Demand

    def _refresh_demand(self, gpu: GpuQueue, now: float, actions: list[Action]) -> None:
        """The client measured longest ago gets a solo turn: now if it runs, else when it is next. Where memory will be
        moved it is when it is next: who stepped aside now would begin a new quantum, and who waits wait that longer."""
        client = demand.stalest(gpu, self.settings.solo_refresh_s, now)
        if client is None:
            return
        gpu.refreshed_s = now
        client.refresh_demand = True
        if client.standing is RUNNING and client.drop_s is None and gpu.biggest_waiter is None:
            demand.begin_solo(gpu, client, now)
            for other in gpu.running.values():
                if other is not client and other.drop_s is None:
                    self._drop(gpu, other, DropReason.QUANTUM, now, actions)
