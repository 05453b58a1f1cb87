"""One GPU's clients that fit into its memory: which of them may run now, and until when. The package has the rules.

A phase is a set of clients that run at the same time. `phase` returns the next one. `record_phase_end` takes how
long it lasted, `record_activity` the device's activity in it, `record_use` what each client's processes had of the GPU.
The caller runs the phases, bills and throttles: it names only the clients that may run now.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Generic, TypeVar

from gpucommons.model.gpu import IDLE_ACTIVITY, DeviceActivity
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.corun.accounts import OwnerAccounts
from gpucommons.scheduler.corun.facts import (
    LONG_USE_SPAN_S,
    MAX_SAMPLES,
    USE_SPAN_S,
    Activity,
    ClientFacts,
    LatencyUse,
    Use,
    is_quiet,
    progress_together,
)

# GPM's counters move every 100 ms: a shorter phase cannot be measured, and neither can its first 100 ms.
LEAST_MEASURED_S: Final = 0.25
SETTLE_S: Final = 0.1
QUANTUM_S: Final = 0.25
# A look at one client, and how much longer it may take until the others have stopped and run again.
LOOK_S: Final = 0.3
LOOK_SLACK_S: Final = 0.1
# A client is looked at this long after it came, and this long after the last look: longer after each.
_LOOK_AFTER_S: Final = 1.0
_LOOK_AGAIN_S: Final = 2.0
_MAX_LOOK_AGAIN_S: Final = 3600.0
_BETWEEN_LOOKS_S: Final = 1.0
# A client is idle if it did not use the GPU although it ran for this long, in the seconds over which use is read.
_MIN_RAN_S: Final = 1.0
# How often the device is measured while all run together: until it is known whether turns gain, and later. Clients
# with a quota may run for less than a second at a time.
_TRIAL_S: Final = 0.4
_TOGETHER_S: Final = 1.0
# Turns must gain this much over running together; turns that gain less than the second are given up.
TURN_GAIN: Final = 0.05
_KEEP_RATIO: Final = 0.4
# Looks at each client before turns are taken for a gain. One is enough where the gain is so large that noise does not
# explain it: in turns each client is seen alone all the time, so that an error is found within seconds.
_LOOKS_FOR_TURNS: Final = 2
_LARGE_GAIN: Final = 0.15
# A client that uses little of the GPU is taken to be heavy only when so many looks found it busy.
_LOOKS_FOR_HEAVY: Final = 3
_SAMPLES_TOGETHER: Final = 2
# When a verdict is checked: first, and by which factor later each time.
_CHECK_TOGETHER_S: Final = 120.0
_CHECK_TURNS_S: Final = 30.0
_CHECK_FACTOR: Final = 4.0
_MAX_CHECK_S: Final = 3600.0
# The device's activity is this far from that of the verdict, as a ratio and at least in points: check it.
_DRIFT_RATIO: Final = 0.3
_DRIFT_POINTS: Final = 0.1
_DRIFT_AFTER_S: Final = 10.0
# Fairness: an owner is deprived if it has less than this part of its share, over so many seconds. Use is read coarsely:
# over a short time, only a large difference counts.
_DEPRIVED: Final = ((0.8, USE_SPAN_S), (0.88, LONG_USE_SPAN_S))
# A device that is busy for this share of the time has no room for more.
_FULL: Final = 0.9
# A device that is used for less of the time serves all.
_SATURATED: Final = 0.7
# An owner with light clients only counts as greedy above the second part of an equal share, where one with heavy
# clients is below the first.
_GREEDY: Final = (0.8, 1.1)
# A client that was not seen alone is taken to be heavy if it uses this much of an equal part.
_HEAVY_PART: Final = 0.5
# Use that no process explains: how much of it counts, and how long an owner whose programs came or left is taken to be
# the cause. Readings of use are a second apart.
_MIN_UNSEEN: Final = 0.1
_PASSING_S: Final = 2.5
_MAX_USE_S: Final = 2.0
# What a newcomer used of the time between two readings: on average it began halfway, and had half of the GPU. The
# driver does not know yet: its samples are means over a second, and the first of a process comes up to a second late.
_NEWCOMER_RATIO: Final = 0.25
# Without samples of processes, clients of unknown activity count as programs after this time.
_COUNTS_AFTER_S: Final = 2.0
_RECHECK_FAIRNESS_S: Final = 60.0
_FAIRNESS_REMEMBERED_S: Final = 600.0
_MAX_FAIRNESS: Final = 256
# How often a lone client is measured: until enough is known of it, and later.
_ALONE_S: Final = 2.0
_ALONE_KNOWN_S: Final = 10.0
_NOTHING_UNPAUSED: Final[Mapping[str, float]] = {}
# Clients of class background run for this part of the time, once in each period, while others compete.
BACKGROUND_RATIO: Final = 0.02
BACKGROUND_PERIOD_S: Final = 4.0
# To see each alone and to estimate the progress of so many takes long enough.
MAX_CLIENTS: Final = 64

Client = TypeVar("Client", bound=Hashable)


class Way(StrEnum):
    ALONE = "alone"
    TOGETHER = "together"
    TURNS = "turns"
    MEASURING = "measuring"


class PhaseCause(StrEnum):
    """Why clients take turns or run together."""

    NONE = "none"
    FAIRNESS = "fairness"
    GAIN = "gain"
    NO_GAIN = "no_gain"
    CLASS = "class"


@dataclass(frozen=True, slots=True)
class Phase(Generic[Client]):
    """These clients may run, for this long; `measure`: the device's activity of it is to be measured."""

    clients: tuple[Client, ...]
    length_s: float
    way: Way
    measure: bool = False
    cause: PhaseCause = PhaseCause.NONE
    # Its turn or look, without the light clients that run along.
    unit: tuple[Client, ...] = ()


class _Verdict:
    """Whether turns gain for one set of clients. `turns` is None until it is known."""

    __slots__ = ("_estimate", "_inputs", "check_s", "device", "drifts", "interval_s", "progress", "settled_s", "turns")

    def __init__(self) -> None:
        self.turns: bool | None = None
        self.progress = 1.0
        self.device: DeviceActivity | None = None
        self.settled_s = float("-inf")
        self.check_s = float("inf")
        self.interval_s = 0.0
        self.drifts = 0
        self._inputs: tuple[DeviceActivity, Sequence[DeviceActivity]] | None = None
        self._estimate = 1.0

    def estimate(self, device: DeviceActivity, alone: Sequence[DeviceActivity]) -> float:
        """Their progress together, in total. Computed again only when a measurement has changed: a turn may begin every
        few milliseconds."""
        if self._inputs != (device, alone):
            self._inputs = (device, alone)
            self._estimate = max(0.01, sum(progress_together(device, alone)))
        return self._estimate

    def settle(self, turns: bool, progress: float, device: DeviceActivity, now_s: float) -> None:
        first_s = _CHECK_TURNS_S if turns else _CHECK_TOGETHER_S
        same = turns == self.turns
        self.interval_s = min(_MAX_CHECK_S, _CHECK_FACTOR * self.interval_s) if same else max(first_s, self.interval_s)
        self.turns, self.progress, self.device = turns, progress, device
        self.settled_s, self.check_s = now_s, now_s + self.interval_s


class _Fairness:
    """Whether the owners that compete get their shares together. It is looked at again ever more seldom."""

    __slots__ = ("interval_s", "recheck_s", "seen_s", "since_s", "unfair")

    def __init__(self, now_s: float) -> None:
        self.unfair = False
        self.seen_s = now_s
        # Use is judged from here on.
        self.since_s = now_s
        self.recheck_s = float("inf")
        self.interval_s = _RECHECK_FAIRNESS_S

    def find_unfair(self, now_s: float) -> None:
        self.unfair = True
        self.recheck_s = now_s + self.interval_s
        self.interval_s = min(_MAX_CHECK_S, _CHECK_FACTOR * self.interval_s)

    def try_together(self, now_s: float) -> None:
        self.unfair, self.since_s, self.recheck_s = False, now_s, float("inf")


class Coruns(Generic[Client]):
    """`quantum_s`, `metered`, whether the activity of a phase can be measured, and the part of the time that clients of
    class background have at least, may be changed at any time."""

    def __init__(self, turn_gain: float = TURN_GAIN, quantum_s: float = QUANTUM_S) -> None:
        self.quantum_s = quantum_s
        self.metered = True
        # What each owner was given of the GPU, where a batch system divides it; the others have 1.
        self.weights: Mapping[str, float] = {}
        self.background_ratio = BACKGROUND_RATIO
        self.background_period_s = BACKGROUND_PERIOD_S
        # The clients of class latency, those that are never paused now, and what their owners had by them.
        self._of_latency: frozenset[Client] = frozenset()
        self._latency: frozenset[Client] = frozenset()
        self._latency_use: dict[str, LatencyUse] = {}
        self._held_back_s: dict[Client, float] = {}
        # When clients of class background last had their part.
        self._background_s = float("-inf")
        self._turn_gain = turn_gain
        self._facts: dict[Client, ClientFacts] = {}
        self._owner_of: dict[Client, str] = {}
        self._owner_use: dict[str, Use] = {}
        self._used_s = float("-inf")
        # Use that is not of any client, and when a client of each owner last came or left.
        self._unseen = Use()
        self._passing_s: dict[str, float] = {}
        # Clients with new processes since the last call of `record_use`.
        self._grown: set[Client] = set()
        self._accounts: OwnerAccounts[Client] = OwnerAccounts()
        self._together: dict[frozenset[Client], Activity] = {}
        self._verdicts: dict[frozenset[Client], _Verdict] = {}
        self._fairness: dict[frozenset[str], _Fairness] = {}
        # Owners whose light clients together use more than their share, and until when they count as heavy.
        self._greedy_until_s: dict[str, float] = {}
        self._way = Way.ALONE
        self._looked_s = float("-inf")
        # The last look: the client that it was at, and all that ran in it.
        self._looked_at: Client | None = None
        self._look_clients: frozenset[Client] = frozenset()
        # When a phase was last chosen.
        self._now_s = float("-inf")
        # In order of arrival: the order of looks.
        self._arrival: dict[Client, int] = {}
        self._arrivals = 0

    # Learning

    def record_activity(self, clients: Sequence[Client], activity: DeviceActivity, now_s: float) -> None:
        """The device's activity over a time in which exactly these clients ran."""
        facts = {client: self._facts_of(client, now_s) for client in clients}
        heavy = [client for client in clients if not facts[client].light and client not in self._latency]
        if self._way is Way.MEASURING and self._looked_at in facts and self._look_clients.issuperset(clients):
            # Not so the measurement of the phase before, which may come when the look was chosen already.
            heavy = [self._looked_at]
        if len(clients) == 1:
            facts[clients[0]].learn_alone(activity, now_s)
        elif len(heavy) == 1:
            # Light clients ran along. What each of them does alone is not part of this one's, unless it is idle now.
            along = [facts[client] for client in clients if client != heavy[0]]
            means = (light.alone.mean for light in along if not light.use.is_idle)
            rest = activity.without(mean for mean in means if mean is not None)
            # Those that ran along had less of a full GPU than alone: that little was left makes no client light.
            proves_nothing = is_quiet(rest) and not is_quiet(activity, _FULL)
            if not (proves_nothing and facts[heavy[0]].light is False):
                facts[heavy[0]].learn_alone(rest, now_s)
        elif heavy:
            self._together.setdefault(frozenset(heavy), Activity()).learn(activity, now_s)

    def record_use(
        self,
        ratios: Mapping[Client, float],
        owner_of: Mapping[Client, str],
        total: float,
        now_s: float,
        unpaused: Mapping[str, float] = _NOTHING_UNPAUSED,
    ) -> None:
        """The share of the GPU's time that the processes of each client had since the last call. `total` is what the
        device was used in all, without processes that do not take part: more than the sum of the clients where
        processes have ended meanwhile, or were not seen yet. `unpaused` is what each owner had with processes that
        could not be paused, also during the turns of others."""
        self._owner_of.update(owner_of)
        before_s, elapsed_s = self._used_s, min(_MAX_USE_S, now_s - self._used_s)
        self._used_s = now_s
        unseen = max(0.0, total - sum(ratios.values()))
        self._unseen.learn(unseen, now_s)
        owners: dict[str, float] = dict.fromkeys(self._owner_of.values(), 0.0)
        for client, ratio in ratios.items():
            self._facts_of(client, now_s).use.learn(ratio, now_s)
            owner = self._owner_of[client]
            owners[owner] += ratio
            # While others are held back for a client, the GPU is its own.
            seconds = max(ratio * elapsed_s, min(elapsed_s, self._held_back_s.pop(client, 0.0)))
            if client in self._of_latency:
                self._latency_use.setdefault(owner, LatencyUse()).learn(seconds, now_s)
            if client in self._latency:
                self._accounts.charge(owner, seconds)
            elif self._way is Way.TOGETHER or self._facts[client].light:
                # In turns, what a client has is its time. Light clients take no turns, and together there are none.
                self._accounts.charge(owner, ratio * elapsed_s)
            elif self._facts[client].since_s > before_s or client in self._grown:
                # A newcomer, or a new process of a known client, ran before it was seen.
                self._accounts.transfer(owner, max(ratio, _NEWCOMER_RATIO) * elapsed_s)
        for owner in unpaused.keys() & self._accounts.owners:
            owners[owner] = owners.get(owner, 0.0) + unpaused[owner]
            self._accounts.transfer(owner, unpaused[owner] * elapsed_s)
        # What is not seen is of owners whose programs come and go.
        passing = [owner for owner, changed_s in self._passing_s.items() if changed_s >= now_s - _PASSING_S]
        self._passing_s = {owner: self._passing_s[owner] for owner in passing}
        for owner in passing:
            self._accounts.transfer(owner, unseen * elapsed_s / len(passing))
        self._grown.clear()
        for owner, ratio in owners.items():
            self._owner_use.setdefault(owner, Use()).learn(ratio, now_s)
        for absent in self._owner_use.keys() - owners.keys():
            # An owner whose programs come and go is remembered for as long as its use is looked at.
            self._owner_use[absent].learn(0.0, now_s)
            if self._owner_use[absent].mean(now_s, span_s=LONG_USE_SPAN_S) == 0.0:
                del self._owner_use[absent]
        self._find_greedy(now_s)

    def _find_greedy(self, now_s: float) -> None:
        """Many light clients are not light together: those of an owner that keeps another from its share count as
        heavy for a while."""
        means = {owner: use.mean(now_s) for owner, use in self._owner_use.items()}
        used = {owner: value for owner, value in means.items() if value is not None}
        if len(used) < 2 or sum(used.values()) < _SATURATED:
            return
        fair = sum(used.values()) / len(used)
        heavy = {self._owner_of[client] for client in self._owner_of if self._facts[client].light is False}
        low, high = _GREEDY
        if any(used.get(owner, fair) < low * fair for owner in heavy):
            greedy = (owner for owner, value in used.items() if value > high * fair and owner not in heavy)
            self._greedy_until_s |= dict.fromkeys(greedy, now_s + _RECHECK_FAIRNESS_S)

    def forget_since(self, begin_s: float) -> None:
        """Another client used the device since then: what was measured meanwhile does not count."""
        for facts in self._facts.values():
            facts.forget_since(begin_s)
        for activity in self._together.values():
            activity.forget_since(begin_s)

    def rest(self, client: Client) -> None:
        """The client does not compete any more. That it was idle at the end is not what it does when it works."""
        if client in self._facts:
            self._facts[client].forget_last_idle()

    def forget(self, client: Client) -> None:
        """The client has left."""
        self._facts.pop(client, None)
        self._grown.discard(client)
        self._arrival.pop(client, None)
        owner = self._owner_of.pop(client, None)
        if owner is not None:
            self._passing_s[owner] = self._used_s
            if owner not in self._owner_of.values():
                self._greedy_until_s.pop(owner, None)
        self._accounts.forget(client)
        self._latency -= {client}
        self._of_latency -= {client}
        self._held_back_s.pop(client, None)
        for of_sets in (self._together, self._verdicts):
            for key in [key for key in of_sets if client in key]:
                del of_sets[key]

    def record_growth(self, client: Client, owner: str, now_s: float) -> None:
        """A client has a new process, or is new itself; it ran before it was seen, and takes part or not."""
        self._grown.add(client)
        self._passing_s[owner] = now_s

    def has_passing_programs(self, now_s: float) -> bool:
        """Whether owners compete, and the clients of one of them come and go."""
        owners = set(self._owner_of.values()) | self._passing_s.keys()
        return len(owners) > 1 and any(changed_s >= now_s - _PASSING_S for changed_s in self._passing_s.values())

    def record_holdback(self, client: Client, seconds: float) -> None:
        """Others were held back for so long because this client, of class latency, worked."""
        self._held_back_s[client] = self._held_back_s.get(client, 0.0) + seconds

    def holds_back(self, client: Client) -> bool:
        """Whether others are held back while it works: it is of class latency, and its owner within its share."""
        return client in self._latency

    def runs_along(self, client: Client) -> bool:
        """Whether it runs in every phase."""
        return client in self._latency or bool(self.is_light(client))

    def is_over_share(self, owner: str, now_s: float) -> bool:
        """Whether the clients of class latency of this owner count as batch for now."""
        use = self._latency_use.get(owner)
        return use is not None and use.is_over(now_s)

    def latency_share(self, owner: str) -> float:
        """The share of the GPU that this owner has, among those that compete."""
        return self._accounts.part_of(owner, self._accounts.owners)

    def solo_activity(self, client: Client) -> DeviceActivity | None:
        facts = self._facts.get(client)
        return None if facts is None else facts.alone.mean

    def is_light(self, client: Client) -> bool | None:
        """None until it was seen alone."""
        facts = self._facts.get(client)
        return None if facts is None else facts.light

    def gain(self, phase: Phase[Client], requesting: Collection[Client]) -> float | None:
        """Progress in total over that under the driver's time-slicing, as estimated from the activity; None where it is
        not known. Together, the driver's time-slicing is what happens."""
        if phase.way is Way.TOGETHER:
            return 1.0
        heavy = frozenset(client for client in requesting if not self.is_light(client))
        verdict = self._verdicts.get(heavy)
        return 1.0 / verdict.progress if phase.cause is PhaseCause.GAIN and verdict and verdict.turns else None

    # Deciding

    def phase(
        self, requesting: Mapping[Client, str], now_s: float, classes: Mapping[Client, SharingClass] | None = None
    ) -> Phase[Client]:
        """The clients that run next. `requesting` has the owner of each client, and is not empty; `classes` the class
        of those that are not batch."""
        clients = self._enter(requesting, now_s)
        of_class = {} if classes is None else classes
        self._find_latency(clients, of_class, now_s)
        background = tuple(client for client in clients if of_class.get(client) is SharingClass.BACKGROUND)
        if not background or len(background) == len(clients):
            return self._phase(clients, now_s)
        others = tuple(client for client in clients if client not in background)
        return self._with_background(self._phase(others, now_s), background, now_s)

    def _find_latency(self, clients: Sequence[Client], classes: Mapping[Client, SharingClass], now_s: float) -> None:
        """The clients that are never paused now. An owner that has the GPU for itself may use all of it."""
        owners = {self._owner_of[client] for client in clients}
        for owner, use in self._latency_use.items():
            if owners != {owner}:
                use.judge(self._accounts.part_of(owner, owners), now_s)
        self._of_latency = frozenset(client for client in clients if classes.get(client) is SharingClass.LATENCY)
        self._latency = frozenset(
            client for client in self._of_latency if not self.is_over_share(self._owner_of[client], now_s)
        )

    def _with_background(self, phase: Phase[Client], background: tuple[Client, ...], now_s: float) -> Phase[Client]:
        """The phase of the other clients. Once in each period, the background ones run along for their part of it."""
        due_s = self._background_s + self.background_period_s
        if now_s >= due_s and phase.way is not Way.MEASURING:
            self._background_s = now_s
            self._way = phase.way if phase.way is Way.TURNS else Way.TOGETHER
            length_s = self.background_ratio * self.background_period_s
            return replace(
                phase,
                clients=(*phase.clients, *background),
                length_s=min(length_s, phase.length_s),
                way=self._way,
                measure=False,
                cause=PhaseCause.CLASS if phase.cause is PhaseCause.NONE else phase.cause,
            )
        length_s = phase.length_s if phase.way is Way.MEASURING else min(phase.length_s, max(0.05, due_s - now_s))
        if phase.way is Way.ALONE:
            # A turn, so that a program that does not use it is found to be idle.
            self._way = Way.TURNS
            return Phase(phase.clients, length_s, Way.TURNS, self.metered, PhaseCause.CLASS, phase.clients)
        cause = PhaseCause.CLASS if phase.way is Way.TOGETHER else phase.cause
        return replace(phase, length_s=length_s, cause=cause)

    def _phase(self, clients: tuple[Client, ...], now_s: float) -> Phase[Client]:
        if len(clients) == 1:
            self._way = Way.ALONE
            length_s = _ALONE_S if len(self._facts[clients[0]].alone) < MAX_SAMPLES else _ALONE_KNOWN_S
            return Phase(clients, length_s, Way.ALONE, self.metered, unit=clients)
        using = max(1, sum((self._facts[client].use.mean(now_s) or 0.0) > 0.0 for client in clients))
        for client in clients:
            self._facts[client].reset_if_changed(using, now_s)
        heavy = [client for client in clients if not self._is_light(client, using, now_s)]
        light = tuple(client for client in clients if client not in heavy)
        doubtful = [client for client in heavy if self._may_be_light(client, using, now_s)]
        groups: dict[str, list[Client]] = {}
        for client in heavy:
            groups.setdefault(self._owner_of[client], []).append(client)
        if self._is_unfair(groups, now_s):
            return self._turn(groups, light, PhaseCause.FAIRNESS, now_s)
        certain = [client for client in heavy if client not in doubtful]
        light = (*light, *doubtful)
        groups = {owner: [client for client in group if client in certain] for owner, group in groups.items()}
        groups = {owner: group for owner, group in groups.items() if group}
        if self._gains(certain, now_s):
            return self._turn(groups, light, PhaseCause.GAIN, now_s)
        look = self._look(certain, doubtful, light, now_s)
        if look is not None:
            self._way = Way.MEASURING
            return look
        self._way = Way.TOGETHER
        verdict = self._verdicts.get(frozenset(certain))
        cause = PhaseCause.NO_GAIN if verdict is not None and verdict.turns is not None else PhaseCause.NONE
        length_s = _TOGETHER_S if cause is PhaseCause.NO_GAIN else _TRIAL_S
        return Phase(clients, length_s, Way.TOGETHER, self.metered, cause)

    def record_phase_end(self, phase: Phase[Client], length_s: float) -> None:
        """The phase lasted this long, or this much longer: its clients may have stopped slowly."""
        for client in phase.clients:
            if client in self._facts:
                self._facts[client].note_run(length_s, self._now_s)
        if phase.way in (Way.TURNS, Way.MEASURING):
            # All of one owner. One of them may have left meanwhile.
            for owner in {self._owner_of[client] for client in phase.unit if client in self._owner_of}:
                self._accounts.charge(owner, length_s, phase.unit)

    def _enter(self, requesting: Mapping[Client, str], now_s: float) -> tuple[Client, ...]:
        self._now_s = now_s
        for client in requesting:
            self._facts_of(client, now_s)
            if client not in self._arrival:
                self._arrivals += 1
                self._arrival[client] = self._arrivals
                self._passing_s[requesting[client]] = now_s
        self._owner_of.update(requesting)
        self._accounts.weights = self.weights
        self._accounts.enter(requesting, now_s)
        return tuple(sorted(requesting, key=self._arrival.__getitem__))

    def _is_light(self, client: Client, using: int, now_s: float) -> bool:
        """Whether it runs at all times. One that was not seen alone yet counts as heavy, except where that cannot be
        measured: there, what its processes use decides."""
        facts = self._facts[client]
        used = facts.use.mean(now_s)
        if client in self._latency:
            return True
        if used is not None and used < IDLE_ACTIVITY and facts.ran_s(now_s) >= _MIN_RAN_S:
            # It does not use the GPU now, although it was not paused.
            return True
        if now_s < self._greedy_until_s.get(self._owner_of[client], float("-inf")):
            return False
        if facts.light is not None or self.metered:
            return bool(facts.light)
        return used is not None and used < _HEAVY_PART / using

    def _may_be_light(self, client: Client, using: int, now_s: float) -> bool:
        """One that uses little may be light, although a look found it busy: before that is certain it is paused for
        fairness only, and not for a gain or a look at another one."""
        facts = self._facts[client]
        used = facts.use.mean(now_s)
        little = used is not None and used < _HEAVY_PART / using
        return self.metered and little and len(facts.alone) < _LOOKS_FOR_HEAVY

    # Fairness

    def _is_unfair(self, groups: Mapping[str, Sequence[Client]], now_s: float) -> bool:
        """Whether the owners of these clients have to take turns to have their shares."""
        if len(groups) < 2:
            return False
        if self._counts_differ(groups, now_s) or len({self.weights.get(owner, 1.0) for owner in groups}) > 1:
            return True
        fairness = self._fairness_of(frozenset(groups), now_s)
        if fairness.unfair and now_s >= fairness.recheck_s:
            fairness.try_together(now_s)
        elif not fairness.unfair and any(
            self._deprives(groups, ratio, span_s, fairness.since_s, now_s) for ratio, span_s in _DEPRIVED
        ):
            fairness.find_unfair(now_s)
        return fairness.unfair

    def _fairness_of(self, owners: frozenset[str], now_s: float) -> _Fairness:
        """It is remembered while an owner is away for a moment: owners that come and go gain nothing."""
        fairness = self._fairness.pop(owners, None)
        if fairness is None or now_s - fairness.seen_s > _FAIRNESS_REMEMBERED_S:
            fairness = _Fairness(now_s)
        elif now_s - fairness.seen_s > _COUNTS_AFTER_S:
            fairness.since_s = now_s
        fairness.seen_s = now_s
        self._fairness[owners] = fairness
        while len(self._fairness) > _MAX_FAIRNESS:
            del self._fairness[next(iter(self._fairness))]
        return fairness

    def _counts_differ(self, groups: Mapping[str, Sequence[Client]], now_s: float) -> bool:
        """Whether the owners have different numbers of programs. Where use is read, only known ones count."""
        reads_use = now_s - self._used_s < _COUNTS_AFTER_S
        counts = set()
        for clients in groups.values():
            facts = [self._facts[client] for client in clients]
            old = (not reads_use and now_s - fact.since_s >= _COUNTS_AFTER_S for fact in facts)
            counts.add(sum(fact.light is not None or counts_too for fact, counts_too in zip(facts, old, strict=True)))
        return 0 not in counts and len(counts) > 1

    def _deprives(
        self, groups: Mapping[str, Sequence[Client]], ratio: float, span_s: float, since_s: float, now_s: float
    ) -> bool:
        """Whether an owner had less than `ratio` of its share over the span, while another one had more."""
        means = {owner: use.mean(now_s, since_s, span_s) for owner, use in self._owner_use.items()}
        used = {owner: value for owner, value in means.items() if value is not None}
        unseen = self._unseen.mean(now_s, since_s, span_s) or 0.0
        # The use of an owner whose programs come and go may never have been read.
        used = dict.fromkeys(self._passing_s, 0.0) | used
        if not groups.keys() <= used.keys() or sum(used.values()) + unseen < _SATURATED:
            return False
        fair = (sum(used[owner] for owner in groups) + unseen) / len(groups)
        enough = _HEAVY_PART / sum(map(len, groups.values()))
        deprived = any(
            used[owner] < ratio * fair and any(self._competes_for_more(client, enough, now_s) for client in clients)
            for owner, clients in groups.items()
        )
        ahead = any(used[owner] > fair for owner in groups)
        return deprived and (ahead or (unseen > _MIN_UNSEEN and bool(self._passing_s)))

    def _competes_for_more(self, client: Client, enough: float, now_s: float) -> bool:
        """A heavy client; or one that was not seen alone yet, if it uses much of an equal part."""
        facts = self._facts[client]
        return facts.light is False or (facts.light is None and (facts.use.mean(now_s) or 0.0) >= enough)

    # Turns

    def _turn(
        self, groups: Mapping[str, Sequence[Client]], light: tuple[Client, ...], cause: PhaseCause, now_s: float
    ) -> Phase[Client]:
        """The turn of the owner that has had least: its clients together, or one of them where that gains."""
        self._way = Way.TURNS
        clients = [client for group in groups.values() for client in group]
        if cause is PhaseCause.GAIN and self._is_trial_due(clients, now_s):
            return Phase((*clients, *light), _TRIAL_S, Way.TOGETHER, measure=True, cause=cause)
        slack_s = self.quantum_s / 2
        group = groups[self._accounts.next_owner(groups, slack_s)]
        if cause is PhaseCause.GAIN or self._gains(group, now_s):
            unit = [self._accounts.next_client(group, slack_s)]
        else:
            look = self._look(group, (), (), now_s)
            unit = list(group) if look is None else list(look.unit)
        measure = self.metered and self.quantum_s >= LEAST_MEASURED_S
        return Phase((*unit, *light), self.quantum_s, Way.TURNS, measure, cause, tuple(unit))

    def _is_trial_due(self, clients: Iterable[Client], now_s: float) -> bool:
        """Whether it is time to see them together again. That pauses no client."""
        key = frozenset(clients)
        verdict, together = self._verdicts[key], self._together[key]
        if now_s >= verdict.check_s:
            together.clear()
            verdict.check_s = float("inf")
        return len(together) == 0

    # Gain

    def _gains(self, clients: Sequence[Client], now_s: float) -> bool:
        """Whether turns are known to gain for these clients."""
        if len(clients) < 2 or not self.metered:
            return False
        key = frozenset(clients)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._verdicts[key] = self._inherit_verdict(key, now_s)
        together = self._together.setdefault(key, Activity())
        if verdict.turns is False:
            self._doubt(clients, verdict, together, now_s)
        device = together.mean
        alone = [facts.alone.mean for facts in map(self._facts.__getitem__, clients)]
        measured = [activity for activity in alone if activity is not None]
        if device is None or len(measured) < len(alone):
            return bool(verdict.turns)
        progress = verdict.estimate(device, measured)
        gain = 1.0 / progress - 1.0
        if verdict.turns:
            if gain < _KEEP_RATIO * self._turn_gain:
                verdict.settle(False, progress, device, now_s)
            elif verdict.check_s == float("inf"):
                verdict.settle(True, progress, device, now_s)
            else:
                verdict.progress = progress
        elif len(together) >= _SAMPLES_TOGETHER and verdict.check_s == float("inf"):
            seen = min(len(self._facts[client].alone) for client in clients)
            if gain < self._turn_gain:
                verdict.settle(False, progress, device, now_s)
            elif seen >= (1 if gain >= _LARGE_GAIN else _LOOKS_FOR_TURNS):
                verdict.settle(True, progress, device, now_s)
        return bool(verdict.turns)

    def _inherit_verdict(self, key: frozenset[Client], now_s: float) -> _Verdict:
        """Clients that gained by turns with another one, which rests now, are taken to gain without it. They are seen
        together next."""
        verdict = _Verdict()
        for larger, other in self._verdicts.items():
            if other.turns and other.device is not None and key < larger:
                verdict.settle(True, other.progress, other.device, now_s)
                break
        return verdict

    def _doubt(self, clients: Sequence[Client], verdict: _Verdict, together: Activity, now_s: float) -> None:
        """The verdict that turns do not gain is checked when its time has come, or the device's activity is another."""
        device = together.mean
        due = now_s >= verdict.check_s
        if not due and device is not None and verdict.device is not None and verdict.check_s != float("inf"):
            limit = max(_DRIFT_POINTS, _DRIFT_RATIO * verdict.device.sm)
            wait_s = _DRIFT_AFTER_S * _CHECK_FACTOR**verdict.drifts
            due = abs(device.sm - verdict.device.sm) > limit and now_s - verdict.settled_s >= wait_s
            verdict.drifts = min(8, verdict.drifts + due)
        if due:
            verdict.check_s = float("inf")
            for client in clients:
                self._facts[client].alone.clear()

    # Looks

    def _look(
        self, heavy: Sequence[Client], doubtful: Sequence[Client], light: Sequence[Client], now_s: float
    ) -> Phase[Client] | None:
        """A look at a client that has to be seen alone, if the budgets of those that it pauses allow it. `doubtful` are
        those that use little: they are seen first, and are not paused."""
        several = len(heavy) > 1 or (heavy and doubtful)
        if not self.metered or not several or now_s < self._looked_s + _BETWEEN_LOOKS_S:
            return None
        reads_use = now_s - self._used_s < _COUNTS_AFTER_S
        for client in sorted((*heavy, *doubtful), key=lambda candidate: self._look_order(candidate, now_s)):
            if client not in doubtful and (len(heavy) < 2 or not self._must_be_seen(client, heavy)):
                continue
            facts = self._facts[client]
            paused = [self._facts[other] for other in heavy if other != client]
            again_s = min(_MAX_LOOK_AGAIN_S, _LOOK_AGAIN_S * 2.0 ** max(0, facts.looks - 2)) if facts.looks else 0.0
            early = now_s < max(facts.since_s + _LOOK_AFTER_S, facts.looked_s + again_s)
            if early or (reads_use and any(self._facts[other].awaits_use(now_s) for other in heavy)):
                continue
            length_s = LOOK_S + LOOK_SLACK_S
            if all(other.budget.allows(length_s, now_s) for other in paused):
                for other in paused:
                    other.budget.spend(length_s, now_s)
                self._looked_s = facts.looked_s = now_s
                self._looked_at = client
                facts.looks += 1
                seen = (client, *(other for other in light if other != client))
                self._look_clients = frozenset(seen)
                return Phase(seen, LOOK_S, Way.MEASURING, measure=True, unit=(client,))
        return None

    def _look_order(self, client: Client, now_s: float) -> tuple[bool, float]:
        """Those that were not seen first, and of these the one that uses least: if it is light, it has not been paused,
        and the others may not have to be seen."""
        facts = self._facts[client]
        return len(facts.alone) > 0, facts.use.mean(now_s) or 0.0

    def _must_be_seen(self, client: Client, heavy: Sequence[Client]) -> bool:
        """One that was not seen alone; or what one look showed speaks for turns, and is to be confirmed."""
        seen, key = len(self._facts[client].alone), frozenset(heavy)
        undecided = self._verdicts[key].check_s == float("inf") and len(self._together[key]) >= _SAMPLES_TOGETHER
        return seen == 0 or (undecided and seen < _LOOKS_FOR_TURNS)

    def _facts_of(self, client: Client, now_s: float) -> ClientFacts:
        facts = self._facts.get(client)
        if facts is None:
            facts = self._facts[client] = ClientFacts(now_s)
        return facts
