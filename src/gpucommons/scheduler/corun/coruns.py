"""One GPU's clients that fit into its memory: which of them may run now, and until when.

A phase is a set of clients that run at the same time. `phase` returns the next one; `ended` records how long it
lasted, `measured` the device's activity in it. The caller runs the phases, bills and throttles: `requesting` holds only
the clients that may run now.

A client's fair share is its weight over the weights of all requesting clients. Where the device's SM activity cannot
be measured (`coarse`), its utilisation stands in: clients run together if their utilisations sum to at most 1.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from gpucommons.scheduler.corun.activity import DeviceActivity, SoloActivity
from gpucommons.scheduler.corun.division import MARGIN, TimeDivision, divide, turns
from gpucommons.scheduler.corun.progress import misfit, progress_together

# GPM's counters move every 100 ms: a shorter phase cannot be measured, and neither can its first 100 ms.
LEAST_MEASURED_S: Final = 0.25
SETTLE_S: Final = 0.1
MEASURE_S: Final = 0.5
TRIAL_S: Final = 0.6
QUANTUM_S: Final = 0.25
# Utilisation is read once per span: a whole span must lie within the phase.
_COARSE_SPANS: Final = 2.5
_COARSE_EXCESS: Final = 0.1
# One round of a division that mixes: long enough that switches cost little, short enough to feel fair.
_ROUND_S: Final = 2.0
_SHORTEST_S: Final = 0.1
# How often the device is measured while all run together: a job that begins to work shows within this time.
_TOGETHER_S: Final = 1.0
# While all run together, nothing of each alone is learnt: it is measured again this often.
_SOLO_FRESH_S: Final = 60.0
# Before the first trial of a new set of clients they are measured again.
_NEW_FRESH_S: Final = 4.0
# The device's activity differs this much from that of the trial: what was learnt may no longer hold. Clients whose
# activity varies anyway are given more, as long as measuring them again leads to the same verdict.
_CONTRADICTION: Final = 0.05
_CONTRADICTION_MOST: Final = 0.4
# So many times that, if the progress of one client seems to differ: it is less certain than the device's activity.
_PROGRESS_TOLERANCES: Final = 4.0
_LEAST_ACTIVITY: Final = 0.1
# Measurements of a client that changed meanwhile: the activities do not add up, or it seems to be faster than alone.
_MISFIT: Final = 0.05
_FASTER_THAN_ALONE: Final = 1.05
_FASTER: Final = 0.1
_TRY_AGAIN_S: Final = 30.0
_TRY_AGAIN_MOST_S: Final = 600.0
# To measure each alone and to estimate the progress of so many takes long enough.
MOST_CLIENTS: Final = 64

Client = TypeVar("Client", bound=Hashable)


class Way(StrEnum):
    ALONE = "alone"
    TURNS = "turns"
    TOGETHER = "together"
    MIXED = "mixed"
    TRIAL = "trial"
    MEASURING = "measuring"


@dataclass(frozen=True, slots=True)
class Phase(Generic[Client]):
    """These clients may run, for this long; `measure`: the device's activity of it is to be measured."""

    clients: tuple[Client, ...]
    length_s: float
    way: Way
    measure: bool = False


@dataclass(slots=True)
class _Verdict:
    """What a trial of one set of clients led to. It holds for the activities that it was made with."""

    division: TimeDivision
    device: DeviceActivity
    progress: tuple[float, ...]
    versions: tuple[int, ...]
    made_s: float
    again_s: float
    tolerance: float
    # Time owed to the parts of a round: all together first, then each client alone.
    owed_s: list[float]


class Coruns(Generic[Client]):
    """`quantum_s`, `coarse` and `coarse_span_s`, the time that a utilisation spans, may be changed at any time."""

    def __init__(self, margin: float = MARGIN, quantum_s: float = QUANTUM_S) -> None:
        self.quantum_s = quantum_s
        self.coarse = False
        self.coarse_span_s = 1.0
        self._margin = margin
        self._solo: dict[Client, SoloActivity] = {}
        self._verdicts: dict[frozenset[Client], _Verdict] = {}
        # Verdicts that were contradicted, until the clients are measured again.
        self._doubted: dict[frozenset[Client], _Verdict] = {}
        self._weights: dict[Client, float] = {}
        # Time alone over the weight: in turns, the client with the least of it is next.
        self._served_s: dict[Client, float] = {}
        self._last: Client | None = None
        self._requesting: frozenset[Client] = frozenset()
        # In order of arrival: divisions list their shares in this order.
        self._arrival: dict[Client, int] = {}
        self._arrivals = 0

    # Learning

    def measured(self, clients: Sequence[Client], activity: DeviceActivity, now_s: float) -> None:
        """The device's activity over a time in which exactly these clients ran."""
        clients = self._in_order(clients)
        if len(clients) == 1:
            self._solo_of(clients[0]).learn(activity, now_s)
            return
        solo = [self._solo_of(client) for client in clients]
        known = [one.known for one in solo if one.known is not None]
        if len(known) != len(solo):
            return
        key = frozenset(clients)
        before = self._verdicts.get(key)
        if self.coarse:
            if before is not None and activity.sm > sum(one.sm for one in known) + _COARSE_EXCESS:
                self._doubt(key, before)
            return
        progress = progress_together(activity, known)
        if before is not None and self._contradicts(before, activity, progress):
            # A client may have changed what it does; which one is found by measuring each alone.
            self._doubt(key, before)
            return
        division = divide(progress, self._fair(clients), self._margin)
        if division.is_mixed and (before is None or not before.division.is_mixed):
            # This rests on what each one does. A client that changed while it was measured would be far off.
            for one in solo:
                one.check()
        elif division.is_together:
            # While all run together none is measured alone. One that changed since then is measured once more.
            goes_on = before is not None and before.division.is_together
            doubtful = not goes_on and misfit(activity, known, progress) > _MISFIT
            earlier = before.progress if before is not None and goes_on else (0.0,) * len(solo)
            for one, part, was in zip(solo, progress, earlier, strict=True):
                if doubtful or part > max(_FASTER_THAN_ALONE, was + _FASTER):
                    one.check()
        versions = tuple(one.version for one in solo)
        before = before or self._doubted.pop(key, None)
        self._verdicts[key] = self._verdict(division, activity, progress, versions, before, now_s)

    def _verdict(
        self,
        division: TimeDivision,
        device: DeviceActivity,
        progress: tuple[float, ...],
        versions: tuple[int, ...],
        before: _Verdict | None,
        now_s: float,
    ) -> _Verdict:
        again_s, tolerance, owed_s = _TRY_AGAIN_S, _CONTRADICTION, [0.0] * (len(versions) + 1)
        if before is not None and before.division.is_turns == division.is_turns:
            owed_s, tolerance = before.owed_s, before.tolerance
            if division.is_turns:
                again_s = min(_TRY_AGAIN_MOST_S, 2 * before.again_s)
        return _Verdict(division, device, progress, versions, now_s, again_s, tolerance, owed_s)

    def doubt(self, client: Client) -> None:
        """The client was away, and may do something else now."""
        self._solo_of(client).doubt()

    def doubt_since(self, begin_s: float) -> None:
        """Another client used the device since then: what was measured meanwhile is measured again."""
        for solo in self._solo.values():
            if solo.measured_s > begin_s:
                solo.doubt()

    def forget(self, client: Client) -> None:
        """The client has left."""
        self._solo.pop(client, None)
        for of_client in (self._arrival, self._weights, self._served_s):
            of_client.pop(client, None)
        for verdicts in (self._verdicts, self._doubted):
            for key in [key for key in verdicts if client in key]:
                del verdicts[key]

    def solo_activity(self, client: Client) -> DeviceActivity | None:
        one = self._solo.get(client)
        return None if one is None else one.known

    def division(self, requesting: Sequence[Client]) -> TimeDivision | None:
        """What is in force for these clients; None while it is not known."""
        verdict = self._verdicts.get(frozenset(requesting))
        return None if verdict is None else verdict.division

    def gain(self, requesting: Sequence[Client]) -> float | None:
        """Progress in total over what the driver's time-slicing would give, by the last trial of these clients; None
        while it is not known, or was not measured."""
        division = None if self.coarse else self.division(requesting)
        return None if division is None else division.gain_over_slicing

    # Deciding

    def phase(
        self, requesting: Sequence[Client], now_s: float, weights: Mapping[Client, float] | None = None
    ) -> Phase[Client]:
        """The clients that run next. `requesting` is not empty; a client without a weight has 1."""
        clients = self._in_order(requesting)
        self._weights |= {client: (weights or {}).get(client, 1.0) for client in clients}
        self._enter(frozenset(clients))
        if len(clients) == 1:
            return Phase(clients, self.quantum_s, Way.ALONE)
        verdict = self._verdicts.get(frozenset(clients))
        unmeasured = self._unmeasured(clients, self._most_fresh_s(verdict), now_s)
        if unmeasured is not None:
            return Phase((unmeasured,), self._measure_s(unmeasured), Way.MEASURING, measure=True)
        if verdict is None or self._is_stale(verdict, clients, now_s):
            if not self.coarse:
                return Phase(clients, TRIAL_S, Way.TRIAL, measure=True)
            verdict = self._verdicts[frozenset(clients)] = self._coarse_verdict(clients, verdict, now_s)
        division = verdict.division
        if division.is_turns:
            measure = not self.coarse and self.quantum_s >= LEAST_MEASURED_S
            return Phase((self._least_served(clients),), self.quantum_s, Way.TURNS, measure)
        if division.is_together:
            return Phase(clients, _TOGETHER_S, Way.TOGETHER, measure=True)
        return self._next_part(clients, verdict)

    def ended(self, phase: Phase[Client], length_s: float) -> None:
        """The phase lasted this long, or this much longer: its clients may have stopped slowly."""
        if phase.way is Way.MIXED:
            verdict = self._verdicts.get(self._requesting)
            if verdict is not None and self._requesting.issuperset(phase.clients):
                clients = self._in_order(tuple(self._requesting))
                part = 0 if len(phase.clients) > 1 else 1 + clients.index(phase.clients[0])
                for index, share in enumerate((verdict.division.together, *verdict.division.alone)):
                    verdict.owed_s[index] += share * length_s
                verdict.owed_s[part] -= length_s
        elif len(phase.clients) == 1 and phase.way is not Way.ALONE:
            client = self._last = phase.clients[0]
            # A client that has left is not remembered.
            if client in self._served_s:
                self._served_s[client] += length_s / self._weights.get(client, 1.0)

    def _enter(self, requesting: frozenset[Client]) -> None:
        """A client that requested nothing for a while has no claim to the time that it did not use."""
        staying = [self._served_s.get(client, 0.0) for client in requesting & self._requesting]
        least_s = min(staying, default=0.0)
        for client in requesting - self._requesting:
            self._served_s[client] = max(least_s, self._served_s.get(client, 0.0))
        self._requesting = requesting

    def _least_served(self, clients: Sequence[Client]) -> Client:
        """Not the last one again for a small lead: the time that it takes to stop is counted once it has stopped."""

        def had_s(client: Client) -> float:
            stopping_s = self.quantum_s / 2 if client == self._last else 0.0
            return self._served_s[client] + stopping_s / self._weights[client]

        return min(clients, key=had_s)

    def _fair(self, clients: Sequence[Client]) -> tuple[float, ...]:
        weights = [self._weights.get(client, 1.0) for client in clients]
        return tuple(weight / sum(weights) for weight in weights)

    def _next_part(self, clients: tuple[Client, ...], verdict: _Verdict) -> Phase[Client]:
        """The part of the round that is owed the most time."""
        shares = (verdict.division.together, *verdict.division.alone)
        owed = verdict.owed_s
        part = max(range(len(shares)), key=lambda index: owed[index] + shares[index])
        length_s = max(_SHORTEST_S, min(_ROUND_S, shares[part] * _ROUND_S + owed[part]))
        running = clients if part == 0 else (clients[part - 1],)
        return Phase(running, length_s, Way.MIXED, measure=length_s >= LEAST_MEASURED_S)

    def _coarse_verdict(self, clients: Sequence[Client], before: _Verdict | None, now_s: float) -> _Verdict:
        solo = [self._solo_of(client) for client in clients]
        fits = sum(one.known.sm for one in solo if one.known is not None) <= 1.0
        fair = self._fair(clients)
        division = TimeDivision(1.0, (0.0,) * len(fair), len(fair)) if fits else turns(fair)
        device = DeviceActivity(1.0)
        return self._verdict(division, device, (), tuple(one.version for one in solo), before, now_s)

    # Freshness

    def _unmeasured(self, clients: Sequence[Client], most_fresh_s: float, now_s: float) -> Client | None:
        """The client to measure alone: one that never was, or the one whose measurement has counted for longest."""

        def due_s(client: Client) -> float:
            solo = self._solo_of(client)
            return solo.measured_s + min(most_fresh_s, solo.fresh_s) * max(1.0, len(clients) / 2)

        # Of several that were never measured, the least served: a device that does not answer starves no client.
        first = min(clients, key=lambda client: (due_s(client), self._served_s[client]))
        return first if now_s >= due_s(first) else None

    def _most_fresh_s(self, verdict: _Verdict | None) -> float:
        return _NEW_FRESH_S if verdict is None and not self.coarse else _SOLO_FRESH_S

    def _measure_s(self, client: Client) -> float:
        if self.coarse:
            return _COARSE_SPANS * self.coarse_span_s
        return MEASURE_S if self.solo_activity(client) is None else LEAST_MEASURED_S

    def _is_stale(self, verdict: _Verdict, clients: Sequence[Client], now_s: float) -> bool:
        if verdict.versions != tuple(self._solo_of(client).version for client in clients):
            return True
        return verdict.division.is_turns and now_s - verdict.made_s >= verdict.again_s

    def _contradicts(self, verdict: _Verdict, activity: DeviceActivity, progress: Sequence[float]) -> bool:
        if verdict.division.is_turns:
            return False
        pairs = zip(activity, verdict.device, strict=True)
        if any(abs(new - old) > verdict.tolerance * max(old, _LEAST_ACTIVITY) for new, old in pairs):
            return True
        limit = _PROGRESS_TOLERANCES * verdict.tolerance
        return any(abs(new - old) > limit for new, old in zip(progress, verdict.progress, strict=True))

    def _doubt(self, key: frozenset[Client], verdict: _Verdict) -> None:
        del self._verdicts[key]
        verdict.tolerance = min(_CONTRADICTION_MOST, 2 * verdict.tolerance)
        self._doubted[key] = verdict
        for client in key:
            self._solo_of(client).doubt()

    def _in_order(self, clients: Sequence[Client]) -> tuple[Client, ...]:
        for client in clients:
            if client not in self._arrival:
                self._arrivals += 1
                self._arrival[client] = self._arrivals
        return tuple(sorted(clients, key=self._arrival.__getitem__))

    def _solo_of(self, client: Client) -> SoloActivity:
        return self._solo.setdefault(client, SoloActivity())
