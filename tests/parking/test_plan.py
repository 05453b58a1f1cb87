"""The planner of parking: single decisions, and invariants over any situation."""

import math
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from gpucommons.model.host import GIB, HostMemory
from gpucommons.scheduler.parking.plan import can_have_room, plan
from gpucommons.scheduler.parking.values import (
    DeviceRoom,
    ParkRefusal,
    ParkSituation,
    ParkStage,
    ParkTerms,
    PlannedProgram,
    RoomClaims,
    RoomNeed,
    WhyNot,
)

TERMS = ParkTerms(idle_after_s=60.0, min_residence_s=120.0)
HOST = HostMemory(128 * GIB, 100 * GIB)
IDLE = PlannedProgram("notebook", ParkStage.RESIDENT, {"a": 40 * GIB}, settled_s=-1.0, idle_s=3600.0)
PARKED = PlannedProgram("parked", ParkStage.PARKED, {"a": 20 * GIB}, settled_s=-1.0, wakes_since_s=5.0)


def situation(*programs: PlannedProgram, free: int = GIB, **more: object) -> ParkSituation:
    given = ParkSituation(programs, {"a": DeviceRoom(free, 9.0)}, HOST, now_s=10.0)
    return replace(given, **more)  # type: ignore[arg-type]


def test_an_idle_program_stays_while_nothing_needs_its_room() -> None:
    assert plan(TERMS, situation(IDLE)).park == ()
    assert plan(TERMS._replace(eager=True), situation(IDLE)).park == ("notebook",)


def test_an_idle_program_is_parked_for_a_need_that_this_meets() -> None:
    need = RoomNeed(("a",), 30 * GIB, 1.0)
    assert plan(TERMS, situation(IDLE, claims=RoomClaims((need,)))).park == ("notebook",)
    assert plan(TERMS, situation(IDLE, claims=RoomClaims((need._replace(bytes=70 * GIB),)))).park == ()
    assert plan(TERMS, situation(IDLE, free=31 * GIB, claims=RoomClaims((need,)))).park == (), "there is room"
    busy = replace(IDLE, idle_s=59.0)
    assert plan(TERMS, situation(busy, claims=RoomClaims((need,)))).park == ()
    assert plan(TERMS._replace(idle_after_s=0.0), situation(IDLE, claims=RoomClaims((need,)))).park == (), "off"


def test_free_memory_that_is_kept_for_others_is_not_room() -> None:
    need = RoomNeed(("a",), 30 * GIB, 1.0, kept={"a": 20 * GIB})
    for free, parked in ((31, ("notebook",)), (50, ("notebook",)), (51, ()), (10, ()), (11, ("notebook",))):
        assert plan(TERMS, situation(IDLE, free=free * GIB, claims=RoomClaims((need,)))).park == parked, free


def test_no_more_programs_are_parked_than_have_to_be() -> None:
    small = replace(IDLE, key="small", memory={"a": 5 * GIB}, idle_s=7200.0)
    for needed, parked in ((30, "notebook"), (42, "small"), (5, "small")):
        claims = RoomClaims((RoomNeed(("a",), needed * GIB, 1.0),))
        assert plan(TERMS, situation(small, IDLE, claims=claims)).park == (parked,)


def test_a_job_with_more_memory_than_its_shards_makes_room_first() -> None:
    need = RoomNeed(("a",), 30 * GIB, 1.0)
    later = replace(IDLE, key="later", idle_s=7200.0)
    over = replace(IDLE, key="over", is_over_share=True)
    assert plan(TERMS, situation(later, over, claims=RoomClaims((need,)))).park == ("over",)
    assert plan(TERMS, situation(later, replace(over, is_over_share=False), claims=RoomClaims((need,)))).park == (
        "later",
    ), "else the one that was idle for longest"


def test_a_job_at_work_with_more_memory_than_its_shards_makes_room_in_turns_first() -> None:
    terms = TERMS._replace(oversubscribe=True)
    waits = replace(PARKED, wakes_since_s=5.0)
    within, over = (replace(IDLE, key=key, idle_s=0.0, seen_since_s=-4000.0) for key in ("within", "over"))
    over = replace(over, is_over_share=True)
    attained = {"a": {"within": 900.0, "over": 10.0, "parked": 20.0}}
    assert plan(terms, situation(within, over, waits, attained_s=attained)).park == ("over",)
    fair = replace(over, is_over_share=False)
    assert plan(terms, situation(within, fair, waits, attained_s=attained)).park == ("within",)
    young = replace(over, seen_since_s=0.0)
    assert plan(terms, situation(young, waits, attained_s=attained)).park == (), "it has its turn, as all have"


def test_a_lease_gets_a_gpu_that_idle_programs_alone_are_on() -> None:
    need = RoomNeed(("a", "b"), None, 1.0)
    other = replace(IDLE, key="busy", idle_s=0.0)
    assert plan(TERMS, situation(IDLE, claims=RoomClaims((need,)))).park == (), "b is empty"
    on_b = PlannedProgram("on-b", ParkStage.RESIDENT, {"b": GIB}, settled_s=-1.0)
    assert plan(TERMS, situation(IDLE, on_b, claims=RoomClaims((need,)))).park == ("notebook",)
    assert plan(TERMS, situation(IDLE, on_b, other, claims=RoomClaims((need,)))).park == ()
    assert plan(TERMS, situation(IDLE, replace(on_b, idle_s=61.0), claims=RoomClaims((need,)))).park == ("on-b",), (
        "the least moved"
    )


def test_nothing_is_parked_for_several_gpus_unless_host_memory_holds_all_that_has_to_leave() -> None:
    on_b = replace(IDLE, key="on-b", memory={"b": 40 * GIB})
    claims = RoomClaims((RoomNeed(("a", "b"), None, 1.0, number=2),))
    for available, parked in ((80 * GIB, ("notebook",)), (79 * GIB, ())):
        host = HostMemory(128 * GIB, available + 128 * GIB // 10 + 1)
        assert plan(TERMS, situation(IDLE, on_b, host=host, claims=claims)).park == parked


def test_the_owner_may_park_a_busy_program_but_not_one_that_cannot_come_back() -> None:
    asked = replace(IDLE, idle_s=0.0, asked=True, resident_since_s=9.0)
    assert plan(TERMS, situation(asked)).park == ("notebook",)
    managed = replace(asked, obstacle=ParkRefusal(WhyNot.MANAGED_MEMORY, "managed memory"))
    found = plan(TERMS, situation(managed))
    assert (found.park, found.refused["notebook"].why) == ((), WhyNot.MANAGED_MEMORY)


def test_host_memory_and_the_container_limit_what_is_parked() -> None:
    asked = replace(IDLE, asked=True)
    # 10 % of 128 GiB are kept.
    enough = HostMemory(128 * GIB, 40 * GIB + 128 * GIB // 10 + 1)
    assert plan(TERMS, situation(asked, host=enough)).park == ("notebook",)
    short = plan(TERMS, situation(asked, host=enough._replace(available_bytes=52 * GIB)))
    assert (short.park, short.refused["notebook"].why) == ((), WhyNot.HOST_MEMORY)
    # At least 4 GiB are kept, however small the host is.
    assert HostMemory(8 * GIB, 5 * GIB).budget_bytes(10.0) == GIB
    within = plan(TERMS, situation(replace(asked, container_room_bytes=39 * GIB)))
    assert within.refused["notebook"].why is WhyNot.CONTAINER_MEMORY
    unseen = plan(TERMS, situation(replace(asked, container_room_bytes=None)))
    assert (unseen.park, unseen.refused["notebook"].why) == ((), WhyNot.CONTAINER_MEMORY)
    assert "is not known" in unseen.refused["notebook"].sentence
    unread = plan(TERMS, situation(asked, host=None))
    assert unread.refused["notebook"].why is WhyNot.HOST_MEMORY


def test_a_program_that_fills_its_gpu_could_not_come_back() -> None:
    asked = replace(IDLE, asked=True)
    assert plan(TERMS, situation(asked, free=GIB)).park == ("notebook",)
    full = plan(TERMS, situation(asked, free=GIB - 1))
    assert (full.park, full.refused["notebook"].why) == ((), WhyNot.GPU_MEMORY)
    other = replace(IDLE, key="other", memory={"a": GIB}, idle_s=0.0)
    assert plan(TERMS, situation(asked, other, free=0)).park == ("notebook",), "the other may leave"


def test_a_program_comes_back_only_where_there_is_room_and_a_reserve() -> None:
    assert plan(TERMS, situation(PARKED, free=21 * GIB)).wake == ("parked",)
    short = plan(TERMS, situation(PARKED, free=21 * GIB - 1))
    assert (short.wake, short.waits) == (
        (),
        {"parked": "it needs 20.0 GiB and a reserve of 1.0 GiB, 21.0 GiB is free"},
    )
    assert plan(TERMS, situation(PARKED, rooms={})).wake == ()
    moved = PlannedProgram("woken", ParkStage.RESIDENT, {"a": GIB}, settled_s=9.0)
    assert plan(TERMS, situation(PARKED, moved, free=99 * GIB)).wake == (), "read before the last move ended"


def test_the_longest_waiter_comes_back_first_and_is_not_passed() -> None:
    later = replace(PARKED, key="later", memory={"a": GIB}, wakes_since_s=6.0)
    assert plan(TERMS, situation(later, PARKED, free=99 * GIB)).wake == ("parked",)
    assert plan(TERMS, situation(later, PARKED, free=5 * GIB)).wake == (), "the small one does not pass"
    waking = replace(PARKED, stage=ParkStage.WAKING)
    assert plan(TERMS, situation(later, waking, free=99 * GIB)).wake == ()


def test_an_idle_program_makes_room_for_one_that_goes_on() -> None:
    found = plan(TERMS, situation(IDLE, PARKED, free=2 * GIB))
    assert (found.park, found.wake) == (("notebook",), ())
    woken = replace(IDLE, resident_since_s=1.0)
    assert plan(TERMS, situation(woken, PARKED, free=2 * GIB)).park == (), "it was brought back 9 s ago"


def test_oversubscribed_programs_take_turns_of_which_moving_is_a_tenth() -> None:
    turns = TERMS._replace(oversubscribe=True)
    works = replace(IDLE, key="works", idle_s=0.0)
    assert plan(TERMS, situation(works, PARKED, free=2 * GIB)).park == ()
    assert plan(turns, situation(works, PARKED, free=2 * GIB)).park == ("works",)
    assert plan(turns, situation(works, IDLE, PARKED, free=2 * GIB)).park == ("notebook",), "idle ones first"
    moving_s = 40 * GIB / 2e9 + 20 * GIB / 5e9
    for resident_s, parked in ((9 * moving_s - 1, ()), (9 * moving_s + 1, ("works",))):
        for since in (
            replace(works, resident_since_s=1000 - resident_s, settled_s=1.0),
            replace(works, seen_since_s=1000 - resident_s, settled_s=1.0),
        ):
            at = situation(since, PARKED, free=2 * GIB, now_s=1000.0)
            assert plan(turns, replace(at, rooms={"a": DeviceRoom(2 * GIB, 999.0)})).park == parked
    long, short = replace(works, key="long"), replace(works, key="short", resident_since_s=-900.0)
    assert plan(turns, situation(short, long, PARKED, free=2 * GIB)).park == ("long",), "on the GPU for longest"


def test_programs_in_short_turns_change_places_when_one_is_ahead() -> None:
    """The others use the time of the one that moves."""
    turns = TERMS._replace(oversubscribe=True, min_residence_s=10.0)
    lead_s = (40 * GIB / 2e9 + 20 * GIB / 5e9) / 2
    for in_turns, ahead_s, resident_s, parked in (
        (True, lead_s + 1, 11.0, ("works",)),
        (True, lead_s - 1, 11.0, ()),
        (True, lead_s + 1, 9.0, ()),
        (False, lead_s + 1, 11.0, ()),
    ):
        works = replace(IDLE, key="works", idle_s=0.0, seen_since_s=10.0 - resident_s, in_turns=in_turns)
        attained_s = {"a": {"works": 100.0 + ahead_s, "parked": 100.0}}
        assert plan(turns, situation(works, PARKED, free=2 * GIB, attained_s=attained_s)).park == parked


def test_a_program_of_class_latency_takes_no_long_turns() -> None:
    turns = TERMS._replace(oversubscribe=True)
    works = replace(IDLE, key="works", idle_s=0.0)
    serves = replace(works, key="serves", is_latency=True, seen_since_s=-9999.0)
    assert plan(turns, situation(serves, PARKED, free=2 * GIB)).park == ()
    assert plan(turns, situation(serves, works, PARKED, free=2 * GIB)).park == ("works",)
    small = replace(PARKED, key="small", memory={"a": GIB}, wakes_since_s=6.0)
    assert plan(turns, situation(serves, PARKED, small, free=2 * GIB)).wake == ("small",), "none could make room"


def test_the_program_that_had_most_of_the_gpu_makes_room() -> None:
    turns = TERMS._replace(oversubscribe=True)
    old, new = (replace(IDLE, key=key, idle_s=0.0, seen_since_s=since_s) for key, since_s in (("o", -999), ("n", -900)))
    for had, parked in ({"o": 1.0, "n": 2.0}, ("n",)), ({"o": 2.0, "n": 1.0}, ("o",)), ({"parked": 3.0, "o": 2.0}, ()):
        assert plan(turns, situation(new, old, PARKED, free=2 * GIB, attained_s={"a": had})).park == parked


def test_a_program_that_made_room_comes_after_those_that_waited_before_it() -> None:
    made_room = replace(PARKED, for_turn=True, settled_s=5.0, made_for="lease")
    need = RoomNeed(("a",), 30 * GIB, 4.0, id="lease")
    before = RoomClaims((need,))
    assert plan(TERMS, situation(made_room, free=51 * GIB, claims=before)).wake == ("parked",), "room for both"
    found = plan(TERMS, situation(made_room, free=50 * GIB, claims=before))
    assert found.wake == ()
    assert "30.0 GiB for leases and clients that come first" in found.waits["parked"]
    assert plan(TERMS, situation(PARKED, free=50 * GIB, claims=before)).wake == ("parked",), "its user goes on"
    other = RoomClaims((need._replace(id="other"),))
    assert plan(TERMS, situation(made_room, free=50 * GIB, claims=other)).wake == ("parked",)
    moves = replace(made_room, key="moves", stage=ParkStage.PARKING, settled_s=20.0)
    still = situation(made_room, moves, claims=before, now_s=60.0, rooms={"a": DeviceRoom(30 * GIB, 59.5)})
    assert plan(TERMS, still).wake == (), "more room is made for the same lease"
    unused = situation(made_room, claims=before, now_s=36.0, rooms={"a": DeviceRoom(50 * GIB, 35.5)})
    assert plan(TERMS, unused).wake == ("parked",), "the room was not taken"


def test_room_is_kept_for_a_program_that_comes_back_but_not_from_those_for_which_it_was_made() -> None:
    fits = {"free": 21 * GIB}
    assert plan(TERMS, situation(PARKED, **fits)).claims == {"parked": frozenset()}
    assert plan(TERMS, situation(PARKED, free=20 * GIB)).claims == {}, "others may use what is too small for it"
    moves = replace(IDLE, stage=ParkStage.PARKING)
    assert plan(TERMS, situation(PARKED, moves)).claims == {"parked": frozenset()}, "room is being made"
    assert plan(TERMS, situation(replace(PARKED, wakes_since_s=None), **fits)).claims == {}, "it sleeps"
    claims = RoomClaims(tuple(RoomNeed(("a",), 30 * GIB, 4.0, id=id) for id in ("lease", "other")))
    made_room = replace(PARKED, for_turn=True, settled_s=5.0, made_for="lease")
    for changes in ({}, {"stage": ParkStage.PARKING}, {"for_turn": False, "wakes_since_s": None}):
        one = replace(made_room, **changes)
        assert plan(TERMS, situation(one, claims=claims, **fits)).claims == {"parked": frozenset({"lease"})}
    goes_on = replace(made_room, for_turn=False)
    assert plan(TERMS, situation(goes_on, claims=claims, **fits)).claims == {"parked": frozenset()}


def test_a_lease_takes_free_room_only_if_all_can_still_take_turns() -> None:
    """One of those that take turns always waits: a small lease must not wait for ever because of that."""
    turns = TERMS._replace(oversubscribe=True)
    works = replace(IDLE, key="works", idle_s=0.0, resident_since_s=9.0)
    waits = replace(PARKED, memory={"a": 45 * GIB}, for_turn=True)
    claims = RoomClaims(tuple(RoomNeed(("a",), gib * GIB, 4.0, id=str(gib)) for gib in (10, 30)))
    # 45 GiB fit if the 40 GiB leave, with 20 GiB free; with 10 GiB free more would have to leave than the host holds.
    host = HostMemory(128 * GIB, 50 * GIB + 128 * GIB // 10 + 1)
    found = plan(turns, situation(works, waits, free=31 * GIB, host=host, claims=claims))
    assert found.claims == {"parked": frozenset({"10"})}


def test_a_working_program_makes_room_only_if_host_memory_can_hold_both() -> None:
    turns = TERMS._replace(oversubscribe=True)
    works = replace(IDLE, key="works", idle_s=0.0)
    need = RoomNeed(("a",), 30 * GIB, 1.0, id="lease")
    for available, parked in ((70 * GIB, {"works": "lease"}), (69 * GIB, {})):
        host = HostMemory(128 * GIB, available + 128 * GIB // 10 + 1)
        at = situation(works, host=host, claims=RoomClaims((need,)))
        assert plan(turns, at).made_for == parked
    # One that is in host memory already does not need more of it.
    host = HostMemory(128 * GIB, 40 * GIB + 128 * GIB // 10 + 1)
    assert plan(turns, situation(works, PARKED, free=2 * GIB, host=host)).park == ("works",)


def test_a_program_that_is_parked_on_another_gpu_makes_no_room() -> None:
    waits = PlannedProgram("waits", ParkStage.PARKED, {"a": 60 * GIB}, wakes_since_s=1.0)
    stays = PlannedProgram("stays", ParkStage.RESIDENT, {"a": 60 * GIB}, is_latency=True)
    moves = PlannedProgram("moves", ParkStage.PARKING, {"b": 60 * GIB})
    assert not can_have_room(TERMS, situation(waits, stays, moves), waits)
    assert can_have_room(TERMS, situation(waits, stays, replace(moves, memory={"a": 60 * GIB})), waits)


def test_memory_that_a_lease_was_promised_is_not_given_to_a_parked_program() -> None:
    promised = RoomClaims(promised={"a": 40 * GIB})
    assert plan(TERMS, situation(PARKED, free=60 * GIB, claims=promised)).wake == ()
    assert plan(TERMS, situation(PARKED, free=61 * GIB, claims=promised)).wake == ("parked",)


def test_whether_a_program_could_come_back_is_asked_of_each_of_its_gpus() -> None:
    asked = replace(IDLE, asked=True, memory={"a": 40 * GIB, "b": 40 * GIB})
    rooms = {"a": DeviceRoom(GIB, 9.0), "b": DeviceRoom(GIB, 9.0)}
    assert plan(TERMS, situation(asked, rooms=rooms)).park == ("notebook",)
    full = plan(TERMS, situation(asked, rooms=rooms | {"b": DeviceRoom(0, 9.0)}))
    assert full.refused["notebook"].why is WhyNot.GPU_MEMORY


def test_a_container_with_room_is_no_obstacle() -> None:
    asked = replace(IDLE, asked=True, container_room_bytes=40 * GIB)
    assert plan(TERMS, situation(asked)).park == ("notebook",)


def test_a_program_that_does_not_fit_into_host_memory_with_the_others_is_passed_over() -> None:
    """The first two would be enough, but host memory does not hold both: the first and the third leave."""
    rows = (("first", 20, 3000.0), ("second", 30, 2000.0), ("third", 15, 1000.0))
    idle = [replace(IDLE, key=key, memory={"a": gib * GIB}, idle_s=idle_s) for key, gib, idle_s in rows]
    claims = RoomClaims((RoomNeed(("a",), 35 * GIB, 1.0),))
    for available, parked in ((35, ("first",)), (34, ())):
        host = HostMemory(128 * GIB, available * GIB + 128 * GIB // 10 + 1)
        assert plan(TERMS, situation(*idle, host=host, claims=claims)).park == parked


def test_a_parked_program_is_not_in_the_way_of_a_lease_for_the_whole_gpu() -> None:
    claims = RoomClaims((RoomNeed(("a",), None, 1.0),))
    asleep = replace(PARKED, wakes_since_s=None)
    assert plan(TERMS, situation(IDLE, asleep, claims=claims)).park == ("notebook",)
    assert plan(TERMS, situation(IDLE, replace(asleep, stage=ParkStage.WAKING), claims=claims)).park == ()


def test_the_time_to_take_the_room_begins_with_the_last_program_that_made_it() -> None:
    claims = RoomClaims((RoomNeed(("a",), 30 * GIB, 4.0, id="lease"),))
    first, last = (
        replace(PARKED, key=key, memory={"a": 5 * GIB}, for_turn=True, made_for="lease", settled_s=settled_s)
        for key, settled_s in (("first", 900.0), ("last", 980.0))
    )
    for now_s, wake in ((1009.0, ()), (1011.0, ("first",))):
        rooms = {"a": DeviceRoom(30 * GIB, now_s - 1)}
        assert plan(TERMS, situation(first, last, claims=claims, now_s=now_s, rooms=rooms)).wake == wake


def test_a_program_that_was_brought_back_long_ago_may_make_room() -> None:
    claims = RoomClaims((RoomNeed(("a",), 30 * GIB, 1.0),))
    for since_s, parked in ((-111.0, ("notebook",)), (-109.0, ())):
        assert plan(TERMS, situation(replace(IDLE, resident_since_s=since_s), claims=claims)).park == parked


TURNS = TERMS._replace(oversubscribe=True)
RICH = HostMemory(512 * GIB, 500 * GIB)
WORKS = replace(IDLE, key="works", idle_s=0.0)
LEASE = RoomNeed(("a",), 30 * GIB, 1.0, id="lease")


def test_a_working_program_makes_room_only_if_all_that_are_parked_can_come_back_in_turns() -> None:
    """With 1 GiB free, 40 GiB that leave and a lease of 30: 10 GiB stay free, and the lease may leave again."""
    waits = replace(PARKED, for_turn=True)
    stays = replace(IDLE, key="stays", idle_s=0.0, memory={"a": 20 * GIB}, resident_since_s=9.0)
    claims = RoomClaims((LEASE,))
    rooms = {"a": DeviceRoom(GIB, 9.0), "b": DeviceRoom(GIB, 9.0)}
    alone = ParkRefusal(WhyNot.LEFT_ALONE, "a rule leaves it alone")
    for memory, more, parked in (
        ({"a": 40}, (), ("works",)),
        ({"a": 41}, (), ()),
        ({"b": 41}, (), ("works",)),
        ({"a": 41}, (stays,), ("works",)),
        ({"a": 41}, (replace(stays, is_latency=True),), ()),
        ({"a": 41}, (replace(stays, obstacle=alone),), ()),
    ):
        sized = replace(waits, memory={device: gib * GIB for device, gib in memory.items()})
        found = plan(TURNS, situation(WORKS, sized, *more, claims=claims, host=RICH, rooms=rooms))
        assert found.park == parked, (memory, more)
    both = replace(WORKS, memory={"a": 40 * GIB, "b": GIB})
    on_a = replace(waits, memory={"a": 45 * GIB})
    assert plan(TURNS, situation(both, on_a, claims=claims, host=RICH, rooms=rooms)).park == (), "b alone is not enough"


def test_the_one_that_makes_room_has_to_be_able_to_come_back_itself() -> None:
    """Its 40 GiB and the reserve have to fit once the lease has left, next to a program that stays."""
    stays = replace(IDLE, key="stays", idle_s=0.0, memory={"a": GIB}, is_latency=True)
    claims = RoomClaims((LEASE,))
    for free, parked in ((GIB, ("works",)), (GIB - 1, ())):
        assert plan(TURNS, situation(WORKS, stays, free=free, host=RICH, claims=claims)).park == parked


def test_host_memory_holds_those_that_change_places() -> None:
    """45 GiB come back once the lease of 40 and the 10 GiB that stay have left: 50, besides the 40 that left before."""
    waits = replace(PARKED, for_turn=True, memory={"a": 45 * GIB})
    stays = replace(IDLE, key="stays", idle_s=0.0, memory={"a": 10 * GIB}, resident_since_s=9.0)
    claims = RoomClaims((LEASE._replace(bytes=40 * GIB),))
    for available, parked in ((90, ("works",)), (89, ())):
        host = HostMemory(128 * GIB, available * GIB + 128 * GIB // 10 + 1)
        assert plan(TURNS, situation(WORKS, waits, stays, claims=claims, host=host)).park == parked


def test_others_could_make_room_only_where_they_can_on_each_gpu() -> None:
    waits = PlannedProgram("waits", ParkStage.PARKED, {"a": 30 * GIB, "b": 30 * GIB}, wakes_since_s=1.0)
    rooms = {"a": DeviceRoom(GIB, 9.0), "b": DeviceRoom(GIB, 9.0)}
    on_b = replace(WORKS, key="on-b", memory={"b": 40 * GIB})
    assert not can_have_room(TURNS, situation(waits, WORKS, rooms=rooms, host=RICH), waits)
    assert can_have_room(TURNS, situation(waits, WORKS, on_b, rooms=rooms, host=RICH), waits)


def test_from_which_leases_the_room_of_a_program_that_waits_is_kept() -> None:
    """From all while it is about to come back; else a lease may have room where that changes no turns."""
    claims = RoomClaims((LEASE, LEASE._replace(devices=("b",), id="on-b"), LEASE._replace(bytes=None, id="whole")))
    waits = replace(PARKED, for_turn=True, memory={"a": 45 * GIB})
    works = replace(WORKS, resident_since_s=9.0)
    has_room = situation(waits, works, free=46 * GIB, host=RICH, claims=claims)
    assert plan(TURNS, has_room).claims == {"parked": frozenset()}
    has_none = replace(has_room, rooms={"a": DeviceRoom(31 * GIB, 9.0)})
    assert plan(TURNS, has_none).claims == {"parked": frozenset({"lease", "on-b"})}
    both = replace(waits, memory={"a": 45 * GIB, "b": 45 * GIB})
    on_both = RoomClaims((LEASE._replace(devices=("a", "b")),))
    rooms = {"a": DeviceRoom(31 * GIB, 9.0), "b": DeviceRoom(31 * GIB, 9.0)}
    found = plan(TURNS, situation(both, works, rooms=rooms, host=RICH, claims=on_both))
    assert found.claims == {"parked": frozenset()}, "on b none could make room"


def test_a_waiter_is_passed_only_if_none_can_make_room_for_it() -> None:
    small = replace(PARKED, key="small", memory={"a": GIB}, wakes_since_s=7.0)
    at = situation(WORKS, PARKED, small, free=5 * GIB)
    assert plan(TURNS, at).wake == ()
    assert "have to stay" not in plan(TURNS, at).waits["parked"]
    latency = situation(replace(WORKS, is_latency=True), PARKED, small, free=5 * GIB)
    assert plan(TURNS, latency).wake == ("small",)
    assert "have to stay" in plan(TURNS, latency).waits["parked"]


def test_no_program_at_work_leaves_for_a_lease_of_the_whole_gpu() -> None:
    whole = RoomClaims((LEASE._replace(bytes=None),))
    assert plan(TURNS, situation(WORKS, claims=RoomClaims((LEASE,)))).park == ("works",)
    assert plan(TURNS, situation(WORKS, claims=whole)).park == ()


def test_programs_take_turns_also_where_idle_ones_are_parked_at_once() -> None:
    found = plan(TURNS._replace(eager=True), situation(WORKS, PARKED, free=2 * GIB))
    assert found.made_for == {"works": "parked"}


# Class background: its programs make room for others while they work.

NIGHT = PlannedProgram("night", ParkStage.RESIDENT, {"a": 40 * GIB}, settled_s=-1.0, is_background=True)
PARKED_NIGHT = replace(NIGHT, stage=ParkStage.PARKED, wakes_since_s=2.0, for_turn=True, made_for="lease", touched=False)


def test_a_program_of_the_background_makes_room_while_it_works() -> None:
    claims = RoomClaims((LEASE,))
    assert plan(TERMS, situation(NIGHT, claims=claims)).made_for == {"night": "lease"}
    assert plan(TERMS, situation(NIGHT, PARKED)).made_for == {"night": "parked"}, "another comes back"
    assert plan(TERMS._replace(idle_after_s=0.0), situation(NIGHT, claims=claims)).park == ("night",)
    assert plan(TERMS, situation(replace(NIGHT, is_background=False), claims=claims)).park == ()
    assert plan(TERMS, situation(NIGHT)).park == (), "nothing needs the room"
    assert plan(TERMS, situation(replace(NIGHT, resident_since_s=-100.0), claims=claims)).park == (), "no flapping"
    assert plan(TERMS, situation(replace(NIGHT, resident_since_s=-110.0), claims=claims)).park == ("night",)
    managed = replace(NIGHT, obstacle=ParkRefusal(WhyNot.MANAGED_MEMORY, "managed memory"))
    assert plan(TERMS, situation(managed, claims=claims)).park == ()
    assert plan(TERMS, situation(IDLE, NIGHT, claims=claims)).park == ("notebook",), "idle ones first"
    whole = RoomClaims((LEASE._replace(bytes=None),))
    assert plan(TERMS, situation(NIGHT, claims=whole)).park == ("night",), "a lease of the whole GPU"
    much = RoomClaims((LEASE._replace(bytes=70 * GIB),))
    for idle_s in (0.0, 3600.0):
        for terms in (TERMS, TURNS):
            found = plan(terms, situation(replace(NIGHT, idle_s=idle_s), claims=much, host=RICH))
            assert found.park == (), "its memory counts once"


def test_none_at_work_makes_room_for_one_of_the_background() -> None:
    waits = replace(PARKED, is_background=True)
    lease = RoomClaims((LEASE._replace(of_background=True),))
    for terms in (TERMS, TURNS):
        assert plan(terms, situation(replace(WORKS, seen_since_s=-9999.0), waits, host=RICH)).park == ()
        assert plan(terms, situation(replace(WORKS, seen_since_s=-9999.0), claims=lease, host=RICH)).park == ()
    assert plan(TERMS, situation(NIGHT, waits)).park == ()
    assert plan(TERMS, situation(NIGHT, claims=lease)).park == ()
    assert plan(TERMS, situation(IDLE, waits)).park == ("notebook",), "an idle one does"
    night = replace(NIGHT, seen_since_s=-9999.0)
    assert plan(TURNS, situation(night, waits, host=RICH)).park == ("night",), "in long turns among each other"


def test_one_of_the_background_comes_back_last() -> None:
    waits = replace(PARKED, wakes_since_s=5.0)
    found = plan(TERMS, situation(PARKED_NIGHT, waits, free=45 * GIB))
    assert found.wake == ("parked",), "the other came later"
    assert found.waits == {"night": "another program is brought back first"}
    assert plan(TERMS, situation(PARKED_NIGHT, waits, free=10 * GIB)).wake == ()
    found = plan(TERMS, situation(PARKED_NIGHT, IDLE, claims=RoomClaims((LEASE._replace(id="later"),))))
    assert found.made_for == {"notebook": "later"}, "room is made for the lease first"
    assert plan(TERMS, situation(PARKED_NIGHT, free=45 * GIB)).wake == ("night",)


def test_one_of_the_background_does_not_come_back_next_to_another_that_may_still_grow() -> None:
    young = PlannedProgram("young", ParkStage.RESIDENT, {"a": GIB}, settled_s=-1.0, is_young=True)
    found = plan(TERMS, situation(PARKED_NIGHT, young, free=60 * GIB))
    assert found.wake == ()
    assert "has just started" in found.waits["night"]
    for other in (replace(young, is_young=False), replace(young, is_background=True), replace(young, memory={"b": 1})):
        assert plan(TERMS, situation(PARKED_NIGHT, other, free=60 * GIB)).wake == ("night",)
    by_order = replace(PARKED_NIGHT, touched=True)
    assert plan(TERMS, situation(by_order, young, free=60 * GIB)).wake == ("night",)
    in_turn = replace(PARKED, touched=False)
    assert plan(TERMS, situation(in_turn, young, free=60 * GIB)).wake == ("parked",), "others do"


def test_one_of_the_background_for_which_none_makes_room_is_passed_by_the_next() -> None:
    later = replace(PARKED_NIGHT, key="later", memory={"a": 2 * GIB}, wakes_since_s=3.0)
    at = situation(PARKED_NIGHT, later, replace(WORKS, seen_since_s=-9999.0), free=5 * GIB, host=RICH)
    found = plan(TURNS, at)
    assert (found.wake, found.park) == (("later",), ())
    assert "have to stay" in found.waits["night"]


def test_room_is_not_kept_from_leases_for_one_of_the_background_that_waits() -> None:
    claims = RoomClaims((LEASE._replace(id="other", bytes=90 * GIB),))
    at = situation(replace(PARKED_NIGHT, is_background=False), claims=claims, host=RICH)
    assert plan(TURNS, at).claims.keys() == {"night"}
    assert plan(TURNS, situation(PARKED_NIGHT, claims=claims, host=RICH)).claims == {}
    assert plan(TURNS, situation(PARKED_NIGHT, free=60 * GIB, host=RICH)).claims.keys() == {"night"}, "it comes now"


HELD = RoomNeed(("a",), 60 * GIB, 1.0, id="arrival:0", idle_after_s=30.0)
MOVING = replace(IDLE, key="moving", stage=ParkStage.PARKING, memory={"a": 10 * GIB}, made_for="arrival:0")


def test_four_programs_are_parked_at_once_only_for_programs_that_are_held() -> None:
    held = RoomClaims((HELD,))
    assert plan(TERMS, situation(IDLE, claims=held)).made_for == {"notebook": "arrival:0"}
    assert plan(TERMS, situation(IDLE, MOVING, claims=held)).made_for == {"notebook": "arrival:0"}
    others = [replace(MOVING, key=key, memory={"a": GIB}) for key in ("second", "third", "fourth")]
    assert plan(TERMS, situation(IDLE, MOVING, *others[:2], claims=held)).park == ("notebook",)
    assert plan(TERMS, situation(IDLE, MOVING, *others, claims=held)).park == (), "four move already"
    for made_for in ("", "lease"):
        assert plan(TERMS, situation(IDLE, replace(MOVING, made_for=made_for), claims=held)).park == ()
    assert plan(TERMS._replace(eager=True), situation(IDLE, MOVING, claims=held)).park == (), (
        "it is not for the newcomer"
    )
    asked = replace(IDLE, idle_s=0.0, asked=True)
    assert plan(TERMS, situation(asked, MOVING, claims=held)).park == (), "the owner's wish comes after the move"
    other = replace(asked, key="other", memory={"a": GIB})
    assert plan(TERMS, situation(other, IDLE, MOVING, claims=held)).park == ("notebook",), "and holds nothing up"


def test_what_makes_room_for_a_program_that_is_held() -> None:
    held = RoomClaims((HELD,))
    # 40 GiB of the notebook and 10 GiB that move; a tenth of the host is kept.
    for available, parked in ((50, ("notebook",)), (49, ())):
        host = HostMemory(128 * GIB, available * GIB + 128 * GIB // 10 + 1)
        assert plan(TERMS, situation(IDLE, MOVING, claims=held, host=host)).park == parked
    for room, parked in ((50, ("notebook",)), (49, ())):
        limited = replace(IDLE, container_room_bytes=room * GIB)
        assert plan(TERMS, situation(limited, MOVING, claims=held)).park == parked, "both may be in one container"
    for free, parked in ((49, ("notebook",)), (50, ())):
        assert plan(TERMS, situation(IDLE, MOVING, free=free * GIB, claims=held)).park == parked, (
            "what moves is counted"
        )
    for changes in ({"idle_s": 29.0}, {"is_latency": True}, {"memory": {"b": GIB}}, {"resident_since_s": 9.0}):
        assert plan(TERMS, situation(replace(IDLE, **changes), claims=held)).park == (), changes
    for free, parked in ((69, ("notebook",)), (70, ())):
        kept = RoomClaims((HELD._replace(kept={"a": 10 * GIB}),))
        assert plan(TERMS, situation(IDLE, free=free * GIB, claims=kept)).park == parked, "what others were given"
    spared = RoomClaims((HELD._replace(spared=frozenset({"notebook"})),))
    assert plan(TERMS, situation(IDLE, claims=spared)).park == (), "of the newcomer's own job"


DEVICES = ("a", "b")
sizes = st.integers(0, 60).map(lambda gib: gib * GIB)
times = st.floats(0.0, 300.0)
refusals = st.just(ParkRefusal(WhyNot.MANAGED_MEMORY, "managed memory"))
programs = st.builds(
    PlannedProgram,
    key=st.just(""),
    stage=st.sampled_from(ParkStage),
    memory=st.dictionaries(st.sampled_from(DEVICES), sizes, min_size=1),
    settled_s=times,
    resident_since_s=st.none() | times,
    seen_since_s=times,
    in_turns=st.booleans(),
    uses_gpu=st.booleans(),
    idle_s=times,
    obstacle=st.none() | refusals,
    container_room_bytes=st.none() | st.just(math.inf) | sizes,
    asked=st.booleans(),
    wakes_since_s=st.none() | times,
    for_turn=st.booleans(),
    made_for=st.sampled_from(["", "need", "arrival:0", "arrival:1"]),
    touched=st.booleans(),
    is_young=st.booleans(),
    is_latency=st.booleans(),
    is_background=st.booleans(),
)
kept = st.dictionaries(st.sampled_from(DEVICES), sizes)
# Of leases and clients, and of programs that are held until they have room.
needs = st.builds(
    RoomNeed,
    st.lists(st.sampled_from(DEVICES), min_size=1, unique=True).map(tuple),
    st.none() | sizes,
    times,
    st.integers(1, 2),
    st.just("need"),
    kept,
    st.none(),
    st.just(frozenset()),
    st.booleans(),
)
arrivals = st.builds(
    RoomNeed,
    st.sampled_from(DEVICES).map(lambda device: (device,)),
    sizes,
    times,
    st.just(1),
    st.just(""),
    kept,
    st.sampled_from([0.0, 30.0, 120.0]),
    st.frozensets(st.sampled_from(["p0", "p1", "p2"])),
    st.booleans(),
)
situations = st.builds(
    ParkSituation,
    st.lists(programs, max_size=6).map(lambda rows: tuple(replace(row, key=f"p{n}") for n, row in enumerate(rows))),
    st.dictionaries(st.sampled_from(DEVICES), st.builds(DeviceRoom, sizes, times)),
    st.none() | st.builds(HostMemory, st.just(128 * GIB), sizes),
    st.builds(
        RoomClaims,
        st.builds(
            lambda leases, held: (*leases, *(need._replace(id=f"arrival:{n}") for n, need in enumerate(held))),
            st.lists(needs, max_size=2),
            st.lists(arrivals, max_size=2),
        ),
        st.dictionaries(st.sampled_from(DEVICES), sizes),
    ),
    st.just(300.0),
    st.dictionaries(st.sampled_from(DEVICES), st.dictionaries(st.sampled_from(["p0", "p1", "p2", "need"]), times)),
    st.frozensets(st.sampled_from(DEVICES)),
)
terms = st.builds(ParkTerms, st.sampled_from([0.0, 60.0]), st.booleans(), st.booleans(), st.floats(0, 50), times)


@given(terms, situations)
@example(TERMS, ParkSituation((IDLE, PARKED), {"a": DeviceRoom(0, 9.0)}, HOST, now_s=10.0))
@example(TERMS, situation(IDLE, MOVING, claims=RoomClaims((HELD,))))
@example(TERMS._replace(oversubscribe=True), situation(replace(IDLE, idle_s=0.0, is_latency=True), PARKED))
def test_invariants(given_terms: ParkTerms, at: ParkSituation) -> None:
    found = plan(given_terms, at)
    by_key = {program.key: program for program in at.programs}
    waking = [by_key[key] for key in found.wake]
    for device in DEVICES:
        on = [program for program in waking if device in program.memory]
        restoring = [p for p in at.programs if p.stage is ParkStage.WAKING and device in p.memory]
        assert len(on) + len(restoring) <= 1 or not on, "one restore at a time on a device"
        for program in on:
            room = at.fresh_room(device)
            assert room is not None
            promised = at.claims.promised.get(device, 0)
            needed = program.memory[device] + promised + given_terms.gpu_reserve_bytes
            assert needed <= room.free_bytes, "never more than fits"
            assert program.touched or device not in at.settling, "a program starts there"
            assert program.wakes_since_s is not None
            for other in at.programs:
                if other.stage is ParkStage.PARKED and other.wakes_since_s is not None and device in other.memory:
                    comes_first = (program.is_background, program.wakes_since_s) <= (
                        other.is_background,
                        other.wakes_since_s,
                    )
                    assert comes_first or may_be_passed(given_terms, at, other), (
                        "the longest waiter first, one of the background last"
                    )
                if other.is_young and not other.is_background and device in other.memory:
                    grows = other.stage is ParkStage.RESIDENT and program.is_background
                    assert program.touched or not grows, "one of another class may still grow there"
    assert all(program.stage is ParkStage.PARKED for program in waking)
    waiting = {p.key for p in at.programs if p.stage is ParkStage.PARKED and p.wakes_since_s is not None}
    assert waiting == set(found.wake) | found.waits.keys(), "who waits is brought back or has a reason"

    assert len(found.park) <= 1
    assert found.made_for.keys() <= set(found.park)
    for program in (by_key[key] for key in found.park):
        check_parked(given_terms, at, program, found.made_for.get(program.key, ""))
        if not program.asked:
            idle = 0 < given_terms.idle_after_s <= program.idle_s
            waiters = bool(waiting - set(found.wake))
            assert (given_terms.eager and idle) or at.claims.needs or waiters, "something needs the room"
    assert all(by_key[key].asked for key in found.refused)
    assert not set(found.refused) & set(found.park)


def may_be_passed(given_terms: ParkTerms, at: ParkSituation, waiter: PlannedProgram) -> bool:
    """Its user does not use it and a program starts on its GPU, or those in its place have to stay."""
    there = [one for one in at.resident if not one.memory.keys().isdisjoint(waiter.memory)]
    grows = waiter.is_background and any(one.is_young and not one.is_background for one in there)
    settles = not waiter.touched and (grows or not at.settling.isdisjoint(waiter.memory))
    return settles or (given_terms.oversubscribe and not can_have_room(given_terms, at, waiter))


def check_parked(given_terms: ParkTerms, at: ParkSituation, program: PlannedProgram, made_for: str) -> None:
    assert program.stage is ParkStage.RESIDENT
    assert program.obstacle is None, "never park what cannot come back"
    moving = [one for one in at.programs if one.stage is ParkStage.PARKING]
    held = {need.id: need for need in at.claims.needs if need.idle_after_s is not None}
    if moving:
        assert len(moving) <= 3, "never more than four at once"
        assert {one.made_for for one in moving} | {made_for} <= held.keys(), "several only for programs that are held"
    assert at.host is not None
    reserve = max(4 * GIB, at.host.total_bytes * given_terms.host_reserve_percent / 100)
    budget = max(0, at.host.available_bytes - reserve) + 1
    moved_bytes = program.bytes + sum(one.bytes for one in moving)
    assert moved_bytes <= budget, "never more than host memory allows"
    assert program.container_room_bytes is not None
    assert moved_bytes <= program.container_room_bytes, "nor its container, where those that move may be as well"
    if made_for in held:
        need = held[made_for]
        assert need.idle_after_s is not None
        yields = program.is_background and not need.of_background
        assert yields or 0 < need.idle_after_s <= program.idle_s, "only idle programs make room for a newcomer"
        assert program.key not in need.spared
        (device,) = need.devices
        assert device in program.memory, "it makes room where it is needed"
        coming = sum(one.memory.get(device, 0) for one in moving)
        missing = (need.bytes or 0) + need.kept.get(device, 0) - at.rooms[device].free_bytes - coming
        assert missing > 0, "it has its room"
    elif not program.asked:
        is_idle = 0 < given_terms.idle_after_s <= program.idle_s
        assert given_terms.oversubscribe or is_idle or program.is_background
        backgrounds = {one.key for one in at.programs if one.is_background}
        backgrounds |= {need.id for need in at.claims.needs if need.of_background}
        others = {need.id for need in at.claims.needs if not need.of_background}
        if made_for in backgrounds - others:
            is_in_turn = given_terms.oversubscribe and program.is_background
            assert is_idle or is_in_turn, "none at work makes room for one of the background"
    if made_for in held or not program.asked:
        assert not program.is_latency, "one of class latency stays"
        since_s = program.resident_since_s
        assert since_s is None or at.now_s - since_s >= given_terms.min_residence_s, "no flapping"
