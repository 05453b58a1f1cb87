"""The parts of the decision between together and turns: estimates, light clients, budgets, accounts."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.model.gpu import DeviceActivity
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.corun.accounts import OwnerAccounts
from gpucommons.scheduler.corun.coruns import LOOK_S, LOOK_SLACK_S, Coruns, Phase, PhaseCause, Way, _Fairness, _Verdict
from gpucommons.scheduler.corun.facts import (
    FIRST_MINUTE_RATIO,
    LATER_RATIO,
    MAX_PROGRESS,
    Activity,
    ClientFacts,
    PauseBudget,
    Use,
    progress_together,
)
from gpucommons.simulation.lab_jobs import MATRIX_LOADS

# Pairs on an H200: kinds, the device's activity together, measured progress of each.
PAIRS = [
    ((8192, 8192), DeviceActivity(0.871, 0.774, 0.21), (0.48, 0.48)),
    ((4096, 4096), DeviceActivity(0.514, 0.406, 0.17), (0.36, 0.36)),
    ((2048, 2048), DeviceActivity(0.548, 0.356, 0.05), (0.39, 0.39)),
    ((1536, 1536), DeviceActivity(0.424, 0.241, 0.01), (0.61, 0.61)),
    ((1024, 1024), DeviceActivity(0.272, 0.107, 0.00), (0.98, 0.88)),
    ((512, 512), DeviceActivity(0.118, 0.014, 0.00), (0.77, 0.90)),
    ((4096, 512), DeviceActivity(0.346, 0.220, 0.09), (0.40, 1.02)),
    ((4096, 1536), DeviceActivity(0.463, 0.313, 0.09), (0.34, 0.65)),
]


@pytest.mark.parametrize(("kinds", "device", "measured"), PAIRS, ids=str)
def test_the_estimate_is_near_what_an_h200_showed(
    kinds: tuple[int, int], device: DeviceActivity, measured: tuple[float, float]
) -> None:
    progress = progress_together(device, [MATRIX_LOADS[kind].activity for kind in kinds])
    assert sum(progress) == pytest.approx(sum(measured), abs=0.2)
    assert min(progress) == pytest.approx(min(measured), abs=0.15)


activities = st.builds(DeviceActivity, *[st.floats(0.001, 1.0)] * 3)


@given(activities, st.lists(activities, min_size=1, max_size=8))
def test_an_estimate_is_bounded(device: DeviceActivity, alone: list[DeviceActivity]) -> None:
    progress = progress_together(device, alone)
    assert len(progress) == len(alone)
    assert all(0.0 <= part <= MAX_PROGRESS for part in progress)


@pytest.mark.parametrize(("kinds", "device", "measured"), PAIRS, ids=str)
def test_an_estimate_depends_on_what_each_has_not_on_how_much_of_the_gpu_that_is(
    kinds: tuple[int, int], device: DeviceActivity, measured: tuple[float, float]
) -> None:
    def tenth(activity: DeviceActivity) -> DeviceActivity:
        return DeviceActivity(*(value / 10 for value in activity.work))

    alone = [MATRIX_LOADS[kind].activity for kind in kinds]
    assert progress_together(tenth(device), [*map(tenth, alone)]) == pytest.approx(progress_together(device, alone))


def test_a_client_that_does_nearly_nothing_is_taken_to_be_slowed_down_like_the_others() -> None:
    alone = [DeviceActivity(0.9, 0.8, 0.2), DeviceActivity(0.002, 0.0, 0.002)]
    busy, other = progress_together(DeviceActivity(0.5, 0.45, 0.12), alone)
    assert other == pytest.approx(busy, abs=0.1), "noise in one metric says nothing about it"


def test_clients_that_do_nothing_are_not_slowed_down() -> None:
    assert progress_together(DeviceActivity(0.1), [DeviceActivity(0.0)] * 2) == (1.0, 1.0)


# Light clients


@pytest.mark.parametrize(
    ("busy", "light"),
    [
        ([0.9] * 8, False),
        ([0.16] * 8, True),
        ([0.9, 0.9, 0.0, 0.9, 0.9, 0.0, 0.9, 0.0], True),
        ([0.9, 0.9, 0.9, 0.9, 0.4, 0.9, 0.9, 0.9], False),
        ([0.45], True),
        ([0.55], False),
    ],
    ids=["trainer", "bound by launches", "bursts", "one stall", "one quiet look", "one busy look"],
)
def test_a_client_that_uses_less_than_half_of_the_time_or_bursts_is_light(busy: list[float], light: bool) -> None:
    activity = Activity()
    for second, value in enumerate(busy):
        activity.learn(DeviceActivity(0.5, busy=value), float(second))
    assert activity.is_light is light


def test_without_a_measurement_of_busy_time_a_client_is_not_light() -> None:
    activity = Activity()
    activity.learn(DeviceActivity(0.01), 0.0)
    assert not activity.is_light


def test_a_light_client_that_begins_to_use_the_gpu_is_seen_again_and_doubted_ever_more_seldom() -> None:
    facts = ClientFacts(0.0)
    doubts = []
    for second in range(1, 1000):
        facts.use.learn(0.6, float(second))
        facts.reset_if_changed(2, float(second))
        if facts.light is None:
            # A look: it is light, and uses as much all the same.
            doubts.append(second)
            facts.looked_s = float(second)
            facts.learn_alone(DeviceActivity(0.1, busy=0.16), float(second))
    gaps = [after - before for before, after in pairwise(doubts)]
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 200


def test_a_client_that_worked_in_bursts_is_seen_again_when_it_uses_an_equal_part_but_not_twice() -> None:
    facts = ClientFacts(0.0)
    for second, busy in enumerate([0.97, 0.97, 0.0]):
        facts.learn_alone(DeviceActivity(busy, busy=busy), float(second))
    assert facts.light
    for second in range(10, 16):
        facts.use.learn(0.3, float(second))
    facts.reset_if_changed(2, 15.0)
    assert facts.light, "0.3 is less than an equal part of two"
    facts.reset_if_changed(3, 15.0)
    assert facts.light is None
    for second, busy in enumerate([0.97, 0.3], start=16):
        facts.learn_alone(DeviceActivity(busy, busy=busy), float(second))
    facts.looked_s = 17.0
    for second in range(100, 106):
        facts.use.learn(0.3, float(second))
    facts.reset_if_changed(3, 105.0)
    assert facts.light, "a look has confirmed it"


@pytest.mark.parametrize(("used", "is_light"), [(0.38, True), (0.45, None)])
def test_a_light_client_that_a_look_has_confirmed_is_doubted_when_it_uses_much_more_than_that_showed(
    used: float, is_light: bool | None
) -> None:
    facts = ClientFacts(0.0)
    facts.learn_alone(DeviceActivity(0.2, busy=0.2), 0.0)
    for begin_s in (10, 100):
        for second in range(begin_s, begin_s + 6):
            facts.use.learn(used, float(second))
        facts.reset_if_changed(8, begin_s + 5.0)
        if begin_s == 10:
            assert facts.light is None, "it uses its part of eight: a first look"
            facts.learn_alone(DeviceActivity(0.2, busy=0.2), 16.0)
    assert facts.light is is_light


def test_what_was_measured_while_another_client_was_not_seen_does_not_count() -> None:
    facts = ClientFacts(0.0)
    facts.learn_alone(DeviceActivity(0.8, busy=0.9), 1.0)
    facts.learn_alone(DeviceActivity(0.2, busy=0.2), 2.0)
    facts.forget_since(1.5)
    assert facts.light is False
    facts.forget_since(0.0)
    assert facts.light is None


# The budget


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.05, 1.0)), min_size=1, max_size=80))
def test_pauses_for_looks_stay_within_the_budget_over_every_minute(wishes: list[tuple[float, float]]) -> None:
    budget, now_s = PauseBudget(0.0), 0.0
    pauses: list[tuple[float, float]] = []
    for gap_s, length_s in wishes:
        now_s += gap_s
        if budget.allows(length_s, now_s):
            budget.spend(length_s, now_s)
            pauses.append((now_s, now_s + length_s))
            now_s += length_s

    def paused_s(begin_s: float) -> float:
        return sum(max(0.0, min(end, begin_s + 60.0) - max(start, begin_s)) for start, end in pauses)

    assert paused_s(0.0) <= 60.0 * FIRST_MINUTE_RATIO + 1e-9
    edges = {60.0, *(start for start, _ in pauses), *(end - 60.0 for _, end in pauses)}
    for begin_s in edges:
        if begin_s >= 60.0:
            assert paused_s(begin_s) <= 60.0 * LATER_RATIO + 1e-9


def test_the_budget_allows_a_look_each_minute_and_four_in_the_first() -> None:
    cost_s = LOOK_S + LOOK_SLACK_S
    budget = PauseBudget(0.0)
    looks = 0
    for second in range(60 * 10):
        if budget.allows(cost_s, float(second)):
            budget.spend(cost_s, float(second))
            looks += 1
    assert looks == 4 + 9


def test_a_pause_counts_until_a_minute_has_passed_since_it() -> None:
    budget = PauseBudget(0.0)
    budget.spend(0.6, 70.0)
    assert not budget.allows(0.4, 130.1)
    assert budget.allows(0.4, 130.3)


def test_a_pause_that_reaches_into_the_second_minute_has_to_fit_into_that_too() -> None:
    assert PauseBudget(0.0).allows(0.7, 59.2)
    assert not PauseBudget(0.0).allows(0.7, 59.5)


# OwnerAccounts


def test_a_new_program_of_an_owner_has_no_claim_to_the_time_before_it_came() -> None:
    accounts: OwnerAccounts[str] = OwnerAccounts()
    accounts.enter({"old": "alice"}, 0.0)
    accounts.charge("alice", 100.0, ["old"])
    accounts.enter({"old": "alice", "new": "alice"}, 100.0)
    had = []
    for _ in range(6):
        had.append(accounts.next_client(["old", "new"], 0.1))
        accounts.charge("alice", 1.0, had[-1:])
    assert sorted(had) == ["new"] * 3 + ["old"] * 3
    accounts.charge("alice", 3.0, ["new"])
    for _ in range(3):
        assert accounts.next_client(["new", "old"], 0.1) == "old", "it has had least"
        accounts.charge("alice", 0.9, ["old"])


def test_a_new_program_is_level_with_the_program_of_its_owner_that_has_had_least() -> None:
    accounts: OwnerAccounts[str] = OwnerAccounts()
    accounts.enter({"much": "alice", "little": "alice"}, 0.0)
    accounts.charge("alice", 1.0, ["much"])
    accounts.enter({"much": "alice", "little": "alice", "new": "alice"}, 1.0)
    accounts.charge("alice", 0.5, ["new"])
    assert accounts.next_client(["much", "new"], 0.0) == "new"


def test_the_last_one_is_not_next_for_a_small_lead() -> None:
    accounts: OwnerAccounts[str] = OwnerAccounts()
    accounts.enter({"a": "ann", "b": "bob"}, 0.0)
    accounts.charge("bob", 0.25, ["b"])
    accounts.charge("ann", 0.2, ["a"])
    for slack_s, owner, client in ((0.01, "ann", "a"), (0.1, "bob", "b")):
        assert accounts.next_owner(["ann", "bob"], slack_s) == owner
        assert accounts.next_client(["a", "b"], slack_s) == client


def test_the_owner_that_has_had_least_is_next_and_a_newcomer_has_no_claim_to_the_past() -> None:
    accounts: OwnerAccounts[str] = OwnerAccounts()
    accounts.enter({"a": "ann"}, 0.0)
    accounts.charge("ann", 100.0, ["a"])
    accounts.enter({"a": "ann", "b": "bob"}, 100.0)
    accounts.charge("bob", 0.25, ["b"])
    assert accounts.next_owner(["ann", "bob"], 0.0) == "ann"


def test_a_new_owner_is_level_with_the_owner_that_has_had_least() -> None:
    accounts: OwnerAccounts[str] = OwnerAccounts()
    accounts.enter({"a": "ann", "b": "bob"}, 0.0)
    accounts.charge("ann", 1.0, ["a"])
    accounts.enter({"a": "ann", "b": "bob", "c": "carol"}, 1.0)
    accounts.charge("carol", 0.5, ["c"])
    assert accounts.next_owner(["ann", "carol"], 0.0) == "carol"


def test_an_owner_that_starts_another_program_has_not_had_less() -> None:
    accounts: OwnerAccounts[str] = OwnerAccounts()
    both = {"a": "ann", "m1": "mallory"}
    accounts.enter(both, 0.0)
    accounts.charge("mallory", 1.5, ["m1"])
    accounts.enter({"a": "ann"}, 2.0)
    accounts.forget("m1")
    accounts.enter({"a": "ann", "m2": "mallory"}, 3.0)
    assert accounts.next_owner(["mallory", "ann"], 0.0) == "ann"
    accounts.charge("ann", 1.0, ["a"])
    assert accounts.next_owner(["mallory", "ann"], 0.0) == "ann"


def test_an_owner_is_never_owed_more_than_two_seconds() -> None:
    accounts: OwnerAccounts[str] = OwnerAccounts()
    accounts.enter({"a": "ann", "b": "bob"}, 0.0)
    accounts.charge("bob", 3600.0, ["b"])
    accounts.charge("ann", 2.5, ["a"])
    assert accounts.next_owner(["ann", "bob"], 0.0) == "bob"


def test_what_an_owner_used_without_a_turn_is_taken_from_it_and_given_to_the_others() -> None:
    accounts: OwnerAccounts[str] = OwnerAccounts()
    accounts.enter({"a": "ann", "b": "bob"}, 0.0)
    accounts.charge("ann", 0.9, ["a"])
    accounts.transfer("bob", 0.5)
    assert accounts.next_owner(["bob", "ann"], 0.0) == "ann"


def test_accounts_of_owners_that_left_are_bounded() -> None:
    accounts: OwnerAccounts[int] = OwnerAccounts()
    for number in range(3000):
        accounts.enter({number: f"uid:{number}"}, float(number) / 100)
        accounts.charge(f"uid:{number}", 0.1, [number])
        accounts.forget(number)
    assert 1024 <= len(accounts._owners_s) <= 1026
    accounts.enter({1: "ann"}, 10_000.0)
    assert len(accounts._owners_s) <= 2


# Phases


def test_a_client_that_left_is_forgotten() -> None:
    coruns: Coruns[str] = Coruns()
    requesting = {"a": "ann", "b": "bob"}
    coruns.phase(requesting, 0.0)
    coruns.record_activity(["a"], DeviceActivity(0.8, busy=0.9), 0.5)
    coruns.record_activity(["b"], DeviceActivity(0.8, busy=0.9), 0.8)
    coruns.record_use({"a": 0.5, "b": 0.5}, requesting, 1.0, 1.0)
    coruns.record_activity(["a", "b"], DeviceActivity(0.8, busy=1.0), 1.5)
    phase = coruns.phase(requesting, 2.0)
    coruns.forget("a")
    coruns.record_phase_end(phase, 0.4)
    for kept in (coruns._facts, coruns._owner_of, coruns._arrival):
        assert "a" not in kept
    assert all("a" not in key for key in (*coruns._together, *coruns._verdicts))


def test_without_a_meter_no_client_is_looked_at_and_owners_with_more_programs_take_turns() -> None:
    coruns: Coruns[str] = Coruns()
    coruns.metered = False
    requesting = {"a1": "ann", "a2": "ann", "a3": "ann", "b": "bob"}
    ways = set()
    for tick in range(400):
        now_s = tick * 0.25
        if tick % 4 == 0:
            coruns.record_use(dict.fromkeys(requesting, 0.25), requesting, 1.0, now_s)
        phase = coruns.phase(requesting, now_s)
        coruns.record_phase_end(phase, 0.25)
        ways.add(phase.way)
        if 10.0 < now_s < 60.0:
            assert phase.unit in (("a1", "a2", "a3"), ("b",))
    assert ways == {Way.TOGETHER, Way.TURNS}


@pytest.mark.parametrize(
    ("seen", "had_s"), [(0.9, 0.9), (0.0, 0.25)], ids=["seen at work", "not known to the driver yet"]
)
def test_what_a_new_program_had_before_it_was_seen_is_taken_from_its_owner(seen: float, had_s: float) -> None:
    coruns: Coruns[str] = Coruns()
    coruns.metered = False
    requesting = {"a1": "ann", "a2": "ann", "a3": "ann", "b": "bob"}
    turns_s = {"ann": 0.0, "bob": 0.0}
    for tick in range(60):
        now_s = tick * 0.25
        if tick == 43:
            requesting = {**requesting, "b2": "bob"}
            turns_s = dict.fromkeys(turns_s, 0.0)
        if tick % 4 == 0:
            ratios = dict.fromkeys(requesting, 0.25)
            if tick == 44:
                ratios["b2"] = seen
            coruns.record_use(ratios, requesting, 1.0, now_s)
        phase = coruns.phase(requesting, now_s)
        coruns.record_phase_end(phase, 0.25)
        if tick > 20:
            assert phase.way is Way.TURNS
            turns_s[requesting[phase.unit[0]]] += 0.25
    assert turns_s["ann"] - turns_s["bob"] == pytest.approx(2 * had_s, abs=0.3)


@pytest.mark.parametrize(("unpaused", "part"), [(0.0, 0.5), (0.25, 0.25), (0.5, 0.0)])
def test_what_an_owner_uses_with_processes_that_cannot_be_paused_shortens_its_turns(
    unpaused: float, part: float
) -> None:
    """Half of the GPU, all the time, is all that it is due."""
    coruns: Coruns[str] = Coruns()
    coruns.metered = False
    requesting = {"a1": "ann", "a2": "ann", "a3": "ann", "b": "bob"}
    turns = []
    for tick in range(160):
        now_s = tick * 0.25
        if tick % 4 == 0:
            coruns.record_use(dict.fromkeys(requesting, 0.25), requesting, 1.0, now_s, {"ann": unpaused, "carol": 1.0})
        phase = coruns.phase(requesting, now_s)
        coruns.record_phase_end(phase, 0.25)
        if tick >= 60:
            assert phase.way is Way.TURNS
            turns.append(requesting[phase.unit[0]])
    assert turns.count("ann") / len(turns) == pytest.approx(part, abs=0.06)


def test_a_heavy_client_that_stopped_using_the_gpu_takes_no_turns() -> None:
    coruns: Coruns[str] = Coruns()
    requesting = {"a1": "ann", "a2": "ann", "a3": "ann", "b": "bob"}
    of_bob = 0.25
    for tick in range(240):
        now_s = tick * 0.25
        for client in requesting if tick == 0 else ():
            coruns.record_activity([client], DeviceActivity(0.9, busy=1.0), now_s)
        if tick % 4 == 0:
            of_bob = 0.25 if now_s < 30.0 else 0.0
            coruns.record_use({"a1": 0.25, "a2": 0.25, "a3": 0.25, "b": of_bob}, requesting, 0.75 + of_bob, now_s)
        phase = coruns.phase(requesting, now_s)
        coruns.record_phase_end(phase, 0.25)
        if 20.0 <= now_s < 30.0:
            assert phase.way is Way.TURNS
        if now_s >= 50.0:
            assert {"a1", "a2", "a3"} <= set(phase.clients), "none waits for the turn of a client that does nothing"


def looks(together: Callable[[float], float], until_s: float, clients: int = 2) -> list[float]:
    """When one of the heavy clients of one owner is looked at alone: it uses its part of what all use together."""
    coruns: Coruns[str] = Coruns()
    requesting = {f"a{number}": "ann" for number in range(clients)}
    looked = []
    for tick in range(round(until_s / 0.25)):
        now_s = tick * 0.25
        if tick % 4 == 0:
            coruns.record_use(dict.fromkeys(requesting, 1.0 / clients), requesting, 1.0, now_s)
        phase = coruns.phase(requesting, now_s)
        activity = DeviceActivity(together(now_s) * len(phase.clients) / clients, busy=1.0)
        coruns.record_activity(list(phase.clients), activity, now_s + 0.25)
        coruns.record_phase_end(phase, 0.25)
        if phase.way is Way.MEASURING:
            looked.append(now_s)
        else:
            assert phase.way is Way.TOGETHER
    return looked


def test_that_turns_do_not_gain_is_doubted_when_the_activity_changes() -> None:
    steady = looks(lambda now_s: 0.6, 50.0)
    assert len(steady) == 2, "each once"
    assert steady[-1] < 10.0
    changed = looks(lambda now_s: 0.6 if now_s < 20.0 else 0.9, 50.0)
    assert changed[:2] == steady
    assert [at_s > 20.0 for at_s in changed[2:]] == [True, True], "both once more"
    small = looks(lambda now_s: 0.6 if now_s < 20.0 else 0.75, 50.0)
    assert small == looks(lambda now_s: 0.2 if now_s < 20.0 else 0.28, 50.0) == steady, "a small change proves nothing"


def test_a_doubt_lasts_until_all_were_seen_again_however_long_that_takes() -> None:
    looked = looks(lambda now_s: 0.6 if now_s < 20.0 else 0.9, 250.0, clients=4)
    assert len(looked) == 8, "each once, and once more"
    assert looked[7] > 150.0, "a look in each minute: those that it pauses have no time for more"


def test_turns_for_an_activity_that_changes_again_and_again_are_looked_for_ever_more_seldom() -> None:
    doubts = looks(lambda now_s: 0.6 if now_s % 10.0 < 5.0 else 0.9, 250.0)[1::2]
    gaps_s = [after - before for before, after in pairwise(doubts)]
    assert [gap_s // 10 for gap_s in gaps_s] == [1, 4, 16]


def test_use_needs_enough_readings() -> None:
    use = Use()
    use.learn(0.5, 1.0)
    use.learn(0.7, 2.0)
    assert use.mean(2.0) is None
    use.learn(0.6, 3.0)
    assert use.mean(3.0) == pytest.approx(0.6)
    assert use.mean(3.0, since_s=1.5) is None


def test_idleness_before_a_rest_does_not_make_a_client_light() -> None:
    coruns: Coruns[str] = Coruns()
    coruns.phase({"a": "ann"}, 0.0)
    for second, busy in enumerate([0.9, 0.9, 0.0, 0.0]):
        coruns.record_activity(["a"], DeviceActivity(0.8 if busy else 0.0, busy=busy), float(second))
    assert coruns.is_light("a")
    coruns.rest("a")
    assert coruns.is_light("a") is False


def test_the_rest_of_a_full_gpu_does_not_make_a_client_light() -> None:
    """One client was idle for a moment when it was alone, and is taken to be light; both work all the time."""
    coruns: Coruns[str] = Coruns()
    coruns.phase({"a": "ann"}, 0.0)
    coruns.record_activity(["a"], DeviceActivity(0.9, busy=0.97), 1.0)
    coruns.phase({"b": "bob"}, 2.0)
    for second, busy in enumerate([0.97, 0.97, 0.0], start=3):
        coruns.record_activity(["b"], DeviceActivity(busy, busy=busy), float(second))
    assert (coruns.is_light("a"), coruns.is_light("b")) == (False, True)
    coruns.phase({"a": "ann", "b": "bob"}, 6.0)
    coruns.record_activity(["a", "b"], DeviceActivity(0.87, busy=0.99), 7.0)
    assert coruns.is_light("a") is False
    coruns.record_activity(["a", "b"], DeviceActivity(0.6, busy=0.7), 8.0)
    coruns.record_activity(["a", "b"], DeviceActivity(0.6, busy=0.7), 9.0)
    assert coruns.is_light("a"), "the GPU had room for more"


def test_a_measurement_of_clients_together_that_comes_after_the_look_was_chosen_is_not_of_one_alone() -> None:
    coruns: Coruns[str] = Coruns()
    requesting = {"a": "ann", "b": "bob"}
    coruns.phase(requesting, 0.0)
    coruns.record_use({"a": 0.5, "b": 0.5}, requesting, 1.0, 1.0)
    coruns.record_use({"a": 0.5, "b": 0.5}, requesting, 1.0, 2.0)
    look = coruns.phase(requesting, 2.1)
    assert look.way is Way.MEASURING
    coruns.record_activity(["a", "b"], DeviceActivity(0.5, busy=1.0), 2.1)
    assert [coruns.solo_activity(client) for client in requesting] == [None, None]
    coruns.record_activity(look.clients, DeviceActivity(0.8, busy=0.9), 2.4)
    assert [coruns.solo_activity(client) for client in look.clients] == [DeviceActivity(0.8, busy=0.9)]


def test_what_runs_along_in_a_look_is_not_looked_at() -> None:
    coruns: Coruns[str] = Coruns()
    requesting = {"a": "ann", "b": "bob", "c": "chen"}
    coruns.phase(requesting, 0.0)
    # One that uses little is seen first, and is not paused for a look at another one.
    for second in (1.0, 2.0, 3.0):
        coruns.record_use({"a": 0.45, "b": 0.45, "c": 0.1}, requesting, 1.0, second)
    assert coruns.phase(requesting, 3.1).clients == ("c",)
    coruns.record_activity(["c"], DeviceActivity(0.2, busy=0.7), 3.4)
    look = coruns.phase(requesting, 5.0)
    assert (look.way, look.unit, look.clients) == (Way.MEASURING, ("a",), ("a", "c"))
    coruns.record_activity(look.clients, DeviceActivity(0.8, busy=0.9), 5.3)
    alone = coruns.solo_activity("a")
    assert alone is not None
    assert alone.sm == pytest.approx(0.6)


def test_a_verdict_is_checked_ever_more_seldom() -> None:
    verdict, gaps_s = _Verdict(), []
    for _ in range(6):
        verdict.settle(True, 0.8, DeviceActivity(0.5), 100.0)
        gaps_s.append(verdict.check_s - verdict.settled_s)
    assert gaps_s == [30.0, 120.0, 480.0, 1920.0, 3600.0, 3600.0]
    verdict = _Verdict()
    verdict.settle(True, 0.8, DeviceActivity(0.5), 0.0)
    verdict.settle(False, 0.98, DeviceActivity(0.5), 0.0)
    assert verdict.check_s == 120.0, "another verdict begins again"
    fairness, gaps_s = _Fairness(0.0), []
    for _ in range(5):
        fairness.find_unfair(100.0)
        assert fairness.unfair
        gaps_s.append(fairness.recheck_s - 100.0)
        fairness.try_together(100.0)
        assert not fairness.unfair
    assert gaps_s == [60.0, 240.0, 960.0, 3600.0, 3600.0]


def test_a_light_client_is_light_until_it_is_seen_at_work_alone() -> None:
    coruns: Coruns[str] = Coruns()
    coruns.phase({"a": "ann"}, 0.0)
    coruns.record_activity(["a"], DeviceActivity(0.1, busy=0.1), 1.0)
    assert coruns.is_light("a")
    for second in range(2, 10):
        coruns.record_activity(["a"], DeviceActivity(0.9, busy=0.9), float(second))
    assert coruns.is_light("a") is False


def test_what_runs_next_to_a_client_of_class_latency_is_seen_alone() -> None:
    coruns: Coruns[str] = Coruns()
    coruns.phase({"a": "ann", "b": "bob"}, 0.0, {"a": SharingClass.LATENCY})
    coruns.record_activity(["a", "b"], DeviceActivity(0.9, busy=0.9), 1.0)
    assert coruns.solo_activity("b") == DeviceActivity(0.9, busy=0.9)
    assert coruns.solo_activity("a") is None


class Charged:
    """Owners whose use is read every 1.5 s. The weight of carol is such that owners take turns where she takes part."""

    STEP_S = 1.5

    def __init__(self, requesting: dict[str, str], classes: dict[str, SharingClass] | None = None) -> None:
        self.coruns: Coruns[str] = Coruns()
        self.coruns.weights = {"carol": 1.0001}
        self.requesting, self.now_s = dict(requesting), 0.0
        self.classes = classes or {}
        for _ in range(3):
            self.coruns.phase(requesting, self.now_s, self.classes)
            self.read(dict.fromkeys(requesting, 0.0))
        self.way = self.coruns.phase(requesting, self.now_s, self.classes).way

    def read(self, ratios: dict[str, float], unseen: float = 0.0, unpaused: dict[str, float] | None = None) -> float:
        """By how much more of the time ann has had than bob since the reading before."""
        before_s = self._lead_s
        self.now_s += self.STEP_S
        self.coruns.record_use(ratios, self.requesting, sum(ratios.values()) + unseen, self.now_s, unpaused or {})
        return self._lead_s - before_s

    @property
    def _lead_s(self) -> float:
        had_s = self.coruns._accounts._owners_s
        return had_s["ann"] - had_s["bob"]


TOGETHER, IN_TURNS = {"a": "ann", "b": "bob"}, {"a": "ann", "b": "bob", "c": "carol"}


def test_owners_that_run_together_have_what_they_use() -> None:
    charged = Charged(TOGETHER)
    assert charged.way is Way.TOGETHER
    assert charged.read({"a": 0.4, "b": 0.1}) == pytest.approx(0.45)


def test_in_turns_only_what_is_used_besides_is_charged() -> None:
    charged = Charged(IN_TURNS)
    assert charged.way is Way.TURNS
    busy = {"a": 0.4, "b": 0.1, "c": 0.5}
    assert charged.read(busy) == 0.0
    # What is transferred is taken from the others in equal parts.
    assert charged.read(busy, unpaused={"ann": 0.4}) == pytest.approx(0.6 + 0.3)
    charged.coruns.record_growth("a", "ann", charged.now_s)
    assert charged.read(busy) == pytest.approx(0.6 + 0.3), "a new process ran before it was seen"
    charged = Charged(IN_TURNS)
    charged.coruns.record_growth("a", "ann", charged.now_s)
    lead_s = charged.read({"a": 0.0, "b": 0.1, "c": 0.5})
    assert lead_s == pytest.approx(0.375 + 0.1875), "it is not known to the driver yet"


def test_use_that_is_not_seen_is_of_those_that_come_and_go() -> None:
    idle = {"a": 0.0, "b": 0.0, "c": 0.0}
    charged = Charged(IN_TURNS)
    assert charged.read(idle, unseen=0.4) == 0.0, "none has changed lately"
    for passing, lead_s in (({"a": "ann"}, 0.6 + 0.3), ({"a": "ann", "c": "carol"}, 0.3 + 0.15)):
        charged = Charged(IN_TURNS)
        for client, owner in passing.items():
            charged.coruns.record_growth(client, owner, charged.now_s)
        charged.read(idle)
        assert charged.read(idle, unseen=0.4) == 0.0, "three seconds ago"
        for client, owner in passing.items():
            charged.coruns.record_growth(client, owner, charged.now_s)
            charged.coruns._grown.clear()
        assert charged.read(idle, unseen=0.4) == pytest.approx(lead_s)


def test_a_light_client_is_charged_what_it_uses_while_others_take_turns() -> None:
    charged = Charged({**IN_TURNS, "a": "ann"})
    charged.coruns.record_activity(["a"], DeviceActivity(0.1, busy=0.1), charged.now_s)
    assert charged.read({"a": 0.4, "b": 0.1, "c": 0.5}) == pytest.approx(0.6)


@pytest.mark.parametrize(("held_back_s", "had_s"), [(0.2, 0.6), (1.0, 1.0), (5.0, 1.5)])
def test_the_time_for_which_others_are_held_back_is_the_owners(held_back_s: float, had_s: float) -> None:
    charged = Charged(IN_TURNS, {"a": SharingClass.LATENCY})
    assert charged.way is Way.TURNS
    charged.coruns.record_holdback("a", held_back_s)
    assert charged.read({"a": 0.4, "b": 0.1, "c": 0.5}) == pytest.approx(had_s)
    assert charged.read({"a": 0.4, "b": 0.1, "c": 0.5}) == pytest.approx(0.6), "once"


def test_only_clients_of_class_latency_use_its_share() -> None:
    for used, is_over in (({"a": 0.0, "a2": 0.9, "b": 0.1}, False), ({"a": 0.9, "a2": 0.0, "b": 0.1}, True)):
        coruns: Coruns[str] = Coruns()
        requesting = {"a": "ann", "a2": "ann", "b": "bob"}
        for second in range(50):
            coruns.record_use(used, requesting, 1.0, float(second))
            coruns.phase(requesting, float(second), {"a": SharingClass.LATENCY})
        assert coruns.is_over_share("ann", 49.0) is is_over


def test_the_use_of_an_owner_that_left_is_remembered_for_as_long_as_use_is_looked_at() -> None:
    charged = Charged(IN_TURNS)
    charged.read({"a": 0.4, "b": 0.1, "c": 0.5})
    del charged.requesting["c"]
    charged.coruns.forget("c")
    seen_s = charged.now_s
    while "carol" in charged.coruns._owner_use:
        charged.read({"a": 0.4, "b": 0.1})
        assert charged.now_s < seen_s + 40.0
    assert charged.now_s > seen_s + 25.0


LIGHT_OF_ANN = [f"a{number}" for number in range(9)]


def with_many_light_clients(of_ann: float, heavy: dict[str, float]) -> tuple[Coruns[str], dict[str, str]]:
    """Ann's light clients use so much of the GPU, and the heavy ones so much, each of another owner."""
    coruns: Coruns[str] = Coruns()
    requesting = {**dict.fromkeys(LIGHT_OF_ANN, "ann"), **{client: f"owner of {client}" for client in heavy}}
    coruns.phase(requesting, 0.0)
    for client in requesting:
        for second in range(4):
            coruns.record_activity([client], DeviceActivity(0.5, busy=0.95 if client in heavy else 0.3), float(second))
    for second in range(4, 10):
        ratios = {**dict.fromkeys(LIGHT_OF_ANN, of_ann / 9), **heavy}
        coruns.record_use(ratios, requesting, of_ann + sum(heavy.values()), float(second))
    return coruns, requesting


@pytest.mark.parametrize(
    ("of_ann", "heavy", "way"),
    [
        (0.7, {"b": 0.25}, Way.TURNS),
        (0.47, {"b": 0.25, "c": 0.28}, Way.TURNS),
        (0.57, {"b": 0.43}, Way.TOGETHER),
        (0.4, {"b": 0.15}, Way.TOGETHER),
    ],
    ids=["b is kept from its share", "b is, and c is not", "b has nearly all of it", "the GPU has room"],
)
def test_many_light_clients_are_not_light_together(of_ann: float, heavy: dict[str, float], way: Way) -> None:
    coruns, requesting = with_many_light_clients(of_ann, heavy)
    assert coruns.phase(requesting, 10.0).way is way


def test_an_owner_with_many_light_clients_takes_turns_until_the_last_has_left() -> None:
    coruns, requesting = with_many_light_clients(0.7, {"b": 0.25})
    coruns.forget(LIGHT_OF_ANN[0])
    del requesting[LIGHT_OF_ANN[0]]
    assert coruns.phase(requesting, 10.0).way is Way.TURNS
    for client in LIGHT_OF_ANN[1:]:
        coruns.forget(client)
    requesting = {"new": "ann", "b": "bob", "b2": "bob"}
    coruns.phase(requesting, 11.0)
    coruns.record_activity(["new"], DeviceActivity(0.5, busy=0.3), 12.0)
    coruns.record_activity(["b2"], DeviceActivity(0.5, busy=0.95), 12.0)
    assert coruns.phase(requesting, 13.0).way is Way.TOGETHER, "a light one and two heavy ones"


def test_the_light_clients_of_an_owner_with_heavy_ones_stay_light() -> None:
    """What the owner has too much of it gives back by the turns of its heavy client."""
    coruns: Coruns[str] = Coruns()
    light = [f"a{number}" for number in range(9)]
    requesting = {**dict.fromkeys(light, "ann"), "heavy": "ann", "b": "bob"}
    coruns.phase(requesting, 0.0)
    for client in requesting:
        for second in range(4):
            busy = 0.3 if client in light else 0.95
            coruns.record_activity([client], DeviceActivity(0.5, busy=busy), float(second))
    for second in range(4, 40):
        ratios = {**dict.fromkeys(light, 0.3 / 9), "heavy": 0.4, "b": 0.25}
        coruns.record_use(ratios, requesting, 0.95, float(second))
        phase = coruns.phase(requesting, second + 0.5)
        assert set(light) <= set(phase.clients)
        coruns.record_phase_end(phase, 0.25)
    assert phase.way is Way.TURNS


def test_use_that_is_not_seen_is_of_the_owner_whose_program_has_left() -> None:
    charged = Charged({**IN_TURNS, "a2": "ann"})
    charged.coruns.rest("unknown")
    charged.coruns.forget("unknown")
    idle = {"a": 0.0, "b": 0.0, "c": 0.0}
    assert charged.read({**idle, "a2": 0.0}, unseen=0.4) == 0.0
    charged.coruns.forget("a2")
    del charged.requesting["a2"]
    assert charged.read(idle, unseen=0.4) == pytest.approx(0.6 + 0.3)


def test_whether_programs_come_and_go_where_owners_compete() -> None:
    coruns: Coruns[str] = Coruns()
    coruns.phase({"a": "ann"}, 0.0)
    coruns.record_use({"a": 0.5}, {"a": "ann"}, 0.5, 0.0)
    coruns.forget("not known yet")
    assert not coruns.has_passing_programs(1.0), "one owner"
    coruns.phase({"a": "ann", "b": "bob"}, 10.0)
    assert coruns.has_passing_programs(12.0), "bob's came two seconds ago"
    assert not coruns.has_passing_programs(13.0)
    coruns.record_growth("a", "ann", 14.0)
    assert coruns.has_passing_programs(14.0)


def test_which_clients_run_in_every_phase() -> None:
    coruns: Coruns[str] = Coruns()
    coruns.phase({"a": "ann", "b": "bob", "c": "bob"}, 0.0, {"a": SharingClass.LATENCY})
    coruns.record_activity(["b"], DeviceActivity(0.1, busy=0.1), 1.0)
    coruns.record_activity(["c"], DeviceActivity(0.9, busy=0.9), 1.0)
    assert [coruns.runs_along(client) for client in ("a", "b", "c", "unknown")] == [True, True, False, False]
    assert [coruns.holds_back(client) for client in ("a", "b")] == [True, False]
    assert coruns.latency_share("ann") == 0.5


def test_the_gain_of_turns_is_shown_where_they_are_for_gain() -> None:
    """Alone each uses 0.9 of the SMs, together 0.6 in all: in turns they do half as much again."""
    coruns: Coruns[str] = Coruns()
    requesting = {"a": "ann", "a2": "ann"}
    phase = coruns.phase(requesting, 0.0)
    assert (phase.way, coruns.gain(phase, requesting)) == (Way.TOGETHER, 1.0)
    for tick in range(1, 400):
        now_s = tick * 0.25
        if tick % 4 == 0:
            coruns.record_use(dict.fromkeys(requesting, 0.5), requesting, 1.0, now_s)
        phase = coruns.phase(requesting, now_s)
        if phase.way is Way.TURNS:
            break
        sm = 0.6 if len(phase.clients) == 2 else 0.9
        coruns.record_activity(list(phase.clients), DeviceActivity(sm, busy=1.0), now_s + 0.25)
        coruns.record_phase_end(phase, 0.25)
    assert phase.cause is PhaseCause.GAIN
    assert coruns.gain(phase, requesting) == pytest.approx(1.5)
    assert coruns.gain(Phase(phase.clients, 0.25, Way.TURNS, cause=PhaseCause.FAIRNESS), requesting) is None
    assert coruns.gain(phase, {"a": "ann", "b": "bob"}) is None, "of these it is not known"
    three = {**requesting, "a3": "ann"}
    coruns.phase(three, 100.0)
    assert coruns.gain(phase, three) is None, "nor of these yet"


def phases_with_background(requesting: dict[str, str], weights: dict[str, float]) -> list[Phase[str]]:
    """Those of the first seconds, with a client of class background; use is read, and nothing is measured."""
    coruns: Coruns[str] = Coruns()
    coruns.weights = weights
    found, now_s = [], 0.0
    while now_s < 9.0:
        phase = coruns.phase({**requesting, "low": "dana"}, now_s, {"low": SharingClass.BACKGROUND})
        coruns.record_phase_end(phase, phase.length_s)
        now_s += phase.length_s
        found.append(phase)
    return found


@pytest.mark.parametrize(
    ("requesting", "weights", "way", "cause"),
    [
        ({"a": "ann"}, {}, Way.TURNS, PhaseCause.CLASS),
        ({"a": "ann", "b": "bob"}, {"bob": 2.0}, Way.TURNS, PhaseCause.FAIRNESS),
        ({"a": "ann", "b": "bob"}, {}, Way.TOGETHER, PhaseCause.CLASS),
    ],
    ids=["one other", "in turns", "together"],
)
def test_a_background_client_runs_along_for_its_part_of_each_period(
    requesting: dict[str, str], weights: dict[str, float], way: Way, cause: PhaseCause
) -> None:
    phases = [phase for phase in phases_with_background(requesting, weights) if phase.way is not Way.MEASURING]
    along = [phase for phase in phases if "low" in phase.clients]
    others = [phase for phase in phases if "low" not in phase.clients]
    assert len(along) == 3, "at 0, 4 and 8 s"
    for phase in along:
        assert (phase.length_s, phase.measure, phase.cause) == (0.08, False, cause)
        assert phase.way is (Way.TURNS if cause is PhaseCause.FAIRNESS else Way.TOGETHER)
    assert {(phase.way, phase.cause) for phase in others} == {(way, cause)}
    assert all(phase.measure for phase in others)
    if way is Way.TURNS:
        assert {phase.unit for phase in others} == {(client,) for client in requesting}
        assert all(len(phase.clients) == 1 for phase in others)


def test_no_background_client_runs_along_in_a_look() -> None:
    phases = phases_with_background({"a": "ann", "b": "bob"}, {})
    looks_at = [phase.clients for phase in phases if phase.way is Way.MEASURING]
    assert set(looks_at) == {("a",), ("b",)}


def test_a_lone_client_is_measured_often_until_it_is_known() -> None:
    coruns: Coruns[str] = Coruns()
    for second in range(8):
        phase = coruns.phase({"a": "ann"}, float(second))
        assert (phase.way, phase.length_s, phase.measure) == (Way.ALONE, 2.0, True)
        coruns.record_activity(["a"], DeviceActivity(0.9, busy=0.9), second + 0.5)
    assert coruns.phase({"a": "ann"}, 8.0) == Phase(("a",), 10.0, Way.ALONE, True, unit=("a",))
