"""When those that wait for room will have it: compared with what the planner then does."""

from dataclasses import replace

import pytest

from gpucommons.model.host import GIB, HostMemory
from gpucommons.scheduler.parking.plan import expected_rooms
from gpucommons.scheduler.parking.values import (
    DeviceRoom,
    ParkSituation,
    ParkStage,
    ParkTerms,
    RoomClaims,
    RoomNeed,
)
from parking.turns_world import GPU, SIZE, TERMS, Played, World, several


def situation(world: World, **changes: object) -> ParkSituation:
    return replace(world.situation(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("in_turns", [False, True])
@pytest.mark.parametrize("already_s", [30, 35])
@pytest.mark.parametrize("min_residence_s", [20.0, 60.0])
def test_a_program_that_waits_is_back_when_it_was_expected(
    in_turns: bool, already_s: int, min_residence_s: float
) -> None:
    world = World(several(), TERMS._replace(min_residence_s=min_residence_s), in_turns)
    world.play(already_s)
    (expected_s,) = expected_rooms(world.terms, situation(world)).values()
    third = world.programs[2]
    while third.stage is not ParkStage.RESIDENT:
        world.step()
    assert world.now_s == pytest.approx(expected_s, abs=5)


@pytest.mark.parametrize("min_residence_s", [20.0, 120.0])
def test_it_stays_right_over_many_turns(min_residence_s: float) -> None:
    """Also while the memory of another moves, and while one program has the GPU for itself."""
    world = World(several(), TERMS._replace(min_residence_s=min_residence_s), in_turns=True)
    expected_s: dict[str, list[float]] = {one.key: [] for one in world.programs}
    found = 0
    for _ in range(1800):
        world.step()
        for key, at_s in expected_rooms(world.terms, situation(world)).items():
            expected_s[key].append(at_s)
        for one in world.programs:
            if one.stage is ParkStage.RESIDENT and (times_s := expected_s[one.key]):
                assert times_s == [pytest.approx(world.now_s, abs=5)] * len(times_s)
                found += len(times_s)
                times_s.clear()
    assert found > 1000, "one waits for most of the time"


def need(id: str, number: int = 1, size: int | None = SIZE) -> RoomNeed:
    return RoomNeed((GPU,), size, 1.0, number, id)


def settled() -> World:
    """Two programs that have been on the GPU for a minute."""
    return World([Played(key, ParkStage.RESIDENT, seen_since_s=-60.0) for key in ("first", "second")])


def test_nothing_is_expected_while_it_is_measured_how_programs_share_the_gpu() -> None:
    world = World(several())
    world.play(10)
    assert expected_rooms(TERMS, situation(world)) == {}
    world.programs[0].stage = ParkStage.WAKING
    world.now_s += 60
    assert expected_rooms(TERMS, situation(world)) == {}, "one takes its room at this moment"


def test_leases_wait_for_one_program_each() -> None:
    world = settled()
    claims = RoomClaims((need("one"), need("two"), need("three")))
    found = expected_rooms(TERMS, situation(world, claims=claims))
    # Each waits for the end of a turn, and for one more program to be moved. No program is left for the third.
    assert list(found) == ["one", "two"]
    assert found["two"] - found["one"] == pytest.approx(SIZE / 2e9)


def test_a_program_that_made_room_is_back_after_the_lease_for_which_it_did() -> None:
    world = settled()
    world.programs.append(Played("waits-0", ParkStage.PARKED))
    made_room = world.programs[2]
    made_room.settled_s, made_room.wakes_since_s, made_room.made_for = world.now_s, world.now_s, "lease"
    world.programs.pop(1)
    claims = RoomClaims((need("lease")._replace(since_s=0.0),))
    found = expected_rooms(TERMS, situation(world, claims=claims))
    assert found["lease"] == world.now_s, "there is room for it"
    assert found["waits-0"] > world.now_s + SIZE / 2e9, "another program has to be moved first"


@pytest.mark.parametrize(
    ("terms", "claims"),
    [
        (ParkTerms(oversubscribe=False), RoomClaims((need("one"),))),
        (TERMS, RoomClaims((need("whole", size=None), need("later")))),
        (TERMS, RoomClaims((need("several", number=2), need("later")))),
        (TERMS, RoomClaims((need("too much", size=200 * GIB), need("later")))),
    ],
)
def test_what_is_not_known_is_left_out(terms: ParkTerms, claims: RoomClaims) -> None:
    world = settled()
    assert expected_rooms(terms, situation(world, claims=claims)) == {}


def test_of_several_gpus_the_first_one_with_room_is_expected() -> None:
    world = settled()
    rooms = {**situation(world).rooms, "b": DeviceRoom(SIZE + GIB, world.now_s)}
    claims = RoomClaims((need("either")._replace(devices=(GPU, "b")),))
    assert expected_rooms(TERMS, situation(world, claims=claims, rooms=rooms)) == {"either": world.now_s}


def test_what_leases_were_promised_and_the_reserve_are_not_room() -> None:
    """39 GiB are free, of which 1 GiB is the reserve."""
    world = settled()
    for size, promised, waits in ((38, 0, False), (39, 0, True), (28, 10, False), (29, 10, True)):
        claims = RoomClaims((need("lease", size=size * GIB),), {GPU: promised * GIB})
        found = expected_rooms(TERMS, situation(world, claims=claims))
        assert (found["lease"] > world.now_s) is waits, (size, promised)


def test_a_lease_that_host_memory_cannot_make_room_for_is_left_out() -> None:
    """The one that comes into the place has to be parked later, besides the one that leaves."""
    world, claims = settled(), RoomClaims((need("lease"),))
    for gib, known in ((100, True), (99, False)):
        host = HostMemory(128 * GIB, gib * GIB + 128 * GIB // 10 + 1)
        assert bool(expected_rooms(TERMS, situation(world, claims=claims, host=host))) is known


@pytest.mark.parametrize(
    ("in_turns", "was_in_turns", "known"), [(False, False, False), (True, False, True), (False, True, True)]
)
def test_turns_are_measured_where_one_program_takes_them(in_turns: bool, was_in_turns: bool, known: bool) -> None:
    """One has been on the GPU for a minute, the other for five seconds: their turns may still become short."""
    world = settled()
    world.programs[1].seen_since_s = -4.0
    at = situation(world, claims=RoomClaims((need("lease"),)))
    first, second = at.programs
    changed = (replace(first, in_turns=in_turns, was_in_turns=was_in_turns), second)
    assert bool(expected_rooms(TERMS, replace(at, programs=changed))) is known


def test_turns_that_end_before_it_is_measured_how_programs_share_the_gpu_are_known() -> None:
    """Small programs move within 3 s: their turns are over before the first 30 s are."""
    world, small = settled(), 2 * GIB
    world.programs[0].seen_since_s, world.programs[1].seen_since_s = -5.0, -4.0
    claims = RoomClaims((need("lease", size=small),))
    rooms = {GPU: DeviceRoom(GIB, world.now_s)}
    at = situation(world, claims=claims, rooms=rooms)
    programs = tuple(replace(program, memory={GPU: small}) for program in at.programs)
    terms = TERMS._replace(min_residence_s=10.0)
    (expected_s,) = expected_rooms(terms, replace(at, programs=programs)).values()
    assert world.now_s < expected_s < world.now_s + 30
