"""Long turns of programs that do not fit into one GPU together."""

import math
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gpucommons.model.host import GIB
from gpucommons.scheduler.parking.turns import can_change_places, most_served_first, turn_end_s
from gpucommons.scheduler.parking.values import ParkSituation, ParkStage, ParkTerms, PlannedProgram, RoomNeed
from parking.turns_world import GPU, HOST_TOTAL, SIZE, Played, World, several


def test_all_make_progress_in_proportion_and_moving_takes_a_tenth() -> None:
    world = World(several())
    world.play(2 * 3600)
    assert max(world.shares) - min(world.shares) < 0.05, world.shares
    # Two have a place at a time. The steps of a second and the first switch are not counted exactly.
    resident_s = sum(one.resident_s for one in world.programs)
    assert 1 - resident_s / (2 * 2 * 3600) <= 0.11, "moving costs a tenth"


@pytest.mark.long
@pytest.mark.parametrize("min_residence_s", [20.0, 120.0])
@pytest.mark.parametrize(("number", "lasts_s", "least_ratio"), [(3, 300, 0.8), (3, 1800, 0.9), (4, 1800, 0.8)])
def test_programs_that_fill_the_gpu_make_progress_in_proportion(
    number: int, lasts_s: int, least_ratio: float, min_residence_s: float
) -> None:
    terms = ParkTerms(oversubscribe=True, min_residence_s=min_residence_s)
    world = World(several(number), terms, in_turns=True, host_bytes=4 * HOST_TOTAL)
    world.play(lasts_s)
    assert min(world.shares) >= least_ratio * max(world.shares), world.shares
    assert sum(one.worked_s for one in world.programs) == pytest.approx(lasts_s), "the GPU is never without a program"


def test_a_program_that_comes_later_gets_its_share_but_not_the_time_before() -> None:
    terms = ParkTerms(oversubscribe=True, min_residence_s=20.0)
    world = World(several(), terms, in_turns=True, host_bytes=4 * HOST_TOTAL)
    world.play(900)
    later = Played("later", ParkStage.PARKED, settled_s=world.now_s, wakes_since_s=world.now_s)
    before_s = {one.key: one.worked_s for one in world.programs}
    world.programs.append(later)
    world.play(1800)
    assert later.worked_s == pytest.approx(1800 / 4, rel=0.1)
    since = [one.worked_s - before_s[one.key] for one in world.programs[:3]]
    assert min(since) >= 0.8 * max(since), since


def test_a_lease_that_host_memory_could_not_give_turns_to_does_not_stop_the_others() -> None:
    """Two of 50 GiB in host memory would leave no room to change places: both would wait for the others to end."""
    requests = [RoomNeed((GPU,), SIZE, 1.0, id=name) for name in ("third", "fourth")]
    world = World(several(2), ParkTerms(oversubscribe=True, min_residence_s=20.0), in_turns=True, requests=requests)
    world.play(1800)
    assert [one.key for one in world.programs] == ["on-0", "on-1", "third"]
    assert [request.id for request in world.requests] == ["fourth"]
    assert min(world.shares) >= 0.8 * max(world.shares), world.shares
    world.programs = world.programs[:2]
    world.play(300)
    assert [one.key for one in world.programs] == ["on-0", "on-1", "fourth"], "it has the room of one that ended"


ENDS_S = 1800
requests = st.lists(
    st.tuples(st.integers(5, 70).map(lambda gib: gib * GIB), st.integers(0, ENDS_S), st.booleans()),
    min_size=2,
    max_size=7,
)


@pytest.mark.long
@settings(max_examples=8, phases=[Phase.generate])
@given(requests, st.sampled_from([64, 128, 256]), st.booleans())
def test_none_waits_for_ever(given: list[tuple[int, int, bool]], host_gib: int, in_turns: bool) -> None:
    """Leases of any size come at any time, and some of them end. Each of the others has its turns in the end."""
    terms = ParkTerms(oversubscribe=True, min_residence_s=20.0)
    world = World([], terms, in_turns, host_gib * GIB)
    ending = {str(number) for number, (_, _, ends) in enumerate(given) if ends}
    for second in range(ENDS_S):
        world.requests += [
            RoomNeed((GPU,), size, world.now_s, id=str(number))
            for number, (size, at_s, _) in enumerate(given)
            if at_s == second
        ]
        world.step()
    world.programs = [one for one in world.programs if one.key not in ending]
    world.play(1800)
    worked_s = {one.key: one.worked_s for one in world.programs}
    world.play(3600)
    for one in world.programs:
        if one.key in worked_s:
            assert one.worked_s > worked_s[one.key], (one, world.programs)


def resident(key: str, *devices: str) -> PlannedProgram:
    return PlannedProgram(key, ParkStage.RESIDENT, dict.fromkeys(devices, GIB), seen_since_s=0.0)


def test_a_turn_lasts_until_the_program_is_ahead_on_each_gpu() -> None:
    """On b it is 20 s behind the one that waits, and catches up at half speed: another one works there, too."""
    program, other = resident("program", "a", "b"), resident("other", "b")
    elsewhere = [resident(key, "c") for key in ("one", "two", "three")]
    need = RoomNeed(("a", "b"), GIB, 1.0, id="need")
    attained = {"a": {"program": 10.0}, "b": {"need": 20.0}}
    programs = (program, other, *elsewhere)
    situation = ParkSituation(programs, {}, None, now_s=1000.0, attained_s=attained)
    terms = ParkTerms(min_residence_s=120.0)
    assert turn_end_s(terms, situation, program, need) == 1040.0
    assert turn_end_s(terms, situation, program, need._replace(devices=("a",))) == 120.0, "its turn is over"


def test_a_program_on_several_gpus_has_had_what_it_had_on_the_busiest() -> None:
    programs = (resident("both", "a", "b"), resident("one", "a"))
    attained = {"a": {"both": 10.0, "one": 5.0}, "b": {"both": 2.0}}
    ordered = most_served_first(ParkSituation(programs, {}, None, attained_s=attained))
    assert [program.key for program in ordered] == ["both", "one"]


@pytest.mark.parametrize(
    ("parked", "staying", "free", "host", "possible"),
    [
        ([5], [10], 0, 10, True),
        ([5], [10], 0, 9, False),
        ([5, 11], [10], 0, 100, False),
        ([5, 11], [10], 1, 100, True),
        ([15], [10, 5], 0, 15, True),
        ([15], [], 14, 100, False),
        ([], [], 0, 0, True),
    ],
)
def test_each_that_is_parked_could_take_a_place(
    parked: list[int], staying: list[int], free: int, host: int, possible: bool
) -> None:
    assert can_change_places(parked, staying, free, host) is possible


def test_a_program_of_the_background_makes_room_for_others_at_once() -> None:
    """And has turns like any other among its class."""
    terms = ParkTerms(min_residence_s=20.0)
    at = PlannedProgram("night", ParkStage.RESIDENT, {GPU: SIZE}, seen_since_s=0.0, is_background=True)
    need = RoomNeed((GPU,), SIZE, 0.0)
    situation = ParkSituation((at,), {}, None, now_s=5.0)
    assert turn_end_s(terms, situation, at, need) == -math.inf
    assert turn_end_s(terms, situation, replace(at, resident_since_s=3.0), need) == 23.0
    usual = turn_end_s(terms, situation, replace(at, is_background=False), need)
    assert turn_end_s(terms, situation, at, need._replace(of_background=True)) == usual > 23.0
