"""How much of a GPU's time programs have had: single steps, and invariants over any two situations."""

from dataclasses import replace

import pytest
from hypothesis import given

from gpucommons.model.host import GIB
from gpucommons.scheduler.parking.turns import attained_seconds, programs_at_work
from gpucommons.scheduler.parking.values import ParkSituation, ParkStage, PlannedProgram, RoomClaims, RoomNeed
from parking.test_plan import situations

FIRST = PlannedProgram("first", ParkStage.RESIDENT, {"a": GIB})
SECOND = replace(FIRST, key="second")
AWAY = replace(FIRST, key="away", stage=ParkStage.PARKED, wakes_since_s=1.0)
NEED = RoomNeed(("a",), GIB, 1.0, id="need")


def step(before: ParkSituation, *programs: PlannedProgram, seconds: float = 10.0) -> dict[str, float]:
    now = ParkSituation(programs, {}, None, before.claims, before.now_s + seconds)
    return dict(attained_seconds(before, now)["a"])


def at(*programs: PlannedProgram, claims: RoomClaims | None = None, **attained_s: float) -> ParkSituation:
    return ParkSituation(programs, {}, None, claims or RoomClaims(), 100.0, {"a": attained_s})


def test_programs_at_work_share_the_time_of_their_gpu() -> None:
    before = at(FIRST, SECOND, AWAY, claims=RoomClaims((NEED,)), first=1.0, second=2.0, away=3.0, need=4.0)
    assert step(before, FIRST, SECOND, AWAY) == {"first": 6.0, "second": 7.0, "away": 3.0, "need": 4.0}


def test_a_program_that_only_holds_room_is_charged_and_takes_nothing_from_the_others() -> None:
    holds = replace(SECOND, uses_gpu=False)
    assert step(at(FIRST, holds, first=0.0, second=0.0), FIRST, holds) == {"first": 10.0, "second": 10.0}


@pytest.mark.parametrize("stage", [ParkStage.PARKING, ParkStage.PARKED, ParkStage.WAKING])
def test_a_program_that_is_not_on_the_gpu_is_not_charged(stage: ParkStage) -> None:
    moves = replace(AWAY, stage=stage)
    assert step(at(FIRST, moves, first=0.0, away=0.0), FIRST, moves) == {"first": 10.0, "away": 0.0}


def test_a_newcomer_begins_with_the_least() -> None:
    before = at(FIRST, SECOND, first=50.0, second=70.0)
    assert step(before, FIRST, SECOND, AWAY)["away"] == 55.0
    assert dict(attained_seconds(None, at(FIRST, AWAY))["a"]) == {"first": 0.0, "away": 0.0}


def test_a_program_that_slept_does_not_make_up_for_it() -> None:
    sleeps = replace(AWAY, wakes_since_s=None)
    assert step(at(FIRST, sleeps, first=50.0, away=1.0), FIRST, sleeps) == {"first": 60.0}
    waits_for_its_turn = replace(sleeps, for_turn=True)
    assert step(at(FIRST, AWAY, first=50.0, away=1.0), FIRST, waits_for_its_turn)["away"] == 1.0


@given(situations, situations)
def test_invariants(before: ParkSituation, now: ParkSituation) -> None:
    """The second is the one that follows, ten seconds later."""
    now = replace(now, now_s=before.now_s + 10)
    before = replace(before, attained_s=attained_seconds(None, before))
    for device, attained_s in attained_seconds(before, now).items():
        earlier = before.attained_s.get(device, {})
        assert {
            program.key for program in now.programs if program.stage is ParkStage.RESIDENT and device in program.memory
        } <= (attained_s.keys())
        known = attained_s.keys() & earlier.keys()
        assert all(0 <= attained_s[key] - earlier[key] <= 10 for key in known)
        at_work = [p for p in before.programs if p.stage is ParkStage.RESIDENT and device in p.memory and p.uses_gpu]
        if at_work and {program.key for program in at_work} <= known:
            assert len(at_work) == programs_at_work(before, device)
            whole_s = sum(attained_s[program.key] - earlier[program.key] for program in at_work)
            assert whole_s == pytest.approx(10), "it adds up"
        least_s = min((attained_s[key] for key in known), default=0.0)
        assert all(attained_s[key] == least_s for key in attained_s.keys() - known)
