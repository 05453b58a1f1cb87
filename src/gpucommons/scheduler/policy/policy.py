"""The events of the scheduler: each changes the state, evaluates the GPU that it touched and returns the actions.

The rules are in the package's docstring.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from gpucommons.base.peers import ClientProcess
from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.model.gpu import DeviceActivity
from gpucommons.model.sharing import WaitReason
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.policy import attained
from gpucommons.scheduler.policy.core_limits import CoreQuotas
from gpucommons.scheduler.policy.evaluation import (
    Evaluation,
    Revocations,
    find_wait_reason,
    is_exclusive,
)
from gpucommons.scheduler.policy.state import (
    DROP_RESEND_S,
    GIB,
    NEVER,
    Action,
    Client,
    ClientStanding,
    DropReason,
    Fence,
    GpuQueue,
    Mode,
    Send,
    Terms,
)
from gpucommons.scheduler.policy.transitions import Transitions
from gpucommons.scheduler.protocol.wire import MessageType

IDLE, WAITING, THROTTLED, RUNNING = (
    ClientStanding.IDLE,
    ClientStanding.WAITING,
    ClientStanding.THROTTLED,
    ClientStanding.RUNNING,
)

# A program that joins has used the GPU unseen for up to this time.
_UNSEEN_S: Final = 2.0
# A process with so many remembered revocations may not connect again until the oldest of them is forgotten.
_REVOCATIONS_TO_REFUSE: Final = 2


class Policy:
    """The state of all GPUs and clients, and the events that change it."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.terms = Terms(settings)
        self.on = True
        self.gpus: dict[str, GpuQueue] = {}
        self.clients: dict[int, Client] = {}
        self.refusals: Counter[str] = Counter()
        self._quotas = CoreQuotas(settings)
        self._transitions = Transitions(self._quotas, self.terms)
        self._revocations = Revocations()
        self._evaluation = Evaluation(self.terms, self._quotas, self._transitions, self._revocations)
        self._phasing = self._evaluation.phasing

    # Devices

    def add_gpu(self, key: str, index: int | None, now: float) -> GpuQueue:
        settings = self.settings
        gpu = GpuQueue(key, index, now, settings.compute_window_ms / 1000, settings.turn_gain_percent / 100)
        self.gpus[key] = gpu
        self._set_total(gpu, int(self.settings.default_gpu_memory_gb * GIB), known=False)
        return gpu

    def remove_gpu(self, gpu: GpuQueue) -> None:
        """A GPU with clients stays."""
        if not gpu.clients:
            del self.gpus[gpu.key]

    def resize(self, gpu: GpuQueue, total_bytes: int, now: float) -> list[Action]:
        """NVML reported how much memory the device has."""
        self._set_total(gpu, total_bytes, known=True)
        for client in gpu.clients.values():
            self._transitions.change_need(client)
        return self._evaluation.advance((gpu,), now)

    def sample_busy(self, gpu: GpuQueue, busy_ratio: float, window_s: float, now: float) -> list[Action]:
        """The device was busy for this share of the last `window_s`."""
        self._phasing.sample_busy(gpu, busy_ratio, window_s, now)
        return self._evaluation.advance((gpu,), now)

    def sample_use(
        self, gpu: GpuQueue, ratios: Mapping[int, float], total: float, unpaused: Mapping[str, float], now: float
    ) -> None:
        """The share of the GPU's time that the processes of each client had since the last reading, and what it was
        used in total, without processes that take no part. `unpaused` is what those of each owner had that could not be
        paused."""
        owners = self._phasing.owners({id: gpu.clients[id] for id in ratios})
        gpu.phases.coruns.record_use(ratios, owners, total, now, unpaused)

    def record_growth(self, client: Client, now: float) -> None:
        """A program has a new process, or is new: it ran until a reading showed it."""
        owners = self._phasing.owners({client.id: client})
        client.gpu.phases.coruns.record_growth(client.id, owners[client.id], now)

    def meter(self, gpu: GpuQueue, available: bool, now: float) -> list[Action]:
        """Whether the activity of a phase can be measured on this GPU."""
        self._phasing.meter(gpu, available)
        return self._evaluation.advance((gpu,), now)

    def record_activity(
        self, gpu: GpuQueue, number: int, activity: DeviceActivity, begin_s: float, now: float
    ) -> tuple[tuple[int, ...], list[Action]]:
        """The answer to `Measure`, begun at `begin_s`. Returns the clients that ran, if it counts, and the actions."""
        ran = self._phasing.record_activity(gpu, number, activity, begin_s, now)
        return ran, self._evaluation.advance((gpu,), now)

    # Clients

    def is_fenced(self, process: ClientProcess | None, now: float) -> bool:
        """Whether a new connection of this process is refused: two of its turns were revoked a short while ago."""
        refuses = self.terms.fence is not Fence.NONE
        return refuses and process is not None and self._revocations.count(process, now) >= _REVOCATIONS_TO_REFUSE

    def register(self, client: Client, now: float, core_percent: int = 100, memory_bytes: int = 0) -> list[Action]:
        """A new client with its limits (100 and 0: none). Its status is the first message that it gets."""
        self.clients[client.id] = client
        self._transitions.enter(client.gpu, client)
        self._quotas.limit(client, core_percent, now)
        return [self.status_of(client), *self.limit_memory(client, memory_bytes, now)]

    def request(self, client: Client, now: float) -> Sequence[Action]:
        gpu = client.gpu
        terms = self.terms
        if (
            (gpu.turns.running if terms.serial else is_exclusive(terms, gpu))
            and gpu.fast_path
            and client.standing is IDLE
            and client.quota.bucket is None
        ):
            self._transitions.enqueue_unlimited(gpu, client, now)
            if gpu.order.first_waiting() is not client or self._evaluation.becomes_first(gpu, now):
                # It queues, and nothing else changes.
                return ()
            return self._evaluation.advance((gpu,), now)
        actions: list[Action] = []
        if client.standing is not IDLE:
            self._answer_repeated_request(client, actions)
        elif not self.on:
            actions.append(client.lock_ok)
        else:
            gpu.turns.clock.advance(now)
            self._transitions.enqueue(gpu, client, now)
            self._evaluation.evaluate(gpu, now, actions)
            if client.standing is WAITING and client.version == 2 and not client.turn.wait_for_mem_sent:
                self._send_wait_for_mem(gpu, client, now, actions)
        return actions

    def _answer_repeated_request(self, client: Client, actions: list[Action]) -> None:
        self.refusals["repeated_request"] += 1
        if client.standing is RUNNING:
            if client.turn.drop_s is None:
                actions.append(client.lock_ok)
            else:
                self._transitions.request_again(client)

    def _send_wait_for_mem(self, gpu: GpuQueue, client: Client, now: float, actions: list[Action]) -> None:
        if find_wait_reason(self.terms, gpu, client, now) is WaitReason.MEMORY:
            self._transitions.wait_for_memory(gpu, client)
            actions.append(Send(client, MessageType.WAIT_FOR_MEM))

    def release(self, client: Client, now: float) -> Sequence[Action]:
        gpu = client.gpu
        actions: list[Action] = []
        gpu.turns.clock.advance(now)
        if client.standing is RUNNING:
            self._transitions.end_turn(gpu, client, now)
            if client.turn.requested_again:
                self._transitions.enqueue(gpu, client, now)
        elif client.turn.revoked:
            self.refusals["release_after_revocation"] += 1
            self._transitions.forget_revocation(gpu, client)
        else:
            self.refusals["release_out_of_turn"] += 1
            return actions
        self._evaluation.evaluate(gpu, now, actions)
        return actions

    # Programs: they do not request or release by themselves

    def join(self, client: Client, now: float) -> list[Action]:
        """A program competes for the GPU from now on. It runs already: it is not stopped before a rule says so."""
        if client.standing is not IDLE or not self.on:
            return []
        if not client.gpu.phases.coruns.is_light(client.id):
            client.gpu.phases.coruns.forget_since(now - _UNSEEN_S)
        self._begin_unasked(client, now)
        return self._evaluation.advance((client.gpu,), now)

    def rejoin(self, client: Client, now: float) -> list[Action]:
        """A program that its user had stopped goes on, and competes again. It does what it did: what was measured of it
        stands."""
        if client.standing is not IDLE or not self.on:
            return []
        self._begin_unasked(client, now)
        return self._evaluation.advance((client.gpu,), now)

    def _begin_unasked(self, client: Client, now: float) -> None:
        gpu = client.gpu
        gpu.turns.clock.advance(now)
        self._transitions.forget_revocation(gpu, client)
        self._transitions.enqueue_unlimited(gpu, client, now)
        if client.quota.bucket is not None:
            self._quotas.request(client, now)
        self._transitions.begin_turn(gpu, client, now)

    def record_resume(self, client: Client, again_s: float, now: float) -> list[Action]:
        """A waiting program was resumed against the rules: it runs, and no rule stops it before `again_s`."""
        gpu = client.gpu
        if client.standing is WAITING or client.standing is THROTTLED:
            gpu.turns.clock.advance(now)
            self._transitions.dequeue(gpu, client, now)
            self._transitions.keep(client, again_s)
            self._begin_unasked(client, now)
        return self._evaluation.advance((gpu,), now)

    def withdraw(self, client: Client, now: float) -> list[Action]:
        """A program no longer competes, and runs freely: its wait or turn ends."""
        gpu = client.gpu
        gpu.turns.clock.advance(now)
        gpu.phases.coruns.rest(client.id)
        if client.standing is RUNNING:
            self._transitions.end_turn(gpu, client, now)
        else:
            self._transitions.dequeue(gpu, client, now)
        return self._evaluation.advance((gpu,), now)

    def record_pause(self, client: Client, now: float) -> Sequence[Action]:
        """A program was stopped as requested: its turn ends, and it waits for the next."""
        if client.standing is RUNNING:
            self._transitions.request_again(client)
            return self.release(client, now)
        # Its turn was revoked before it stopped.
        return self.request(client, now) if client.turn.revoked else ()

    def record_pause_failure(self, client: Client, again_s: float, now: float) -> list[Action]:
        """A program could not be stopped: its turn continues, and no rule stops it before `again_s`."""
        gpu = client.gpu
        if client.turn.drop_s is not None:
            self._transitions.continue_turn(gpu, client)
            self._transitions.keep(client, again_s)
        return self._evaluation.advance((gpu,), now)

    def hang(self, client: Client, now: float) -> list[Action]:
        """The driver's call for a program does not return: no other waits for it. They run together meanwhile."""
        self._transitions.hang(client)
        return self._evaluation.advance((client.gpu,), now)

    def record_return(self, client: Client, now: float) -> list[Action]:
        """The call has returned."""
        self._transitions.record_return(client)
        return self._evaluation.advance((client.gpu,), now)

    def hand_over(self, old: Client, new: Client, now: float) -> None:
        """A release where `new` is the GPU's `next_client` and was sent LOCK_OK: the same as `release`, but faster."""
        self._evaluation.hand_over(old, new, now)

    def disconnect(self, client: Client, now: float) -> list[Action]:
        gpu = client.gpu
        gpu.turns.clock.advance(now)
        if client.standing is RUNNING:
            if (
                client.turn.drop_s is not None
                and now - client.turn.drop_s >= DROP_RESEND_S
                and client.process is not None
            ):
                # It would have been revoked: a client that connects again just before that is treated the same.
                self._revocations.add(client.process, now)
            self._transitions.end_turn(gpu, client, now)
        else:
            self._transitions.dequeue(gpu, client, now)
        self._transitions.forget_revocation(gpu, client)
        del self.clients[client.id]
        self._transitions.leave(gpu, client)
        return self._evaluation.advance((gpu,), now)

    def move(self, moves: Sequence[tuple[Client, GpuQueue]], now: float) -> list[Action]:
        """The GPUs of these clients became known (rule 8)."""
        sources = {client.gpu.key: client.gpu for client, _ in moves}
        targets = {gpu.key: gpu for _, gpu in moves}
        touched = (sources | targets).values()
        for gpu in touched:
            gpu.turns.clock.advance(now)
        occupied = {key for key, gpu in targets.items() if gpu.turns.running}
        met = {gpu.key for client, gpu in moves if client.standing is RUNNING} & occupied
        # Nothing is evaluated before the last client has moved: a waiting client must not pass a turn that is to come.
        for client, gpu in moves:
            self._transitions.move(client, gpu, now)
        actions: list[Action] = []
        for gpu in touched:
            self._transitions.order_again(gpu, now)
        for key, gpu in targets.items():
            if key in met:
                self._evaluation.keep_oldest(gpu, DropReason.QUANTUM, now, actions)
        for gpu in touched:
            self._evaluation.evaluate(gpu, now, actions)
        return actions

    def update_memory(self, client: Client, claimed_bytes: int, now: float) -> list[Action]:
        self._transitions.claim_memory(client, claimed_bytes)
        return self._evaluation.advance((client.gpu,), now)

    def measure_memory(
        self, client: Client, nvml_bytes: int | None, overhead_bytes: int | None, now: float
    ) -> list[Action]:
        """NVML's value for the client's process, and the overhead that follows from it."""
        if nvml_bytes == client.memory.nvml_bytes and overhead_bytes == client.memory.overhead_bytes:
            return []
        self._transitions.measure_memory(client, nvml_bytes, overhead_bytes)
        return self._evaluation.advance((client.gpu,), now)

    def limit_core(self, client: Client, percent: int, now: float) -> list[Action]:
        """100 means no limit."""
        if percent == client.quota.percent:
            return []
        gpu = client.gpu
        gpu.turns.clock.advance(now)
        self._quotas.limit(client, percent, now)
        if client.standing is THROTTLED and client.quota.bucket is None:
            self._transitions.requeue(gpu, client, now)
        actions = self._evaluation.advance((gpu,), now)
        if client.version == 2:
            actions.insert(0, Send(client, MessageType.UPDATE_CORE_LIMIT, percent))
        return actions

    def set_class(self, client: Client, sharing_class: SharingClass, now: float) -> list[Action]:
        if sharing_class is client.sharing_class:
            return []
        client.sharing_class = sharing_class
        self._phasing.choose_again(client.gpu, now)
        return self._evaluation.advance((client.gpu,), now)

    def hold_back(self, client: Client, now: float) -> None:
        """Others are held back from now on, because this program of class latency works."""
        self._phasing.hold_back(client.gpu, now)

    def record_holdback(self, client: Client, seconds: float, now: float) -> None:
        """They run again, after so long."""
        self._phasing.hold_back(client.gpu, now)
        client.gpu.phases.coruns.record_holdback(client.id, seconds)

    def limit_memory(self, client: Client, limit_bytes: int, now: float) -> list[Action]:
        """0 means no limit. The client enforces it; the memory that it holds now does not change."""
        if limit_bytes == client.memory.limit_bytes:
            return []
        self._transitions.limit_memory(client, limit_bytes)
        return [Send(client, MessageType.UPDATE_LIMIT, limit_bytes)] if client.version == 2 else []

    # The operator, and time

    def switch(self, on: bool, now: float) -> list[Action]:
        """Off ends every turn and empties every queue: each client behaves as if it held the lock."""
        if on == self.on:
            return []
        self.on = on
        for gpu in self.gpus.values():
            gpu.turns.clock.advance(now)
            for client in list(gpu.turns.running.values()):
                gpu.phases.coruns.rest(client.id)
                self._transitions.end_turn(gpu, client, now)
            for client in (*gpu.order.waiting.values(), *gpu.turns.throttled.values()):
                self._transitions.dequeue(gpu, client, now)
            for client in list(gpu.turns.revoked.values()):
                self._transitions.forget_revocation(gpu, client)
            self._evaluation.evaluate(gpu, now, [])
        return [self.status_of(client) for client in self.clients.values()]

    def set_quantum(self, seconds: float | None, now: float) -> list[Action]:
        self.terms.set_quantum(seconds)
        for gpu in self.gpus.values():
            attained.set_lead(gpu, self.terms.longest_quantum_s(gpu.memory.total_bytes))
        return self._evaluation.advance(self.gpus.values(), now)

    def set_mode(self, mode: Mode, now: float) -> list[Action]:
        self.terms.set_mode(mode)
        actions: list[Action] = []
        for gpu in self.gpus.values():
            gpu.turns.clock.advance(now)
            if mode is Mode.SERIAL:
                self._evaluation.keep_oldest(gpu, DropReason.QUANTUM, now, actions)
            self._evaluation.evaluate(gpu, now, actions)
        return actions

    def tick(self, now: float) -> list[Action]:
        """A deadline has passed. An early call changes nothing."""
        return self._evaluation.advance([gpu for gpu in self.gpus.values() if gpu.deadline_s <= now], now)

    def next_deadline_s(self) -> float:
        return min((gpu.deadline_s for gpu in self.gpus.values()), default=NEVER)

    def status_of(self, client: Client) -> Send:
        message = MessageType.SCHED_ON if self.on else MessageType.SCHED_OFF
        return Send(client, message, client.quota.percent)

    def _set_total(self, gpu: GpuQueue, total_bytes: int, *, known: bool) -> None:
        safe_bytes = int(total_bytes * (1 - self.settings.memory_reserve_percent / 100))
        self._transitions.resize(gpu, total_bytes, safe_bytes, known=known)
        attained.set_lead(gpu, self.terms.longest_quantum_s(total_bytes))
