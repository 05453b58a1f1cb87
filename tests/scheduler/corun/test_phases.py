"""Which clients run together, seen from outside: what each has is read once a second, and phases are chosen by it."""

from collections.abc import Mapping
from itertools import pairwise

import pytest

from gpucommons.model.gpu import DeviceActivity
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.corun.coruns import Coruns, Phase, PhaseCause, Way

HEAVY, LIGHT = DeviceActivity(0.9, busy=0.95), DeviceActivity(0.3, busy=0.3)


class Shared:
    """Clients of one GPU. Those in `alone` were seen alone, three times."""

    STEP_S = 0.25

    def __init__(self, requesting: Mapping[str, str], alone: Mapping[str, DeviceActivity], now_s: float = 0.0) -> None:
        self.coruns: Coruns[str] = Coruns()
        self.requesting = requesting
        self.classes: dict[str, SharingClass] = {}
        # The device's SM activity while so many of them run, measured in each phase; without an entry, it is not.
        self.sm: Mapping[int, float] = {}
        self.now_s = now_s
        self.coruns.phase(requesting, now_s)
        for client, activity in alone.items():
            for _ in range(3):
                self.coruns.record_activity([client], activity, now_s)

    def play(self, seconds: float, use: Mapping[str, float] | None, unseen: float = 0.0) -> list[Phase[str]]:
        """The phases of these seconds, four in each. Without `use`, it is not read."""
        phases = []
        for tick in range(round(seconds / self.STEP_S)):
            if use is not None and tick % 4 == 0:
                self.coruns.record_use(use, self.requesting, sum(use.values()) + unseen, self.now_s)
            phase = self.coruns.phase(self.requesting, self.now_s, self.classes)
            self.coruns.record_phase_end(phase, self.STEP_S)
            phases.append(phase)
            self.now_s += self.STEP_S
            sm = self.sm.get(len(phase.clients))
            if sm is not None and phase.measure:
                self.coruns.record_activity(list(phase.clients), DeviceActivity(sm, busy=0.95), self.now_s)
        return phases


def ways(phases: list[Phase[str]]) -> set[Way]:
    return {phase.way for phase in phases}


PAIR, BOTH_HEAVY = {"a": "ann", "b": "bob"}, {"a": HEAVY, "b": HEAVY}
TOGETHER, TURNS = {Way.TOGETHER}, {Way.TURNS}


# Fairness


@pytest.mark.parametrize(
    ("of_ann", "of_bob", "soon", "later"),
    [
        (0.8, 0.15, TURNS, TURNS),
        (0.58, 0.42, TOGETHER, TURNS),
        (0.52, 0.48, TOGETHER, TOGETHER),
        (0.5, 0.1, TOGETHER, TOGETHER),
    ],
    ids=["much less", "less for long", "hardly less", "the GPU has room"],
)
def test_owners_take_turns_where_one_has_less_than_its_share(
    of_ann: float, of_bob: float, soon: set[Way], later: set[Way]
) -> None:
    shared, use = Shared(PAIR, BOTH_HEAVY), {"a": of_ann, "b": of_bob}
    assert ways(shared.play(2.0, use)) == TOGETHER
    shared.play(4.0, use)
    assert ways(shared.play(5.0, use)) == soon
    shared.play(20.0, use)
    assert ways(shared.play(5.0, use)) == later


def test_whether_owners_need_turns_is_tried_ever_more_seldom() -> None:
    shared, turns_s, before = Shared(PAIR, BOTH_HEAVY), [0.0], TOGETHER
    for _ in range(400):
        now = ways(shared.play(1.0, {"a": 0.8, "b": 0.15}))
        if now == TURNS:
            turns_s[-1] += 1.0
        elif before == TURNS:
            turns_s.append(0.0)
        before = now
    assert turns_s[:2] == [60.0, 240.0]


def test_owners_that_are_away_for_a_moment_gain_nothing() -> None:
    shared, use = Shared(PAIR, BOTH_HEAVY), {"a": 0.8, "b": 0.15}
    shared.play(10.0, use)
    shared.now_s += 30.0
    assert ways(shared.play(1.0, use)) == TURNS
    shared.now_s += 700.0
    assert ways(shared.play(2.0, use)) == TOGETHER, "it is judged by what they use from now on"
    assert ways(shared.play(50.0, use)) >= TURNS
    equal = {"a": 0.5, "b": 0.5}
    shared.play(20.0, equal)
    assert ways(shared.play(5.0, equal)) == TOGETHER, "turns took a minute, as the first time"


@pytest.mark.parametrize(
    ("each", "other", "unseen", "passing", "found"),
    [
        (0.3, 0.0, 0.4, True, TURNS),
        (0.3, 0.0, 0.4, False, TOGETHER),
        (0.1, 0.5, 0.15, True, TURNS),
        (0.1, 0.5, 0.08, True, TOGETHER),
    ],
)
def test_owners_take_turns_where_programs_that_come_and_go_use_much(
    each: float, other: float, unseen: float, passing: bool, found: set[Way]
) -> None:
    shared = Shared({**PAIR, "other": "carol"}, BOTH_HEAVY)
    shared.classes = {"other": SharingClass.LATENCY}
    shared.now_s = 10.0
    for _ in range(8):
        if passing:
            shared.coruns.record_growth("a", "ann", shared.now_s)
        phases = shared.play(1.0, {"a": each, "b": each, "other": other}, unseen)
    assert ways(phases) == found


@pytest.mark.parametrize(
    ("use", "seen", "takes_turns"),
    [
        ({"a": 0.8, "b": 0.05, "b2": 0.05}, "b", True),
        ({"a": 0.8, "b": 0.05, "b2": 0.05}, "", False),
        ({"a": 0.65, "b": 0.05, "b2": 0.2}, "", True),
    ],
    ids=["one is heavy", "none was seen, and all use little", "none was seen, and one uses much"],
)
def test_an_owner_that_has_less_takes_turns_if_one_of_its_clients_can_use_more(
    use: dict[str, float], seen: str, takes_turns: bool
) -> None:
    shared = Shared({"a": "ann", "b": "bob", "b2": "bob"}, {client: HEAVY for client in ("a", seen) if client})
    shared.now_s = 10.0
    assert (Way.TURNS in ways(shared.play(8.0, use))) is takes_turns


THREE = {"a1": "ann", "a2": "ann", "b": "bob"}


def test_clients_of_which_nothing_is_known_count_after_two_seconds_where_use_is_not_read() -> None:
    shared = Shared(THREE, {}, now_s=100.0)
    assert Way.TURNS not in ways(shared.play(2.0, None))
    assert ways(shared.play(2.0, None)) == TURNS
    shared = Shared(THREE, {})
    assert Way.TURNS not in ways(shared.play(10.0, {"a1": 0.25, "a2": 0.25, "b": 0.5}))


# Which clients are light


def test_a_client_of_class_latency_is_not_paused_for_turns_however_much_it_uses() -> None:
    shared = Shared(THREE, dict.fromkeys(THREE, HEAVY))
    shared.classes = {"a1": SharingClass.LATENCY}
    assert all("a1" in phase.clients for phase in shared.play(4.0, dict.fromkeys(THREE, 0.3)))
    shared = Shared(THREE, dict.fromkeys(THREE, HEAVY))
    assert any("a1" not in phase.clients for phase in shared.play(4.0, dict.fromkeys(THREE, 0.3)))


@pytest.mark.parametrize(
    ("alone", "of_bob", "found"),
    [({}, 0.1, TOGETHER), ({}, 0.3, TURNS), ({"b": LIGHT}, 0.2, TOGETHER), ({"b": HEAVY}, 0.1, TURNS)],
    ids=["uses little", "uses much", "was light", "was heavy"],
)
def test_without_a_meter_what_a_client_uses_decides_until_it_was_seen_alone(
    alone: dict[str, DeviceActivity], of_bob: float, found: set[Way]
) -> None:
    shared = Shared(THREE, alone)
    shared.coruns.metered = False
    use = {"a1": 0.4, "a2": 0.4, "b": of_bob}
    shared.play(4.0, use)
    assert ways(shared.play(1.0, use)) == found


def test_without_a_meter_one_that_uses_little_runs_in_the_turns_of_all() -> None:
    shared, use = Shared(THREE, {}), {"a1": 0.6, "a2": 0.1, "b": 0.3}
    shared.coruns.metered = False
    shared.play(8.0, use)
    assert {phase.clients for phase in shared.play(4.0, use)} == {("a1", "a2"), ("b", "a2")}


@pytest.mark.parametrize(("looks", "found"), [(2, TOGETHER), (3, TURNS)])
def test_a_heavy_client_that_uses_little_is_paused_for_a_gain_after_three_looks(looks: int, found: set[Way]) -> None:
    requesting = {"a": "ann", "a2": "ann"}
    shared = Shared(requesting, {"a2": HEAVY})
    for _ in range(looks):
        shared.coruns.record_activity(["a"], HEAVY, 0.0)
    for _ in range(6):
        (phase, *_) = shared.play(1.0, {"a": 0.1, "a2": 0.8})
        if phase.way is Way.TOGETHER:
            shared.coruns.record_activity(["a", "a2"], DeviceActivity(0.6, busy=0.95), shared.now_s)
    assert {phase.way} == found


# Gain


OF_ANN = {"a": "ann", "a2": "ann"}


def gaining(requesting: Mapping[str, str] = OF_ANN) -> Shared:
    """Each keeps nine tenths of the GPU busy alone, and all together six tenths."""
    shared = Shared(requesting, dict.fromkeys(requesting, HEAVY))
    shared.sm = {1: 0.9} | dict.fromkeys(range(2, len(requesting) + 1), 0.6)
    shared.play(2.0, None)
    assert {(phase.way, phase.cause) for phase in shared.play(1.0, None)} == {(Way.TURNS, PhaseCause.GAIN)}
    return shared


def trials_s(shared: Shared, until_s: float) -> list[float]:
    """When they run together next, by turns for a gain."""
    found = []
    while shared.now_s < until_s:
        (phase,) = shared.play(0.25, None)
        assert phase.cause is PhaseCause.GAIN
        if phase.way is Way.TOGETHER:
            found.append(shared.now_s)
    return found


def test_that_turns_gain_is_checked_by_moments_together_ever_more_seldom() -> None:
    times_s = trials_s(gaining(), 200.0)
    assert [round(after - before) for before, after in pairwise([1.0, *times_s])] == [30, 120]


def test_turns_that_do_not_gain_any_more_are_given_up() -> None:
    shared = gaining()
    shared.sm = {1: 0.9, 2: 0.9}
    shared.play(35.0, None)
    assert {(phase.way, phase.cause) for phase in shared.play(5.0, None)} == {(Way.TOGETHER, PhaseCause.NO_GAIN)}


def test_there_are_no_turns_for_a_gain_that_cannot_be_measured_any_more() -> None:
    shared = gaining()
    shared.coruns.metered = False
    phases = shared.play(1.0, None)
    assert ways(phases) == TOGETHER
    assert not any(phase.measure for phase in phases)


def test_clients_of_one_owner_take_turns_within_its_turn_where_that_gains() -> None:
    shared = Shared(THREE, dict.fromkeys(THREE, HEAVY))
    shared.sm = {1: 0.9, 2: 0.6}
    shared.play(2.0, None)
    assert {phase.unit for phase in shared.play(2.0, None)} == {("a1",), ("a2",), ("b",)}


def test_all_take_turns_one_by_one_where_that_gains_though_the_clients_of_one_owner_gain_nothing() -> None:
    shared = Shared(OF_ANN, dict.fromkeys(OF_ANN, HEAVY))
    shared.sm = {1: 0.9, 2: 0.9, 4: 0.6}
    assert ways(shared.play(5.0, None)) == TOGETHER
    shared.requesting = {**OF_ANN, "b": "bob", "b2": "bob"}
    shared.play(0.25, None)
    for client in ("b", "b2"):
        for _ in range(3):
            shared.coruns.record_activity([client], HEAVY, shared.now_s)
    shared.play(2.0, None)
    assert {phase.unit for phase in shared.play(4.0, None)} == {("a",), ("a2",), ("b",), ("b2",)}


@pytest.mark.parametrize(
    ("looks", "together", "cause"),
    [
        ((1, 1), 0.7, PhaseCause.GAIN),
        ((1, 1), 0.82, PhaseCause.NONE),
        ((2, 1), 0.82, PhaseCause.NONE),
        ((2, 2), 0.82, PhaseCause.GAIN),
        ((1, 1), 0.88, PhaseCause.NO_GAIN),
    ],
    ids=["large, and seen once", "small, and seen once", "one seen twice", "small, and seen twice", "too small"],
)
def test_a_small_gain_has_to_be_confirmed_by_a_second_look(
    looks: tuple[int, int], together: float, cause: PhaseCause
) -> None:
    shared = Shared(OF_ANN, {})
    for client, times in zip(OF_ANN, looks, strict=True):
        for _ in range(times):
            shared.coruns.record_activity([client], HEAVY, 0.0)
    shared.coruns.record_activity(["a", "a2"], DeviceActivity(together, busy=0.95), 0.0)
    (phase,) = shared.play(0.25, None)
    assert phase.cause is PhaseCause.NONE, "one measurement of both together proves nothing"
    shared.coruns.record_activity(["a", "a2"], DeviceActivity(together, busy=0.95), 0.0)
    (phase,) = shared.play(0.25, None)
    assert phase.cause is cause


def test_clients_that_gained_by_turns_with_one_that_rests_now_go_on_and_are_seen_together() -> None:
    shared = gaining({**OF_ANN, "a3": "ann"})
    shared.requesting = OF_ANN
    (trial, *turns) = shared.play(2.0, None)
    assert (trial.way, trial.cause, trial.clients) == (Way.TOGETHER, PhaseCause.GAIN, ("a", "a2"))
    assert {(phase.way, phase.cause) for phase in turns} == {(Way.TURNS, PhaseCause.GAIN)}
    # Not so one that comes: of these it is not known.
    shared.requesting = {**OF_ANN, "a4": "ann"}
    (phase,) = shared.play(0.25, None)
    assert (phase.way, phase.cause) == (Way.TOGETHER, PhaseCause.NONE)


def test_that_turns_do_not_gain_holds_though_what_was_measured_does_not_count_any_more() -> None:
    shared = Shared(OF_ANN, dict.fromkeys(OF_ANN, HEAVY))
    shared.sm = {2: 0.9}
    shared.play(5.0, None)
    shared.coruns.forget_since(0.0)
    assert {(phase.way, phase.cause) for phase in shared.play(1.0, None)} == {(Way.TOGETHER, PhaseCause.NO_GAIN)}


@pytest.mark.parametrize(
    ("metered", "quantum_s", "measure"), [(True, 0.25, True), (True, 0.2, False), (False, 0.25, False)]
)
def test_turns_that_are_long_enough_are_measured(metered: bool, quantum_s: float, measure: bool) -> None:
    shared = Shared(THREE, dict.fromkeys(THREE, HEAVY))
    shared.coruns.metered, shared.coruns.quantum_s = metered, quantum_s
    assert {(phase.way, phase.length_s, phase.measure) for phase in shared.play(2.0, None)} == {
        (Way.TURNS, quantum_s, measure)
    }


# Looks


def looks(shared: Shared, until_s: float, use: Mapping[str, float] | None = None) -> list[tuple[float, str]]:
    """When which client is looked at."""
    found = []
    while shared.now_s < until_s:
        begin_s = shared.now_s
        (phase,) = shared.play(0.25, use if begin_s % 1.0 == 0.0 else None)
        if phase.way is Way.MEASURING:
            found.append((begin_s, phase.unit[0]))
    return found


def test_a_client_that_looks_did_not_show_is_looked_at_ever_more_seldom() -> None:
    by_the_budget = [60.0, 120.0]
    looked = looks(Shared(PAIR, {}), 150.0)
    assert [at_s for at_s, client in looked if client == "a"] == [1.0, 3.0, 5.0, 9.0, *by_the_budget]
    assert [at_s for at_s, client in looked if client == "b"] == [2.0, 4.0, 6.0, 10.0, *(61.0, 121.0)]


def test_one_that_uses_little_is_looked_at_though_only_one_other_runs() -> None:
    looked = looks(Shared(PAIR, {"a": HEAVY}), 4.0, {"a": 0.9, "b": 0.1})
    assert looked == [(1.0, "b"), (3.0, "b")]
    assert looks(Shared({"b": "bob"}, {}), 4.0, {"b": 0.1}) == []


def test_a_look_waits_until_it_is_known_what_a_new_client_uses() -> None:
    shared, use = Shared(PAIR, dict.fromkeys(PAIR, HEAVY)), {"a": 0.5, "b": 0.4, "c": 0.1}
    shared.play(10.25, {"a": 0.5, "b": 0.5})
    shared.requesting = {**PAIR, "c": "carol"}
    assert looks(shared, 13.0, use)[0] == (12.0, "c"), "two readings"


def test_each_is_paused_for_four_looks_at_most_in_its_first_minute() -> None:
    looked = [client for _, client in looks(Shared({**PAIR, "c": "carol"}, {}), 60.0)]
    assert len(looked) == 6, "a look pauses two"
    assert {looked.count(client) for client in "abc"} == {2}


@pytest.mark.parametrize(("times", "order"), [(1, ["a2", "a", "a2"]), (2, ["a2", "a2", "a2"])])
def test_one_that_was_not_seen_yet_is_looked_at_before_the_other_is_confirmed(times: int, order: list[str]) -> None:
    shared = Shared(OF_ANN, {})
    for _ in range(times):
        shared.coruns.record_activity(["a"], HEAVY, 0.0)
    shared.sm = {2: 0.82}
    assert [client for _, client in looks(shared, 5.5)][:3] == order


def test_a_look_at_each_is_enough_where_turns_do_not_gain_and_is_confirmed_where_they_may() -> None:
    for sm, looked in ((0.89, ["a", "a2"]), (0.82, ["a", "a2", "a", "a2"])):
        shared = Shared(OF_ANN, {})
        shared.sm = {1: 0.9, 2: sm}
        assert [client for _, client in looks(shared, 20.0)] == looked
    assert ways(shared.play(2.0, None)) == TURNS
    shared = Shared(OF_ANN, {})
    for client in OF_ANN:
        shared.coruns.record_activity([client], HEAVY, 0.0)
    assert looks(shared, 5.0) == [], "they were not seen together yet"


def test_a_small_gain_is_confirmed_also_where_turns_did_not_gain_before() -> None:
    shared = Shared(OF_ANN, dict.fromkeys(OF_ANN, HEAVY))
    shared.sm = {1: 0.9, 2: 0.9}
    shared.play(10.0, None)
    shared.sm = {1: 0.9, 2: 0.82}
    assert [client for _, client in looks(shared, 130.0)] == ["a", "a2"], "checked after two minutes"
    assert [client for _, client in looks(shared, 190.0)] == ["a", "a2"], "a minute later there is time for more"
    assert {(phase.way, phase.cause) for phase in shared.play(1.0, None)} == {(Way.TURNS, PhaseCause.GAIN)}


# Measuring and classes


def test_a_look_comes_before_the_part_of_a_background_client() -> None:
    shared = Shared({**PAIR, "low": "dana"}, {})
    shared.classes = {"low": SharingClass.BACKGROUND}
    (first, *_) = shared.play(0.25, None)
    assert "low" in first.clients
    shared.now_s = 5.0
    look, part = shared.play(0.5, None)
    assert (look.way, len(look.clients)) == (Way.MEASURING, 1)
    assert part.clients == ("a", "b", "low")


def test_clients_together_are_measured_often_until_it_is_known_whether_turns_gain() -> None:
    requesting = {"a": "ann", "a2": "ann"}
    shared, lengths_s = Shared(requesting, dict.fromkeys(requesting, HEAVY)), []
    for _ in range(4):
        phase = shared.coruns.phase(requesting, shared.now_s)
        lengths_s.append((phase.cause, phase.length_s))
        shared.coruns.record_activity(list(requesting), DeviceActivity(0.9, busy=0.95), shared.now_s)
    assert lengths_s == [(PhaseCause.NONE, 0.4)] * 2 + [(PhaseCause.NO_GAIN, 1.0)] * 2


def test_an_owner_may_use_all_of_the_gpu_by_several_clients_of_class_latency_while_it_is_alone() -> None:
    requesting = {"a1": "ann", "a2": "ann"}
    shared = Shared(requesting, {})
    shared.classes = dict.fromkeys(requesting, SharingClass.LATENCY)
    for _ in range(70):
        for client in requesting:
            shared.coruns.record_holdback(client, 1.0)
        shared.play(1.0, dict.fromkeys(requesting, 0.5))
    assert shared.coruns.holds_back("a1")


def test_the_time_for_which_an_owner_had_the_gpu_alone_does_not_count() -> None:
    shared = Shared(THREE, dict.fromkeys(THREE, HEAVY))
    for alone in ({"a1": "ann"}, {"b": "bob"}):
        shared.requesting = alone
        assert ways(shared.play(4.0 if "a1" in alone else 1.0, None)) == {Way.ALONE}
    shared.requesting = THREE
    units = [phase.unit for phase in shared.play(2.0, None)]
    assert 3 <= units.count(("b",)) <= 5


def test_a_turn_counts_though_its_first_client_has_left_meanwhile() -> None:
    requesting = {**THREE, "a3": "ann"}
    shared = Shared(requesting, dict.fromkeys(requesting, HEAVY))
    shared.play(2.0, None)
    while (phase := shared.coruns.phase(shared.requesting, shared.now_s)).unit == ("b",):
        shared.coruns.record_phase_end(phase, 0.25)
    shared.coruns.forget("a1")
    shared.coruns.record_phase_end(phase, 1.0)
    shared.requesting = {client: owner for client, owner in requesting.items() if client != "a1"}
    assert {phase.unit for phase in shared.play(0.75, None)} == {("b",)}


def test_an_owner_that_had_its_share_by_class_latency_cannot_hold_back_others_after_a_rest() -> None:
    shared, use = Shared({**PAIR, "c": "carol"}, {}), {"a": 0.9, "b": 0.05, "c": 0.05}
    shared.classes = {"a": SharingClass.LATENCY}
    shared.play(50.0, use)
    shared.requesting = {"b": "bob", "c": "carol"}
    shared.play(20.0, {"b": 0.5, "c": 0.5})
    assert shared.coruns.is_over_share("ann", shared.now_s)
    shared.play(40.0, {"b": 0.5, "c": 0.5})
    assert not shared.coruns.is_over_share("ann", shared.now_s)
