"""Rule 5: clients that all fit into memory run in phases, and each phase is measured.

`corun/` decides which clients a phase has and how long it lasts, by the device's activity. This module carries it out
on one GPU: it drops the clients that are not in the phase, admits the others, and requests the measurement.
"""

from collections import Counter
from itertools import chain
from typing import Final

from gpucommons.model.gpu import DeviceActivity
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.corun.coruns import LOOK_S, LOOK_SLACK_S, MAX_CLIENTS, SETTLE_S, Phase, Way
from gpucommons.scheduler.policy.billing import EPSILON_S
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
# Shares of the longest pause: in turns, every program has one within the first; a program that was paused for longer
# than the second runs next, whatever else is due.
_PERIOD_RATIO: Final = 0.4
_OVERDUE_RATIO: Final = 0.5
# Shorter turns cost more than a long pause.
_SHORTEST_QUANTUM_S: Final = 0.05
_BACK_WITHIN_S: Final = 2.0
# Clients that wait for another to stop wait no longer than this: it may have much work submitted, or hang.
_PATIENCE_S: Final = 1.0
# Registered clients, idle ones included: bounds the work of one message.
_MAX_REGISTERED: Final = 256


class Phasing:
    def __init__(self, terms: Terms, grants: Grants) -> None:
        self._terms = terms
        self._grants = grants

    def applies(self, gpu: GpuQueue, now: float) -> bool:
        """Whether the GPU's activity is known, and all clients that request it fit into memory at once."""
        if not knows_activity(self._terms, gpu, now) or gpu.overloaded:
            return False
        if len(gpu.running) + len(gpu.waiting) > MAX_CLIENTS or len(gpu.clients) > _MAX_REGISTERED:
            return False
        room = gpu.client_limit_bytes - gpu.held_bytes
        for client in gpu.clients.values():
            # A client that was dropped requests again in a moment: its memory counts meanwhile.
            if client.standing is not ClientStanding.IDLE or now - client.ran_s < _BACK_WITHIN_S:
                if client.blind and self._terms.v1_alone:
                    return False
                room -= client.need_bytes
        return room >= 0

    def leave(self, gpu: GpuQueue, now: float) -> None:
        """The present phase ends, and no other follows it."""
        self._end(gpu, now)
        gpu.phase_before = None

    def run(self, gpu: GpuQueue, now: float, actions: list[Action]) -> float:
        """Begins, continues or ends a phase. Returns the next deadline."""
        requesting = self._requesting(gpu, now)
        if not requesting:
            self.leave(gpu, now)
            return self._kept_until_s(gpu, now)
        phase = gpu.phase
        if phase is not None and self._is_over(gpu, phase, requesting, now):
            self._end(gpu, now)
        if gpu.phase is None:
            self._begin(gpu, requesting, now)
        self._carry_out(gpu, requesting, now, actions)
        return min(gpu.phase_until_s, self._kept_until_s(gpu, now), self._patient_until_s(gpu, now))

    def measured(
        self, gpu: GpuQueue, number: int, activity: DeviceActivity, begin_s: float, now: float
    ) -> tuple[int, ...]:
        """The device's activity in phase `number`. Returns the clients that ran; none if it does not count."""
        changed_s = max(gpu.changed_s, gpu.disturbed_s)
        if number != gpu.measured_phase or changed_s > begin_s or gpu.revoked or not gpu.running:
            return ()
        ran = tuple(gpu.running)
        gpu.coruns.measured(ran, activity, now)
        return ran

    def _requesting(self, gpu: GpuQueue, now: float) -> dict[int, Client]:
        """The clients that compete: those that run and were dropped for another reason, or cannot be stopped now, do
        not."""
        competing = [
            client
            for client in gpu.running.values()
            if now >= client.keep_until_s and (client.drop_s is None or self._stops(client, now))
        ]
        return {client.id: client for client in chain(competing, gpu.waiting.values())}

    def _stops(self, client: Client, now: float) -> bool:
        """A dropped client that is about to wait for its next turn."""
        assert client.drop_s is not None
        return client.drop_reason is DropReason.QUANTUM and now < client.drop_s + _PATIENCE_S - EPSILON_S

    def _patient_until_s(self, gpu: GpuQueue, now: float) -> float:
        """When the next client that does not stop is no longer waited for."""
        stopping = (client.drop_s for client in gpu.draining.values() if self._stops(client, now))
        return min((drop_s + _PATIENCE_S for drop_s in stopping if drop_s is not None), default=NEVER)

    def _is_over(self, gpu: GpuQueue, phase: Phase[int], requesting: dict[int, Client], now: float) -> bool:
        if now >= gpu.phase_until_s - EPSILON_S or not any(id in requesting for id in phase.clients):
            return True
        if gpu.phase_members.issuperset(requesting):
            return False
        if phase.way is Way.ALONE or phase.way is Way.TOGETHER:
            # A newcomer runs already, and is not stopped for as long as no rule says so.
            return True
        # A newcomer does not wait for the end of a long phase.
        gpu.phase_members |= requesting.keys()
        quantum_s = self._quantum_s(requesting, self._weights(requesting))
        gpu.phase_until_s = min(gpu.phase_until_s, max(now, gpu.phase_s + quantum_s))
        return now >= gpu.phase_until_s - EPSILON_S

    def _begin(self, gpu: GpuQueue, requesting: dict[int, Client], now: float) -> None:
        weights = self._weights(requesting)
        gpu.coruns.metered = gpu.metered
        gpu.coruns.quantum_s = self._quantum_s(requesting, weights)
        gpu.coruns.background_period_s = _PERIOD_RATIO * self._terms.settings.max_pause_s
        gpu.coruns.background_ratio = self._terms.settings.background_percent / 100
        classes = {id: client.sharing_class for id, client in requesting.items() if client.sharing_class is not BATCH}
        owners = self.owners(requesting)
        gpu.coruns.weights = _owner_weights(owners, requesting)
        phase = gpu.coruns.phase(owners, now, classes)
        overdue = self._overdue(requesting, now)
        # Many programs would wait too long while each is measured.
        if overdue is not None and (overdue.id not in phase.clients or phase.way is Way.MEASURING):
            others = tuple(id for id in requesting if id != overdue.id and gpu.coruns.runs_along(id))
            # With full turns, a user with many programs would take the time of the other users.
            length_s = max(_SHORTEST_QUANTUM_S, gpu.coruns.quantum_s * weights[overdue.id])
            phase = Phase((overdue.id, *others), length_s, Way.TURNS, cause=phase.cause, unit=(overdue.id,))
        gpu.phase = phase
        gpu.phase_members = frozenset(requesting)
        gpu.phase_s = now
        gpu.phase_begun = False
        # A look ends in time even if those that it pauses stop slowly: they have a budget for it.
        gpu.phase_until_s = now + LOOK_S + LOOK_SLACK_S if phase.way is Way.MEASURING else NEVER

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
        long = [client for client in paused if now - client.wait_s >= limit_s]
        if not long:
            return None
        ran_s: dict[str, float] = {}
        if self._terms.fair_between_owners:
            for client in requesting.values():
                since_s = client.wait_s if client.standing is ClientStanding.WAITING else now
                ran_s[client.owner] = max(since_s, ran_s.get(client.owner, since_s))
        return min(long, key=lambda client: (ran_s.get(client.owner, client.wait_s), client.wait_s))

    def _end(self, gpu: GpuQueue, now: float) -> None:
        phase = gpu.phase
        if phase is not None:
            gpu.phase = None
            gpu.phase_until_s = NEVER
            if gpu.phase_begun:
                self._count(gpu, phase, now)
                gpu.phase_before = phase
            else:
                self._count(gpu, gpu.phase_before, now)

    def _count(self, gpu: GpuQueue, phase: Phase[int] | None, now: float) -> None:
        """The time since the last call was that of `phase`: until its clients have stopped, no other begins."""
        if phase is not None:
            gpu.coruns.ended(phase, now - gpu.phase_s)
        gpu.phase_s = now

    def _carry_out(self, gpu: GpuQueue, requesting: dict[int, Client], now: float, actions: list[Action]) -> None:
        phase = gpu.phase
        assert phase is not None
        stopping = False
        for client in requesting.values():
            if client.standing is ClientStanding.RUNNING and client.id not in phase.clients:
                stopping = True
                if client.drop_s is None:
                    self._grants.drop(gpu, client, DropReason.QUANTUM, now, actions)
        if stopping:
            return
        for id in phase.clients:
            chosen = requesting.get(id)
            if chosen is not None and chosen.standing is ClientStanding.WAITING:
                self._grants.grant(gpu, chosen, now, actions)
        if not gpu.phase_begun and not any(id in gpu.draining for id in phase.clients):
            self._begin_phase(gpu, phase, now, actions)

    def _begin_phase(self, gpu: GpuQueue, phase: Phase[int], now: float, actions: list[Action]) -> None:
        """From now on exactly the clients of the phase run: its time begins."""
        gpu.phase_begun = True
        self._count(gpu, gpu.phase_before, now)
        gpu.phase_until_s = min(gpu.phase_until_s, now + phase.length_s)
        if phase.measure and gpu.metered:
            gpu.measured_phase += 1
            # A lone client is measured for a moment, to see bursts as they are.
            length_s = LOOK_S if phase.way is Way.ALONE else gpu.phase_until_s - now
            end_s = now + length_s - _SAMPLE_EARLY_S
            actions.append(Measure(gpu, gpu.measured_phase, now + SETTLE_S, end_s))

    def _kept_until_s(self, gpu: GpuQueue, now: float) -> float:
        return min((c.keep_until_s for c in gpu.running.values() if c.keep_until_s > now), default=NEVER)


def knows_activity(terms: Terms, gpu: GpuQueue, now: float) -> bool:
    """Whether mode auto has measurements to decide by."""
    return terms.auto and (gpu.metered or now < gpu.busy_until_s)


def _owner_weights(owners: dict[int, str], clients: dict[int, Client]) -> dict[str, float]:
    """What a batch system gave to each owner of the GPU: the sum of the shards of its jobs. Owners without shards are
    left out, and count as one whole GPU."""
    found: dict[str, float] = {}
    for id, owner in owners.items():
        share = clients[id].gpu_share
        if share is not None:
            found[owner] = found.get(owner, 0.0) + share
    return found
