"""Rule 5: clients that all fit into memory run in phases, and each phase is measured.

`corun/` decides which clients a phase has and how long it lasts, by the device's activity. This module carries it out
on one GPU: it drops the clients that are not in the phase, admits the others, and requests the measurement. The only
code that changes `Phases`.
"""

from collections import Counter
from itertools import chain
from typing import Final

from gpucommons.model.gpu import DeviceActivity
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.corun.coruns import LOOK_S, LOOK_SLACK_S, MAX_CLIENTS, SETTLE_S, Phase, Way
from gpucommons.scheduler.policy.quota_bucket import EPSILON_S
from gpucommons.scheduler.policy.state import (
    NEVER,
    Action,
    Client,
    ClientStanding,
    DropReason,
    GpuQueue,
    Measure,
    Terms,
    client_name,
)
from gpucommons.scheduler.policy.transitions import Grants

BATCH: Final = SharingClass.BATCH
# The second sample is taken this long before the phase ends: afterwards other clients run.
_SAMPLE_EARLY_S: Final = 0.005
# How much longer a phase lasts if its measurement has not come: the driver may serve another call first. A look that
# was not measured would have paused programs for nothing, and their budget for the next minute is spent.
_ANSWER_S: Final = 0.05
# Shares of the longest pause: in turns, every program has one within the first; a program that was paused for longer
# than the second runs next, whatever else is due.
_PERIOD_RATIO: Final = 0.4
_OVERDUE_RATIO: Final = 0.5
# Shorter turns cost more than a long pause.
_SHORTEST_QUANTUM_S: Final = 0.05
_BACK_WITHIN_S: Final = 2.0
# Clients that wait for another to stop wait no longer than this: it may have much work submitted, or hang.
_PATIENCE_S: Final = 1.0
# Utilisation is valid for this long, or for so many times its span. One that spans too long a time is not used: no
# client can run alone for that long.
_BUSY_FRESH_S: Final = 5.0
_BUSY_FRESH_SPANS: Final = 3.0
_LONGEST_SPAN_S: Final = 6.0
# Registered clients, idle ones included: bounds the work of one message.
_MAX_REGISTERED: Final = 256


class Phasing:
    def __init__(self, terms: Terms, grants: Grants) -> None:
        self._terms = terms
        self._grants = grants

    def applies(self, gpu: GpuQueue, now: float) -> bool:
        """Whether all clients that request the GPU, whose activity is known, fit into memory at once."""
        if gpu.memory.overloaded:
            return False
        if len(gpu.turns.running) + len(gpu.order.waiting) > MAX_CLIENTS or len(gpu.clients) > _MAX_REGISTERED:
            return False
        room = gpu.memory.client_limit_bytes - gpu.memory.held_bytes
        for client in gpu.clients.values():
            # A client that was dropped requests again in a moment: its memory counts meanwhile.
            if client.standing is not ClientStanding.IDLE or now - client.service.ran_s < _BACK_WITHIN_S:
                if client.memory.blind:
                    return False
                room -= client.memory.need_bytes
        return room >= 0

    def leave(self, gpu: GpuQueue, now: float) -> None:
        """The present phase ends, and no other follows it."""
        self._end(gpu, now)
        gpu.phases.before = None

    def run(self, gpu: GpuQueue, now: float, actions: list[Action]) -> float:
        """Begins, continues or ends a phase. Returns the next deadline."""
        requesting = self._requesting(gpu, now)
        if not requesting:
            self.leave(gpu, now)
            return self._kept_until_s(gpu, now)
        phase = gpu.phases.current
        if phase is not None and self._is_over(gpu, phase, requesting, now):
            self._end(gpu, now)
        if gpu.phases.current is None:
            self._begin(gpu, requesting, now)
        self._carry_out(gpu, requesting, now, actions)
        return min(gpu.phases.until_s, self._kept_until_s(gpu, now), self._patient_until_s(gpu, now))

    def sample_busy(self, gpu: GpuQueue, busy_ratio: float, window_s: float, now: float) -> None:
        """The device was busy for this share of the last `window_s`."""
        phases, running = gpu.phases, gpu.turns.running
        if window_s <= _LONGEST_SPAN_S:
            phases.busy_until_s = now + max(_BUSY_FRESH_S, _BUSY_FRESH_SPANS * window_s)
        undisturbed = not gpu.turns.revoked and gpu.turns.changed_s <= now - window_s
        if not phases.metered and len(running) == 1 and undisturbed:
            phases.coruns.record_activity(tuple(running), DeviceActivity(busy_ratio, busy=busy_ratio), now)

    def meter(self, gpu: GpuQueue, available: bool) -> None:
        """Whether the activity of a phase can be measured on this GPU."""
        gpu.phases.metered = available

    def choose_again(self, gpu: GpuQueue, now: float) -> None:
        """The next phase is chosen now: what it is chosen by has changed."""
        gpu.phases.until_s = min(gpu.phases.until_s, now)

    def hold_back(self, gpu: GpuQueue, now: float) -> None:
        """Programs are held back, or run again: what was measured until now does not count."""
        gpu.phases.disturbed_s = now

    def measure(self, gpu: GpuQueue, begin_s: float, end_s: float) -> Measure:
        """The next measurement of this GPU: only the answer to the last one counts."""
        gpu.phases.measured += 1
        return Measure(gpu, gpu.phases.measured, begin_s, end_s)

    def record_activity(
        self, gpu: GpuQueue, number: int, activity: DeviceActivity, begin_s: float, now: float
    ) -> tuple[int, ...]:
        """The device's activity in phase `number`. Returns the clients that ran; none if it does not count."""
        changed_s = max(gpu.turns.changed_s, gpu.phases.disturbed_s)
        if number != gpu.phases.measured or changed_s > begin_s or gpu.turns.revoked or not gpu.turns.running:
            return ()
        ran = tuple(gpu.turns.running)
        gpu.phases.coruns.record_activity(ran, activity, now)
        gpu.phases.until_s = min(gpu.phases.until_s, max(now, gpu.phases.planned_s))
        return ran

    def _requesting(self, gpu: GpuQueue, now: float) -> dict[int, Client]:
        """The clients that compete: those that run and were dropped for another reason, or cannot be stopped now, do
        not."""
        competing = [
            client
            for client in gpu.turns.running.values()
            if now >= client.turn.keep_until_s and (client.turn.drop_s is None or self._stops(client, now))
        ]
        return {client.id: client for client in chain(competing, gpu.order.waiting.values())}

    def _stops(self, client: Client, now: float) -> bool:
        """A dropped client that is about to wait for its next turn."""
        assert client.turn.drop_s is not None
        return client.turn.drop_reason is DropReason.QUANTUM and now < client.turn.drop_s + _PATIENCE_S - EPSILON_S

    def _patient_until_s(self, gpu: GpuQueue, now: float) -> float:
        """When the next client that does not stop is no longer waited for."""
        stopping = (client.turn.drop_s for client in gpu.turns.draining.values() if self._stops(client, now))
        return min((drop_s + _PATIENCE_S for drop_s in stopping if drop_s is not None), default=NEVER)

    def _is_over(self, gpu: GpuQueue, phase: Phase[int], requesting: dict[int, Client], now: float) -> bool:
        if now >= gpu.phases.until_s - EPSILON_S or not any(id in requesting for id in phase.clients):
            return True
        if gpu.phases.members.issuperset(requesting):
            return False
        if phase.way is Way.ALONE or phase.way is Way.TOGETHER:
            # A newcomer runs already, and is not stopped for as long as no rule says so.
            return True
        # A newcomer does not wait for the end of a long phase.
        gpu.phases.members |= requesting.keys()
        quantum_s = self._quantum_s(requesting, self._weights(requesting))
        gpu.phases.until_s = min(gpu.phases.until_s, max(now, gpu.phases.counted_s + quantum_s))
        return now >= gpu.phases.until_s - EPSILON_S

    def _begin(self, gpu: GpuQueue, requesting: dict[int, Client], now: float) -> None:
        weights = self._weights(requesting)
        gpu.phases.coruns.metered = gpu.phases.metered
        gpu.phases.coruns.quantum_s = self._quantum_s(requesting, weights)
        gpu.phases.coruns.background_period_s = _PERIOD_RATIO * self._terms.settings.max_pause_s
        gpu.phases.coruns.background_ratio = self._terms.settings.background_percent / 100
        classes = {id: client.sharing_class for id, client in requesting.items() if client.sharing_class is not BATCH}
        owners = self.owners(requesting)
        gpu.phases.coruns.weights = _owner_weights(owners, requesting)
        phase = gpu.phases.coruns.phase(owners, now, classes)
        overdue = self._overdue(requesting, now)
        # Many programs would wait too long while each is measured.
        if overdue is not None and (overdue.id not in phase.clients or phase.way is Way.MEASURING):
            others = tuple(id for id in requesting if id != overdue.id and gpu.phases.coruns.runs_along(id))
            # With full turns, a user with many programs would take the time of the other users.
            length_s = max(_SHORTEST_QUANTUM_S, gpu.phases.coruns.quantum_s * weights[overdue.id])
            phase = Phase((overdue.id, *others), length_s, Way.TURNS, cause=phase.cause, unit=(overdue.id,))
        gpu.phases.current = phase
        gpu.phases.members = frozenset(requesting)
        gpu.phases.counted_s = now
        gpu.phases.begun = False
        # A look ends in time even if those that it pauses stop slowly: they have a budget for it.
        gpu.phases.until_s = now + LOOK_S + LOOK_SLACK_S if phase.way is Way.MEASURING else NEVER

    def owners(self, clients: dict[int, Client]) -> dict[int, str]:
        """Those between which time is shared fairly: owners, or each client for itself."""
        if self._terms.fair_between_owners:
            return {id: client.owner for id, client in clients.items()}
        return {id: client_name(id) for id in clients}

    def _weights(self, requesting: dict[int, Client]) -> dict[int, float]:
        if not self._terms.fair_between_owners:
            return dict.fromkeys(requesting, 1.0)
        connections = Counter(client.owner for client in requesting.values())
        return {id: 1.0 / connections[client.owner] for id, client in requesting.items()}

    def _quantum_s(self, requesting: dict[int, Client], weights: dict[int, float]) -> float:
        """Short enough that no program is paused for too long between two turns."""
        quantum_s = self._terms.operator_quantum_s or self._terms.settings.turn_quantum_s
        programs = [weights[id] for id, client in requesting.items() if client.is_program]
        if not programs:
            return quantum_s
        period_s = _PERIOD_RATIO * self._terms.settings.max_pause_s
        return min(quantum_s, max(_SHORTEST_QUANTUM_S, period_s * min(programs) / sum(weights.values())))

    def _overdue(self, requesting: dict[int, Client], now: float) -> Client | None:
        """A program that has been paused for long: that of the owner whose programs ran least recently.

        By its own wait alone, a user who starts many programs at once would come before all others.
        """
        limit_s = _OVERDUE_RATIO * self._terms.settings.max_pause_s
        paused = [c for c in requesting.values() if c.is_program and c.standing is ClientStanding.WAITING]
        long = [client for client in paused if now - client.turn.wait_s >= limit_s]
        if not long:
            return None
        ran_s: dict[str, float] = {}
        if self._terms.fair_between_owners:
            for client in requesting.values():
                since_s = client.turn.wait_s if client.standing is ClientStanding.WAITING else now
                ran_s[client.owner] = max(since_s, ran_s.get(client.owner, since_s))
        return min(long, key=lambda client: (ran_s.get(client.owner, client.turn.wait_s), client.turn.wait_s))

    def _end(self, gpu: GpuQueue, now: float) -> None:
        phase = gpu.phases.current
        if phase is not None:
            gpu.phases.current = None
            gpu.phases.until_s = NEVER
            if gpu.phases.begun:
                self._count(gpu, phase, now)
                gpu.phases.before = phase
            else:
                self._count(gpu, gpu.phases.before, now)

    def _count(self, gpu: GpuQueue, phase: Phase[int] | None, now: float) -> None:
        """The time since the last call was that of `phase`: until its clients have stopped, no other begins."""
        if phase is not None:
            gpu.phases.coruns.record_phase_end(phase, now - gpu.phases.counted_s)
        gpu.phases.counted_s = now

    def _carry_out(self, gpu: GpuQueue, requesting: dict[int, Client], now: float, actions: list[Action]) -> None:
        phase = gpu.phases.current
        assert phase is not None
        stopping = False
        for client in requesting.values():
            if client.standing is ClientStanding.RUNNING and client.id not in phase.clients:
                stopping = True
                if client.turn.drop_s is None:
                    self._grants.drop(gpu, client, DropReason.QUANTUM, now, actions)
        if stopping:
            return
        for id in phase.clients:
            chosen = requesting.get(id)
            if chosen is not None and chosen.standing is ClientStanding.WAITING:
                self._grants.grant(gpu, chosen, now, actions)
        if not gpu.phases.begun and not any(id in gpu.turns.draining for id in phase.clients):
            self._begin_phase(gpu, phase, now, actions)

    def _begin_phase(self, gpu: GpuQueue, phase: Phase[int], now: float, actions: list[Action]) -> None:
        """From now on exactly the clients of the phase run: its time begins."""
        gpu.phases.begun = True
        self._count(gpu, gpu.phases.before, now)
        latest_s = gpu.phases.until_s
        gpu.phases.until_s = gpu.phases.planned_s = min(latest_s, now + phase.length_s)
        if phase.measure and gpu.phases.metered:
            # A lone client is measured for a moment, to see bursts as they are.
            length_s = LOOK_S if phase.way is Way.ALONE else gpu.phases.planned_s - now
            end_s = now + length_s - _SAMPLE_EARLY_S
            actions.append(self.measure(gpu, now + SETTLE_S, end_s))
            gpu.phases.until_s = min(latest_s, gpu.phases.planned_s + _ANSWER_S)

    def _kept_until_s(self, gpu: GpuQueue, now: float) -> float:
        return min(
            (c.turn.keep_until_s for c in gpu.turns.running.values() if c.turn.keep_until_s > now), default=NEVER
        )


def _owner_weights(owners: dict[int, str], clients: dict[int, Client]) -> dict[str, float]:
    """What a batch system gave to each owner of the GPU: the sum of the shards of its jobs. Owners without shards are
    left out, and count as one whole GPU."""
    weights: dict[str, float] = {}
    for id, owner in owners.items():
        share = clients[id].gpu_share
        if share is not None:
            weights[owner] = weights.get(owner, 0.0) + share
    return weights
