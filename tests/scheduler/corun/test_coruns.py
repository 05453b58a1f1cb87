"""The decision between together and turns, driven by a simulated GPU with the additive progress model."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucommons.scheduler.corun.activity import DeviceActivity, SoloActivity
from gpucommons.scheduler.corun.coruns import Coruns, Way
from gpucommons.scheduler.corun.division import MARGIN, divide
from gpucommons.scheduler.corun.progress import MOST_PROGRESS, progress_together
from scheduler.corun.world import KINDS, Program, World, true_progress

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


@pytest.mark.parametrize(("kinds", "device", "measured"), PAIRS, ids=lambda value: str(value))
def test_the_estimate_is_near_what_an_h200_showed(
    kinds: tuple[int, int], device: DeviceActivity, measured: tuple[float, float]
) -> None:
    found = progress_together(device, [KINDS[kind][0] for kind in kinds])
    assert sum(found) == pytest.approx(sum(measured), abs=0.2)
    assert min(found) == pytest.approx(min(measured), abs=0.15)


@pytest.mark.parametrize(
    ("kinds", "way"),
    [
        ((8192, 8192), "turns"),
        ((4096, 4096), "turns"),
        ((2048, 2048), "turns"),
        ((1536, 1536), "together"),
        ((1024, 1024), "together"),
        ((512, 512), "together"),
        ((4096, 512), "mixed"),
        ((4096, 1536), "turns"),
    ],
)
def test_the_division_of_the_pairs_of_an_h200(kinds: tuple[int, int], way: str) -> None:
    device = next(activity for pair, activity, _ in PAIRS if pair == kinds)
    division = divide(progress_together(device, [KINDS[kind][0] for kind in kinds]), (0.5, 0.5))
    found = "turns" if division.is_turns else "together" if division.together > 0.999 else "mixed"
    assert found == way


activities = st.builds(DeviceActivity, *[st.floats(0.001, 1.0)] * 3)


@given(activities, st.lists(activities, min_size=1, max_size=8))
def test_an_estimate_is_bounded(device: DeviceActivity, solo: list[DeviceActivity]) -> None:
    found = progress_together(device, solo)
    assert len(found) == len(solo)
    assert all(0.0 <= part <= MOST_PROGRESS for part in found)


@given(st.lists(st.tuples(st.floats(0.0, MOST_PROGRESS), st.integers(1, 5)), min_size=2, max_size=8))
def test_a_division_uses_all_time_and_is_fair(clients: list[tuple[float, int]]) -> None:
    progress = [part for part, _ in clients]
    fair = [weight / sum(weight for _, weight in clients) for _, weight in clients]
    division = divide(progress, fair)
    assert division.together + sum(division.alone) <= 1.0 + 1e-6
    got = [part * division.together + alone for part, alone in zip(progress, division.alone, strict=True)]
    assert all(share >= enough - 0.011 for share, enough in zip(got, fair, strict=True))
    assert division.gain == 1.0 or division.gain >= 1.0 + MARGIN
    # No division gains less than turns, and none claims more than everything together.
    assert 1.0 <= division.gain <= max(1.0, sum(progress)) + 1e-9


def test_a_rise_counts_at_once_and_a_fall_must_last() -> None:
    solo = SoloActivity()
    solo.learn(DeviceActivity(0.02), 0.0)
    solo.learn(DeviceActivity(0.80), 1.0)
    assert solo.known == DeviceActivity(0.80)
    solo.learn(DeviceActivity(0.05), 2.0)
    assert solo.known == DeviceActivity(0.80)
    solo.learn(DeviceActivity(0.05), 4.0)
    assert solo.known == DeviceActivity(0.05)


def test_a_stall_between_two_samples_is_not_a_fall() -> None:
    solo = SoloActivity()
    for now_s, sm in enumerate((0.8, 0.1, 0.8, 0.1, 0.8, 0.1)):
        solo.learn(DeviceActivity(sm), float(now_s))
    assert solo.known is not None
    assert solo.known.sm > 0.7


def test_a_fall_that_is_not_believed_yet_is_measured_again_soon() -> None:
    solo = SoloActivity()
    solo.learn(DeviceActivity(0.8), 0.0)
    solo.learn(DeviceActivity(0.8), 1.0)
    lasting_s = solo.fresh_s
    solo.learn(DeviceActivity(0.1), 2.0)
    assert solo.fresh_s <= 2.0
    solo.learn(DeviceActivity(0.8), 3.0)
    assert 10.0 < solo.fresh_s < lasting_s


def test_a_rise_of_the_tensor_or_dram_activity_is_a_change() -> None:
    """2048 and 4096 differ by a tenth in SM activity, and much in the others."""
    solo = SoloActivity()
    solo.learn(KINDS[2048][0], 0.0)
    version = solo.version
    solo.learn(KINDS[4096][0], 1.0)
    assert solo.known == KINDS[4096][0]
    assert solo.version > version


def test_a_division_that_mixes_is_checked_once() -> None:
    """A client that was measured wrongly is measured again before it loses by it."""
    coruns = Coruns[str]()
    heavy, light = KINDS[4096][0], KINDS[512][0]
    for client in "ab":
        coruns.phase(["a", "b"], 0.0)
        coruns.measured([client], heavy if client == "a" else light, 1.0)
    assert coruns.phase(["a", "b"], 1.0).way is Way.TRIAL
    device = DeviceActivity(0.346, 0.220, 0.09)
    coruns.measured(["a", "b"], device, 2.0)
    division = coruns.division(["a", "b"])
    assert division is not None
    assert division.is_mixed
    measured: list[str] = []
    while (phase := coruns.phase(["a", "b"], 2.0)).way is Way.MEASURING:
        measured += phase.clients
        coruns.measured(phase.clients, heavy if phase.clients == ("a",) else light, 2.5)
        coruns.ended(phase, phase.length_s)
    assert sorted(measured) == ["a", "b"]
    coruns.measured(["a", "b"], device, 4.0)
    assert coruns.phase(["a", "b"], 4.0).way is Way.MIXED


def together(first: int, second: int, *, really: int) -> "Coruns[str]":
    """Two clients that were measured alone; the second one does something else in the trial."""
    coruns = Coruns[str]()
    coruns.phase(["a", "b"], 0.0)
    for client, kind in (("a", first), ("b", second)):
        coruns.measured([client], KINDS[kind].activity, 1.0)
    assert coruns.phase(["a", "b"], 1.0).way is Way.TRIAL
    coruns.measured(["a", "b"], sum_of(first, really), 2.0)
    division = coruns.division(["a", "b"])
    assert division is not None
    assert division.is_together
    return coruns


def sum_of(*kinds: int) -> DeviceActivity:
    progress = true_progress(kinds, 0.7)
    rows = [[part * value for value in KINDS[kind].activity] for kind, part in zip(kinds, progress, strict=True)]
    return DeviceActivity(*map(sum, zip(*rows, strict=True)))


@pytest.mark.parametrize("kind", [512, 1024, 1536])
def test_clients_that_add_up_run_together_at_once(kind: int) -> None:
    assert together(kind, 512, really=512).phase(["a", "b"], 2.0).way is Way.TOGETHER


def test_a_client_that_changed_before_the_trial_is_measured_again_before_they_run_together() -> None:
    coruns = together(4096, 512, really=2048)
    measured: list[str] = []
    while (phase := coruns.phase(["a", "b"], 2.0)).way is Way.MEASURING:
        measured += phase.clients
        coruns.measured(phase.clients, KINDS[4096 if phase.clients == ("a",) else 2048].activity, 2.5)
        coruns.ended(phase, phase.length_s)
    assert "b" in measured
    assert phase.way is Way.TRIAL
    coruns.measured(["a", "b"], sum_of(4096, 2048), 3.0)
    while (phase := coruns.phase(["a", "b"], 3.0)).way is not Way.TURNS:
        assert phase.way in (Way.MEASURING, Way.TRIAL), "they do not run together"
        kinds = (4096, 2048) if len(phase.clients) > 1 else (4096 if phase.clients == ("a",) else 2048,)
        coruns.measured(phase.clients, sum_of(*kinds), 3.5)
        coruns.ended(phase, phase.length_s)


def test_what_was_measured_while_another_client_was_not_seen_is_measured_again() -> None:
    coruns = Coruns[str]()
    coruns.measured(["a"], DeviceActivity(0.3), 10.0)
    coruns.measured(["b"], DeviceActivity(0.9), 14.0)
    coruns.doubt_since(12.0)
    coruns.measured(["c"], DeviceActivity(0.3), 15.0)
    phase = coruns.phase(["a", "b", "c"], 15.0)
    assert (phase.way, phase.clients) == (Way.MEASURING, ("b",))
    coruns.measured(["b"], DeviceActivity(0.3), 15.5)
    assert coruns.solo_activity("b") == DeviceActivity(0.3)


def test_a_turn_too_short_for_a_measurement_is_not_measured() -> None:
    coruns = Coruns[str]()
    for client in "ab":
        coruns.measured([client], KINDS[4096][0], 0.0)
    coruns.phase(["a", "b"], 0.0)
    coruns.measured(["a", "b"], DeviceActivity(0.514, 0.406, 0.17), 0.6)
    assert [coruns.phase(["a", "b"], 1.0).way, coruns.phase(["a", "b"], 1.0).measure] == [Way.TURNS, True]
    coruns.quantum_s = 0.1
    assert not coruns.phase(["a", "b"], 1.0).measure


def test_a_lone_client_is_not_measured() -> None:
    phase = Coruns[str]().phase(["a"], 0.0)
    assert (phase.clients, phase.way, phase.measure) == (("a",), Way.ALONE, False)


def best(world: World, kinds: list[int]) -> float:
    """The better of always in turns and always together; together only where that leaves every program its share."""
    together = world.true_progress(kinds)
    fair = min(together) >= 1.0 / len(kinds) - 0.01
    return max(1.0, sum(together) if fair else 1.0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(sorted(KINDS)), min_size=2, max_size=8),
    st.floats(0.6, 1.0),
    st.integers(0, 1000),
)
def test_progress_is_near_the_best_and_fair(kinds: list[int], efficiency: float, seed: int) -> None:
    programs = [Program(f"p{index}", [(1e9, kind)]) for index, kind in enumerate(kinds)]
    world = World(programs, efficiency, random.Random(seed))
    world.play(10.0)
    rates = world.play(70.0)
    assert sum(rates.values()) >= 0.96 * best(world, kinds)
    assert min(rates.values()) >= 1.0 / len(kinds) - 0.03


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    st.lists(
        st.lists(st.tuples(st.floats(12.0, 25.0), st.sampled_from([None, *sorted(KINDS)])), min_size=1, max_size=4),
        min_size=2,
        max_size=4,
    ),
    st.floats(0.6, 1.0),
)
def test_every_phase_of_programs_that_change_is_near_the_best(
    stages: list[list[tuple[float, int | None]]], efficiency: float
) -> None:
    programs = [Program(f"p{index}", of_program) for index, of_program in enumerate(stages)]
    world = World(programs, efficiency)
    changes = sorted({0.0, 100.0, *(sum(s for s, _ in rows[: n + 1]) for rows in stages for n in range(len(rows)))})
    for begin_s, end_s in itertools.pairwise(changes):
        kinds = [kind for program in programs if (kind := program.kind(begin_s + 0.01)) is not None]
        if end_s - begin_s < 12.0 or not kinds:
            world.play(end_s)
            continue
        world.play(begin_s + 6.0)
        rates = world.play(end_s - 0.01)
        assert sum(rates.values()) >= 0.95 * best(world, kinds)


def test_slow_starters_take_turns_soon_after_they_begin_to_compute() -> None:
    """Two jobs load data for 8 s, then compute densely: what was learnt while they were light must not stand."""
    light_then_dense: list[tuple[float, int | None]] = [(8.0, 512), (1e9, 4096)]
    world = World([Program("a", light_then_dense), Program("b", light_then_dense)], 0.6)
    world.play(10.0)
    rates = world.play(40.0)
    assert sum(rates.values()) >= 0.97
    assert min(rates.values()) >= 0.47


def test_trials_become_seldom() -> None:
    world = World([Program(name, [(1e9, 4096)]) for name in "ab"], 0.6)
    trials = 0
    while world.now_s < 600.0:
        phase = world.step()
        trials += phase is not None and phase.way is Way.TRIAL
    assert 3 <= trials <= 8


def shares(
    coruns: Coruns[str], weights: dict[str, float], overrun_s: dict[str, float], rounds: int
) -> dict[str, float]:
    """Each client's share of the time in `rounds` phases; `overrun_s` is how slowly a client stops."""
    now_s, ran = 0.0, dict.fromkeys(weights, 0.0)
    for _ in range(rounds):
        phase = coruns.phase(list(weights), now_s, weights)
        length_s = phase.length_s + max(overrun_s.get(client, 0.0) for client in phase.clients)
        now_s += length_s
        coruns.ended(phase, length_s)
        for client in phase.clients:
            ran[client] += length_s
    return {client: seconds / now_s for client, seconds in ran.items()}


def test_a_device_that_is_never_measured_gives_every_client_its_share() -> None:
    assert shares(Coruns(), dict.fromkeys("abc", 1.0), {}, 300) == pytest.approx(dict.fromkeys("abc", 1 / 3), abs=0.01)


def test_a_client_that_stops_slowly_gets_no_more_than_its_share() -> None:
    found = shares(Coruns(), {"a": 1.0, "b": 1.0}, {"a": 0.7}, 400)
    assert found == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.01)


def test_a_client_that_left_is_forgotten() -> None:
    coruns = Coruns[str]()
    phase = coruns.phase(["a", "b"], 0.0)
    left = phase.clients[0]
    coruns.measured([left], DeviceActivity(0.5), 0.5)
    coruns.forget(left)
    coruns.ended(phase, 0.5)
    assert not any(left in kept for kept in (coruns._served_s, coruns._solo, coruns._weights, coruns._arrival))


def test_shares_follow_the_weights() -> None:
    found = shares(Coruns(), {"a": 0.25, "b": 0.25, "c": 0.5}, {}, 400)
    assert found == pytest.approx({"a": 0.25, "b": 0.25, "c": 0.5}, abs=0.01)


@pytest.mark.parametrize(("utilisation", "way"), [(0.4, Way.TOGETHER), (0.99, Way.TURNS)])
def test_without_sm_activity_utilisation_decides(utilisation: float, way: Way) -> None:
    coruns = Coruns[str]()
    coruns.coarse = True
    for now_s in range(10):
        phase = coruns.phase(["a", "b"], float(now_s))
        if phase.way is Way.MEASURING:
            coruns.measured(phase.clients, DeviceActivity(utilisation), float(now_s))
        coruns.ended(phase, 1.0)
    assert coruns.phase(["a", "b"], 10.0).way is way
    assert coruns.gain(["a", "b"]) is None


def test_without_sm_activity_a_busier_device_is_measured_again() -> None:
    coruns = Coruns[str]()
    coruns.coarse = True
    for client in "ab":
        coruns.measured([client], DeviceActivity(0.3), 0.0)
    assert coruns.phase(["a", "b"], 1.0).way is Way.TOGETHER
    coruns.measured(["a", "b"], DeviceActivity(0.99), 2.0)
    assert coruns.phase(["a", "b"], 2.0).way is Way.MEASURING


def test_the_gain_over_time_slicing_is_that_of_the_trial() -> None:
    world = World([Program(name, [(1e9, 4096)]) for name in "ab"], 0.6)
    world.play(10.0)
    together = sum(world.true_progress([4096, 4096]))
    assert world.coruns.gain(["a", "b"]) == pytest.approx(1 / together, rel=0.05)
