"""The scheduler's state as one SharingReading: at once, or every second in small steps, so that no turn waits.

It changes nothing.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from time import monotonic
from typing import Final, NamedTuple, TypedDict

from gpucommons.base.text import printable
from gpucommons.model.names import nvshare_client_name, process_name
from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.sharing import (
    ClientSharing,
    GpuSharing,
    HistogramReading,
    LeftAlone,
    ParkingReading,
    PauserReading,
    SharingReading,
    WaitReading,
    WaitReason,
)
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.corun.coruns import Phase, PhaseCause, Way
from gpucommons.scheduler.policy import evaluation
from gpucommons.scheduler.policy.devices import DeviceTable
from gpucommons.scheduler.policy.policy import Policy
from gpucommons.scheduler.policy.quotas import ClientLimits, LimitLookup, PodName
from gpucommons.scheduler.policy.state import NEVER, Client, ClientStanding, GpuQueue, Mode, Terms, client_name
from gpucommons.scheduler.programs.exemptions import Exemption
from gpucommons.scheduler.protocol.wire import MessageType
from gpucommons.scheduler.service.programs import Programs
from gpucommons.scheduler.service.turn_loop import TurnLoop

# The names of clients, from what the agent knows of processes and users. Pure.


@dataclass(frozen=True, slots=True)
class ProcessNames:
    """The finished name of each process on a GPU, the names of users by uid, and the pod of each process on a GPU
    that is known to be in one, or in none."""

    by_key: Mapping[ProcessKey, str] = field(default_factory=dict)
    users: Mapping[int, str] = field(default_factory=dict)
    pods: Mapping[ProcessKey, PodName] = field(default_factory=dict)

    def pod_of(self, client: Client) -> PodName | None:
        process = client.process
        return None if process is None else self.pods.get(ProcessKey(process.pid, process.start_ticks))

    def of_client(self, client: Client) -> str:
        """That of its pod; else of its process, which the kernel identified when it connected."""
        process = client.process
        name = None if process is None else self.by_key.get(ProcessKey(process.pid, process.start_ticks))
        if name is None:
            # It is not on a GPU yet, or the GPUs cannot be read.
            name = _name_of_process(self.users.get(client.uid) or f"uid {client.uid}", client.pid)
        return _name_of_client(client.pod, client.namespace, name)


# Every reading has all names, and they rarely change. As many as there may be clients.
_KEPT_NAMES: Final = 4096
_name_of_client = lru_cache(_KEPT_NAMES)(nvshare_client_name)


@lru_cache(_KEPT_NAMES)
def _name_of_process(owner: str, pid: int) -> str:
    return process_name(owner, "", (pid,) if pid else ())


# The policy's state as the frozen values of model.sharing. It changes nothing.


class QueuePosition(NamedTuple):
    """How many clients are ahead in the queue, the last of them, and how long until that one runs, if known."""

    ahead: int
    previous: Client | None
    previous_expected_s: float | None


FRONT: Final = QueuePosition(0, None, None)


def read_client(
    terms: Terms, client: Client, limits: ClientLimits, position: QueuePosition, now: float, name: str = ""
) -> ClientSharing:
    gpu = client.gpu
    bucket = client.quota.bucket
    running = client.standing is ClientStanding.RUNNING
    effective = 1.0 if bucket is None else bucket.rate
    activity = gpu.phases.coruns.solo_activity(client.id)
    return ClientSharing(
        client_id=client_name(client.id),
        pod=client.pod,
        namespace=client.namespace,
        gpu_uuid=client.device,
        gpu_index=gpu.index,
        protocol_version=client.version,
        pid=client.pid,
        uid=client.uid,
        gid=client.gid,
        standing=client.standing.value,
        revoked=client.turn.revoked,
        pending_drop=client.turn.drop_s is not None,
        turn_s=now - client.turn.begun_s if running else None,
        turns=client.turn.count,
        wait=_read_wait(terms, client, position, now),
        allocated_bytes=client.memory.used_bytes,
        allocated_peak_bytes=client.memory.peak_bytes,
        nvml_bytes=client.memory.nvml_bytes,
        overhead_bytes=client.memory.overhead_bytes,
        need_bytes=None if client.version == 1 else client.memory.need_bytes,
        memory_quota_bytes=client.memory.limit_bytes,
        memory_quota_source=limits.memory_source,
        core_quota_percent=client.quota.percent,
        core_quota_effective_percent=100 * effective,
        core_quota_source=limits.core_source,
        window_usage_s=_window_usage_s(client, running),
        window_limit_s=effective * gpu.turns.clock.window_s,
        throttled=bucket is not None and bucket.throttled,
        debt_s=0.0 if bucket is None else max(0.0, -bucket.balance_s),
        billed_s=client.turn.billed_s + (gpu.turns.clock.billed_s - client.turn.mark_s if running else 0.0),
        demand_ratio=None if activity is None else activity.sm,
        over_claimed=client.memory.claimed_bytes > client.memory.used_bytes,
        name=name,
        sharing_class=client.sharing_class,
        class_source=limits.class_source,
        holds_back=client.sharing_class is SharingClass.LATENCY
        and not gpu.phases.coruns.is_over_share(client.owner, now),
    )


def _window_usage_s(client: Client, running: bool) -> float:
    clock = client.gpu.turns.clock
    closed = client.turn.billed_s - client.turn.window_base_s if client.turn.window_end_s == clock.window_end_s else 0.0
    return closed + (clock.billed_s - max(client.turn.mark_s, clock.window_billed_s) if running else 0.0)


def _read_wait(terms: Terms, client: Client, position: QueuePosition, now: float) -> WaitReading | None:
    if client.standing is not ClientStanding.WAITING and client.standing is not ClientStanding.THROTTLED:
        return None
    gpu = client.gpu
    reason = evaluation.wait_reason(terms, client, now)
    return WaitReading(
        reason=reason or WaitReason.READY,
        waited_s=now - client.turn.wait_s,
        ahead=position.ahead,
        room_bytes=max(0, gpu.memory.safe_limit_bytes - gpu.memory.running_bytes - gpu.memory.held_bytes),
        expected_s=_expected_wait_s(terms, client, reason, position, now),
    )


def _expected_wait_s(
    terms: Terms, client: Client, reason: WaitReason | None, position: QueuePosition, now: float
) -> float | None:
    """An estimate: the turn in the way of the first client ends with its quantum, and so does each turn ahead."""
    gpu = client.gpu
    if client.standing is ClientStanding.THROTTLED:
        return None if client.quota.bucket is None else max(0.0, client.quota.bucket.refilled_s() - now)
    if reason is None:
        return 0.0
    if position.previous is not None:
        before_s = position.previous_expected_s
        return None if before_s is None else before_s + evaluation.quantum_s(terms, position.previous, client, reason)
    holder = next(iter(gpu.turns.running.values()), None)
    return (
        None
        if holder is None
        else max(0.0, holder.turn.begun_s + evaluation.quantum_s(terms, holder, client, reason) - now)
    )


def read_gpu(policy: Policy, gpu: GpuQueue, now: float, *, present: bool, slot: str, linked: bool) -> GpuSharing:
    """`linked`: its clients are in the queue of another GPU."""
    while gpu.turns.count_handovers():
        pass
    queued = [*gpu.order.in_order(), *gpu.turns.throttled.values()]
    front = gpu.order.first_waiting()
    blocked = None if front is None else evaluation.wait_reason(policy.terms, front, now)
    way, reason = ("linked", "linked") if linked else _way(policy, gpu, blocked, now)
    return GpuSharing(
        uuid=gpu.key,
        index=gpu.index,
        present=present,
        running=tuple(map(client_name, gpu.turns.running)),
        request_queue=tuple(client_name(client.id) for client in queued if not client.turn.wait_for_mem_sent),
        wait_queue=tuple(client_name(client.id) for client in queued if client.turn.wait_for_mem_sent),
        running_memory_bytes=gpu.memory.running_bytes,
        running_managed_bytes=gpu.memory.managed_bytes,
        running_managed_peak_bytes=gpu.memory.peak_managed_bytes,
        total_memory_bytes=gpu.memory.total_bytes,
        total_memory_measured=gpu.memory.total_known,
        safe_limit_bytes=gpu.memory.safe_limit_bytes,
        overloaded=gpu.memory.overloaded,
        way=way,
        way_reason=reason,
        quantum_left_s=_quantum_left_s(policy.terms, gpu, front, blocked, now),
        busy_seconds=gpu.turns.clock.busy_s,
        drop_lock={reason.value: count for reason, count in gpu.turns.drops.items()},
        wait_for_mem=gpu.turns.wait_for_mem,
        mem_available=gpu.turns.mem_available,
        wait_seconds=gpu.turns.waits.reading(),
        turn_seconds=gpu.turns.lengths.reading(),
        drain_seconds=gpu.turns.drains.reading(),
        slot=slot,
        gain_ratio=None
        if gpu.phases.current is None
        else gpu.phases.coruns.gain(gpu.phases.current, gpu.phases.members),
        coarse=gpu.phases.current is not None and not gpu.phases.metered,
    )


def _way(policy: Policy, gpu: GpuQueue, blocked: WaitReason | None, now: float) -> tuple[str, str]:
    """How the clients share this GPU now, and why; `blocked` is why the first client in the queue waits."""
    if not policy.on:
        return "free", "scheduler_off"
    if len(gpu.turns.running) + len(gpu.order.waiting) <= 1:
        return "alone", "no_contention"
    if gpu.turns.hung:
        return "together", "call_hangs"
    if gpu.phases.current is not None:
        return _way_of_phase(gpu.phases.current)
    if gpu.memory.overloaded:
        return "turns", "memory_overload"
    if blocked is WaitReason.TURN:
        return "turns", "serial_mode" if policy.terms.serial else "memory_unknown"
    if blocked is WaitReason.MEMORY:
        return "turns", "memory"
    if blocked is WaitReason.DEMAND:
        return "turns", "demand"
    if blocked is WaitReason.SOLO:
        return "turns", "measuring_demand"
    if policy.terms.mode is Mode.CONCURRENT:
        return "together", "concurrent_mode"
    return "together", "demand_fits" if evaluation.has_activity(policy.terms, gpu, now) else "demand_unknown"


def _way_of_phase(phase: Phase[int]) -> tuple[str, str]:
    if phase.way is Way.MEASURING:
        return "measuring", "measuring"
    if phase.cause is PhaseCause.CLASS:
        return phase.way.value, "class_precedence"
    if phase.way is Way.TURNS:
        return "turns", "owner_turns" if phase.cause is PhaseCause.FAIRNESS else "turns_gain"
    return "together", "turns_no_gain" if phase.cause is PhaseCause.NO_GAIN else "together_default"


def _quantum_left_s(
    terms: Terms, gpu: GpuQueue, front: Client | None, blocked: WaitReason | None, now: float
) -> float | None:
    """Until the oldest turn may be dropped; None while no client waits for its room."""
    holder = next(iter(gpu.turns.running.values()), None)
    if front is None or holder is None or blocked is None or gpu.deadline_s == NEVER:
        return None
    return max(0.0, holder.turn.begun_s + evaluation.quantum_s(terms, holder, front, blocked) - now)


# The scheduler's state as one SharingReading: at once, or every second in small steps so that no hand-off waits.

log = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
# Rows made before the sockets are served again: some tens of microseconds of work, as much as a hand-off takes.
_ROWS_PER_STEP: Final = 4
_MAX_DEPARTED: Final = 10_000


class _ParkingParts(TypedDict, total=False):
    parking: ParkingReading
    park_seconds: HistogramReading
    wake_seconds: HistogramReading


class StateReader:
    """`latest` is the reading of the last second. `connections` returns the number of open connections.

    `names` are those of processes and users, as the agent last read them.
    """

    def __init__(
        self,
        turns: TurnLoop,
        devices: DeviceTable,
        limits: LimitLookup,
        disconnects: Counter[str],
        connections: Callable[[], int],
        programs: Programs | None = None,
    ) -> None:
        self._turns = turns
        self._policy = turns.policy
        self._settings = turns.policy.settings
        self._devices = devices
        self._limits = limits
        self._disconnects = disconnects
        self._connections = connections
        self._programs = programs
        self.names = ProcessNames()
        self._departed: deque[tuple[float, ClientSharing]] = deque(maxlen=_MAX_DEPARTED)
        self.latest = self.read_now()

    def read_now(self) -> SharingReading:
        return self._assemble(list(self._rows()), list(self._gpus()))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            try:
                self.latest = await self.read_in_steps()
            except Exception:
                log.exception("cannot read the scheduler's state; the last reading is kept")

    def keep_departed(self, client: Client, now: float) -> None:
        """Keeps the last row of a client that disconnects, if `metrics_stale_ttl_s` is set."""
        if self._settings.metrics_stale_ttl_s > 0:
            self._departed.append((now + self._settings.metrics_stale_ttl_s, self._row(client, FRONT)))

    async def read_in_steps(self) -> SharingReading:
        rows: list[ClientSharing] = []
        for _ in self._count_hand_overs():
            await asyncio.sleep(0)
        for row in self._rows():
            rows.append(row)
            if len(rows) % _ROWS_PER_STEP == 0:
                await asyncio.sleep(0)
        gpus: list[GpuSharing] = []
        for gpu in self._gpus():
            gpus.append(gpu)
            await asyncio.sleep(0)
        return self._assemble(rows, gpus)

    def _count_hand_overs(self) -> Iterator[None]:
        """Updates the histograms, a part at a time."""
        for gpu in list(self._policy.gpus.values()):
            while gpu.turns.count_handovers():
                yield

    def _rows(self) -> Iterator[ClientSharing]:
        """One row per client. Clients may connect and disconnect between two rows."""
        for gpu in list(self._policy.gpus.values()):
            # In the order of the queue: a client's expected wait follows from that of the client ahead.
            queue = list(gpu.order.in_order())
            others = [client for client in gpu.clients.values() if client.id not in gpu.order.waiting]
            position = FRONT
            for client in queue:
                row = self._row(client, position)
                yield row
                expected_s = None if row.wait is None else row.wait.expected_s
                position = QueuePosition(position.ahead + 1, client, expected_s)
            for client in others:
                yield self._row(client, FRONT)

    def _row(self, client: Client, position: QueuePosition) -> ClientSharing:
        now = monotonic()
        client.gpu.turns.clock.advance(now)
        program = None if self._programs is None else self._programs.program_of(client)
        name = self.names.of_client(client) if program is None else program.display_name
        row = read_client(self._policy.terms, client, self._limits.of(client), position, now, name)
        own = self._policy.gpus.get(client.device)
        if own is not None and own is not client.gpu:
            row = row._replace(gpu_index=own.index)
        if program is None:
            return row
        row = row._replace(program=program.key, processes=tuple(process.pid for process in program.processes))
        held_up = None if self._programs is None else self._programs.held_up(client)
        if held_up is not None:
            standing = "stopped" if held_up.is_stopped else "hanging"
            return row._replace(standing=standing, held_up=printable(held_up.sentence))
        rests = self._policy.on and client.standing is ClientStanding.IDLE
        return row._replace(standing="resting" if rests else row.standing)

    def _gpus(self) -> Iterator[GpuSharing]:
        """One row per GPU. They may come and go between two rows, too."""
        devices = self._devices
        present = devices.present
        for gpu in list(self._policy.gpus.values()):
            now = monotonic()
            gpu.turns.clock.advance(now)
            slot, linked = devices.slot_of(gpu.key), devices.is_linked(gpu)
            yield read_gpu(self._policy, gpu, now, present=gpu.key in present, slot=slot, linked=linked)

    def _assemble(self, rows: list[ClientSharing], gpus: list[GpuSharing]) -> SharingReading:
        now, policy = monotonic(), self._policy
        while self._departed and self._departed[0][0] <= now:
            self._departed.popleft()
        return SharingReading(
            on=policy.on,
            mode=policy.terms.mode.value,
            fixed_quantum_s=policy.terms.operator_quantum_s,
            gpus=tuple(gpus),
            clients=tuple(rows),
            departed=tuple(row for _, row in self._departed),
            messages={kind.name: self._turns.messages[kind] for kind in MessageType},
            disconnects=dict(self._disconnects),
            refusals=dict(policy.refusals),
            handoff_seconds=self._turns.handoffs.reading(),
            window_s=self._settings.compute_window_ms / 1000,
            debug_labels=self._settings.metrics_debug_labels,
            connections=self._connections(),
            share_programs=self._settings.share_programs,
            **self._parking(),
            pauser=self._pauser(),
            left_alone=() if self._programs is None else tuple(map(_left_alone, self._programs.exempt)),
        )

    def _pauser(self) -> PauserReading | None:
        if self._programs is None:
            return None
        return self._programs.pauser.reading()

    def _parking(self) -> _ParkingParts:
        parking = None if self._programs is None else self._programs.parking
        if parking is None:
            return {}
        return {
            "parking": parking.reading(),
            "park_seconds": parking.log.park_seconds.reading(),
            "wake_seconds": parking.log.wake_seconds.reading(),
        }


def _left_alone(exemption: Exemption) -> LeftAlone:
    program = exemption.program
    return LeftAlone(program.display_name, exemption.why.value, exemption.sentence, program.uid, program.devices)
