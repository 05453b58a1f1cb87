"""Which newcomers wait, which go on, and what is parked for them: properties of the planner, without a GPU."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.config.scheduler import parse_room
from gpucommons.model.host import HostMemory
from gpucommons.model.process_identity import ProcessKey
from gpucommons.scheduler.parking.arrivals import (
    ArrivalRules,
    ArrivalWaits,
    BudgetsSpent,
    GoesOn,
    GpuMemory,
    Newcomer,
    plan_arrivals,
    short_devices,
    with_arrivals,
)
from gpucommons.scheduler.parking.plan import plan
from gpucommons.scheduler.parking.values import (
    DeviceRoom,
    ParkPlan,
    ParkRefusal,
    ParkSituation,
    ParkStage,
    ParkTerms,
    PlannedProgram,
    WhyNot,
)
from unhurried import costly

GPU = "GPU-0"
TOTAL = 100
TERMS = ParkTerms(gpu_reserve_bytes=0, min_residence_s=10.0)
RULES = ArrivalRules(room_bytes=25, room_ratio=None, wait_s=60.0, idle_after_s=120.0, settle_s=30.0)
HOST = HostMemory(1 << 50, 1 << 50)
NOW_S = 1000.0
ALONE = ParkRefusal(WhyNot.LEFT_ALONE, "a rule leaves it alone")


def resident(key: str, used: int, idle_s: float = 500.0, **given: Any) -> PlannedProgram:
    return replace(PlannedProgram(key, ParkStage.RESIDENT, {GPU: used}, settled_s=0.0, idle_s=idle_s), **given)


def newcomer(pid: int, since_s: float = NOW_S, *siblings: str, owner: str = "") -> Newcomer:
    return Newcomer(ProcessKey(pid, 1), GPU, since_s, frozenset(siblings), owner=owner)


class World:
    """One GPU. A step plans, and carries the plan out; a move takes a second."""

    def __init__(self, programs: list[PlannedProgram], newcomers: list[Newcomer], rules: ArrivalRules = RULES) -> None:
        self.programs = {program.key: program for program in programs}
        self.newcomers = {one.process: one for one in newcomers}
        self.rules, self.now_s = rules, NOW_S
        self.went_on: dict[ProcessKey, GoesOn] = {}
        self.parked: list[tuple[str, str]] = []

    @property
    def free(self) -> int:
        there = (one for one in self.programs.values() if one.stage is not ParkStage.PARKED)
        return TOTAL - sum(one.bytes for one in there)

    @property
    def memory(self) -> Mapping[str, GpuMemory]:
        return {GPU: GpuMemory(self.free, TOTAL, 0)}

    @property
    def situation(self) -> ParkSituation:
        rooms = {GPU: DeviceRoom(self.free, self.now_s)}
        return ParkSituation(tuple(self.programs.values()), rooms, HOST, now_s=self.now_s)

    def step(self) -> ParkPlan:
        arrivals = plan_arrivals(self.rules, TERMS, self.situation, self.newcomers.values(), self.memory)
        found = plan(TERMS, with_arrivals(self.situation, arrivals))
        for key, program in self.programs.items():
            if program.stage is ParkStage.PARKING:
                self.programs[key] = replace(program, stage=ParkStage.PARKED, settled_s=self.now_s)
        for key in found.park:
            made_for = found.made_for[key]
            self.parked.append((key, made_for))
            began = replace(self.programs[key], stage=ParkStage.PARKING, settled_s=self.now_s, made_for=made_for)
            self.programs[key] = began
        for process, why in arrivals.go_on.items():
            self.went_on[process] = why
            self.newcomers[process] = self.newcomers[process]._replace(went_on_s=self.now_s)
        self.now_s += 1.0
        return found


def programs_on_gpu() -> st.SearchStrategy[list[PlannedProgram]]:
    rows = st.tuples(
        st.sampled_from([5, 10, 15, 24, 30]), st.sampled_from([0.0, 60.0, 119.0, 120.0, 500.0, 9000.0]), st.booleans()
    )
    return st.lists(rows, min_size=3, max_size=8).map(
        lambda found: [
            resident(f"p{at}", used, idle_s, obstacle=ALONE if alone else None)
            for at, (used, idle_s, alone) in enumerate(found)
            if sum(row[0] for row in found[: at + 1]) <= TOTAL
        ]
    )


def arrivals() -> st.SearchStrategy[list[Newcomer]]:
    siblings = st.frozensets(st.sampled_from(["p0", "p1", "p2"]), max_size=1)
    return st.lists(siblings, min_size=1, max_size=4).map(
        lambda found: [Newcomer(ProcessKey(7 + at, 1), GPU, NOW_S + at / 8, keys) for at, keys in enumerate(found)]
    )


@given(programs_on_gpu(), arrivals())
def test_every_newcomer_goes_on_and_only_idle_programs_of_others_make_room(
    programs: list[PlannedProgram], newcomers: list[Newcomer]
) -> None:
    before = {program.key: program for program in programs}
    world = World(programs, newcomers)
    for _ in range(20):
        world.step()
    assert world.went_on.keys() == {one.process for one in newcomers}
    assert GoesOn.WAITED not in world.went_on.values(), "moves take seconds, not a minute"
    siblings = {one.id: one.siblings for one in newcomers}
    for key, made_for in world.parked:
        assert before[key].idle_s >= RULES.idle_after_s
        assert before[key].obstacle is None
        assert key not in siblings[made_for]
    assert len({key for key, _ in world.parked}) == len(world.parked)


@given(programs_on_gpu(), arrivals())
def test_no_room_is_counted_on_twice(programs: list[PlannedProgram], newcomers: list[Newcomer]) -> None:
    """None of them allocates: all that have room have it at the same time."""
    world = World(programs, newcomers)
    for _ in range(20):
        world.step()
        with_room = [process for process, why in world.went_on.items() if why is GoesOn.ROOM]
        assert len(with_room) * 25 <= world.free


@given(programs_on_gpu(), arrivals())
def test_no_more_is_parked_than_is_needed(programs: list[PlannedProgram], newcomers: list[Newcomer]) -> None:
    world = World(programs, newcomers)
    smallest = min((program.bytes for program in programs), default=0)
    for _ in range(20):
        world.step()
    if world.parked:
        last, _ = world.parked[-1]
        assert world.free - world.programs[last].bytes < len(newcomers) * 25, "the last one was needed"
        assert smallest > 0


@given(programs_on_gpu())
def test_the_longest_idle_goes_first_then_the_largest(programs: list[PlannedProgram]) -> None:
    world = World(programs, [newcomer(7)], replace(RULES, room_bytes=80))
    order = {program.key: (-program.idle_s, -program.bytes) for program in programs}
    for _ in range(20):
        world.step()
    ranks = [order[key] for key, _ in world.parked]
    assert ranks == sorted(ranks)


def test_four_are_parked_at_once_for_a_newcomer_and_no_fifth() -> None:
    rules = replace(RULES, room_bytes=90)
    moving = [
        replace(resident(f"m{at}", 10), stage=ParkStage.PARKING, made_for=newcomer(7).id, settled_s=NOW_S)
        for at in range(4)
    ]
    idle = [resident(f"p{at}", 20) for at in range(2)]
    assert len(World([*moving[:3], *idle], [newcomer(7)], rules).step().park) == 1
    assert World([*moving, *idle], [newcomer(7)], rules).step().park == ()
    other = replace(moving[0], made_for="lease-1")
    assert World([other, *idle], [newcomer(7)], rules).step().park == (), "for others one at a time"


def test_a_newcomer_goes_on_after_the_longest_wait() -> None:
    """The move does not end."""
    stuck = replace(resident("p0", 90), stage=ParkStage.PARKING, made_for="arrival:7.1")
    world = World([stuck], [newcomer(7)])
    early = plan_arrivals(RULES, TERMS, world.situation, world.newcomers.values(), world.memory)
    late = replace(world.situation, now_s=NOW_S + 60.0)
    assert (early.go_on, len(early.needs)) == ({}, 1)
    assert plan_arrivals(RULES, TERMS, late, world.newcomers.values(), world.memory).go_on == {
        ProcessKey(7, 1): GoesOn.WAITED
    }


def test_a_newcomer_does_not_wait_for_a_driver_that_does_not_answer() -> None:
    situation = ParkSituation((resident("p0", 90),), {}, HOST, now_s=NOW_S + 6)
    found = plan_arrivals(RULES, TERMS, situation, [newcomer(7)], {GPU: GpuMemory(10, TOTAL, 0)})
    assert found.go_on == {ProcessKey(7, 1): GoesOn.UNKNOWN}


@pytest.mark.parametrize(
    ("gpu", "program", "short"),
    [
        (GpuMemory(10, TOTAL, 0), resident("p0", 90), True),
        (GpuMemory(49, TOTAL, 0), resident("p0", 51), True),
        (GpuMemory(50, TOTAL, 0), resident("p0", 50), False),
        (GpuMemory(10, TOTAL, 0), PlannedProgram("p0", ParkStage.PARKING, {GPU: 90}), True),
        (GpuMemory(10, TOTAL, 0), PlannedProgram("p0", ParkStage.PARKING, {"GPU-1": 90}), False),
        (GpuMemory(10, TOTAL, 0), PlannedProgram("p0", ParkStage.WAKING, {GPU: 90}), False),
        (GpuMemory(None, TOTAL, 0), resident("p0", 90), False),
        (GpuMemory(10, TOTAL, 0, is_mig=True), resident("p0", 90), False),
        (GpuMemory(10, TOTAL, 0), resident("p0", 90, idle_s=119.0), False),
        (GpuMemory(10, TOTAL, 0), resident("p0", 90, obstacle=ALONE), False),
        (GpuMemory(10, TOTAL, 0), resident("p0", 90, is_latency=True), False),
        (GpuMemory(10, TOTAL, 0), resident("p0", 90, resident_since_s=NOW_S - 5), False),
        (GpuMemory(10, TOTAL, 0), resident("p0", 90, idle_s=0.0, is_background=True), True),
    ],
)
def test_newcomers_are_held_only_where_others_could_make_room(
    gpu: GpuMemory, program: PlannedProgram, short: bool
) -> None:
    situation = ParkSituation((program,), {GPU: DeviceRoom(gpu.free_bytes or 0, NOW_S)}, HOST, now_s=NOW_S)
    assert bool(short_devices(RULES, TERMS, situation, {GPU: gpu})) is short
    assert not short_devices(ArrivalRules(None, None), TERMS, situation, {GPU: gpu}), "off"


@pytest.mark.parametrize(
    ("free", "total", "fits"),
    [
        (1 << 30, 140 << 30, True),
        ((1 << 30) - 1, 140 << 30, False),
        (512 << 20, 8 << 30, True),
        ((512 << 20) - 1, 8 << 30, False),
        (None, 8 << 30, True),
        (0, None, True),
    ],
)
def test_a_context_needs_a_gigabyte_or_less_on_a_small_gpu(free: int | None, total: int | None, fits: bool) -> None:
    assert GpuMemory(free, total, 0).fits_context is fits


def test_a_young_program_gets_more_room_as_its_use_comes_near_what_is_free() -> None:
    idle, young = resident("idle", 40), resident("young", 10, idle_s=0.0, is_young=True)
    world = World([idle, young, resident("busy", 20, idle_s=0.0)], [])
    assert world.step().park == (), "10 used, 30 free"
    world.programs["young"] = replace(young, memory={GPU: 28})
    assert world.step().park == ("idle",), "28 used, 12 free"
    world = World([idle, replace(young, memory={GPU: 28}, is_young=False)], [])
    assert world.step().park == ()


def test_nothing_comes_back_while_a_newcomer_settles_unless_it_is_used() -> None:
    parked = PlannedProgram("p0", ParkStage.PARKED, {GPU: 10}, wakes_since_s=NOW_S - 1, settled_s=0.0, touched=False)
    settling = newcomer(7)._replace(went_on_s=NOW_S - 5)
    world = World([parked], [settling])
    found = world.step()
    assert (found.wake, "starts on its GPU" in found.waits["p0"]) == ((), True)
    world = World([replace(parked, touched=True)], [settling])
    assert world.step().wake == ("p0",)
    world = World([parked], [settling._replace(went_on_s=NOW_S - 31)])
    assert world.step().wake == ("p0",)


def test_the_room_of_a_newcomer_is_kept_until_it_is_used_or_has_settled() -> None:
    """A program that its user uses comes back only where both fit."""
    parked = PlannedProgram("p0", ParkStage.PARKED, {GPU: 40}, wakes_since_s=NOW_S - 1, settled_s=0.0)
    settling = newcomer(7)._replace(went_on_s=NOW_S - 5)
    busy = resident("busy", 50, idle_s=0.0)
    assert World([parked, busy], [settling]).step().wake == (), "50 free, 25 promised"
    used = resident("new", 24, idle_s=0.0, processes=frozenset({settling.process}))
    small = replace(parked, memory={GPU: 20})
    assert World([small, busy, used], [settling]).step().wake == ("p0",), "26 free, 1 promised"
    assert World([parked, busy], [settling._replace(went_on_s=NOW_S - 31)]).step().wake == ("p0",), "it has settled"
    away = PlannedProgram("new", ParkStage.PARKED, {GPU: 24}, processes=frozenset({settling.process}))
    assert World([parked, busy, away], [settling]).step().wake == (), "a program that is parked uses nothing"


@pytest.mark.parametrize(
    ("rules", "on", "room"),
    [
        (ArrivalRules(25, None), True, 25),
        (ArrivalRules(2 * TOTAL, None), True, TOTAL),
        (ArrivalRules(None, 0.25), True, TOTAL // 4),
        (ArrivalRules(0, 0.25), True, 0),
        (ArrivalRules(None, None), False, 0),
    ],
)
def test_the_room_is_so_many_bytes_or_a_part_of_the_gpu(rules: ArrivalRules, on: bool, room: int) -> None:
    assert (rules.on, rules.room(TOTAL)) == (on, room)


def test_a_newcomer_waits_for_what_moves_on_its_own_gpu_only() -> None:
    busy, moves = resident("busy", 90, idle_s=0.0), PlannedProgram("moves", ParkStage.PARKING, {GPU: 5})
    memory = {GPU: GpuMemory(5, TOTAL, 0)}
    for programs, goes_on in (
        ((busy, moves), {}),
        ((busy, replace(moves, memory={"GPU-1": 5})), {newcomer(7).process: GoesOn.NOTHING_IDLE}),
    ):
        situation = ParkSituation(programs, {GPU: DeviceRoom(5, NOW_S)}, HOST, now_s=NOW_S)
        assert plan_arrivals(RULES, TERMS, situation, [newcomer(7)], memory).go_on == goes_on


def test_what_a_young_program_needs() -> None:
    def needs(
        young: PlannedProgram, free: int = 20, memory: Mapping[str, GpuMemory] | None = None, *newcomers: Newcomer
    ) -> list[tuple[int | None, Mapping[str, int]]]:
        situation = ParkSituation((young,), {GPU: DeviceRoom(free, NOW_S)} if free else {}, HOST, now_s=NOW_S)
        read = {GPU: GpuMemory(free, TOTAL, 0)} if memory is None else memory
        return [(need.bytes, need.kept) for need in plan_arrivals(RULES, TERMS, situation, newcomers, read).needs]

    young = resident("young", 15, idle_s=0.0, is_young=True)
    assert needs(young) == [(25, {GPU: 0})], "three quarters of what is free"
    assert needs(replace(young, memory={GPU: 14})) == []
    assert needs(replace(young, memory={GPU: 28})) == [(28, {GPU: 0})], "as much again as it uses"
    settling = newcomer(7)._replace(went_on_s=NOW_S - 5)
    small = replace(young, memory={GPU: 1})
    assert needs(small, 26) == []
    assert needs(small, 26, None, settling) == [(25, {GPU: 25})], "the room of a newcomer is not its own"
    assert needs(replace(young, memory={GPU: 20, "GPU-1": 20})) == [], "where the room is needed is not known"
    assert needs(young, 0) == [], "what is free is not known"
    assert needs(young, 20, {}) == [], "the size of the GPU is not known"
    assert needs(young, 20, {GPU: GpuMemory(20, TOTAL, 0, is_mig=True)}) == []


def test_what_programs_of_one_owner_lose_to_each_other_spends_nothing() -> None:
    for moved_for, owners in (("alice", frozenset()), ("", frozenset()), ("bob", frozenset({"bob"}))):
        waits = ArrivalWaits()
        parked = PlannedProgram(
            "p0", ParkStage.PARKED, {GPU: 10}, wakes_since_s=NOW_S, owner="alice", moved_for=moved_for
        )
        for at_s in (NOW_S, NOW_S + 100.0):
            waits.see([parked], at_s)
        assert waits.budgets_spent(30.0, NOW_S + 100.0).of_newcomers == owners


# Class background: its programs make room while they work.


def night(key: str, used: int, **given: Any) -> PlannedProgram:
    return resident(key, used, idle_s=0.0, is_background=True, owner="alice", **given)


def test_programs_of_the_background_make_room_after_idle_ones_and_no_more_than_is_needed() -> None:
    world = World([night("n0", 20), night("n1", 30), resident("idle", 24), resident("busy", 20, idle_s=0.0)], [])
    for pid, parked in ((7, ["idle"]), (8, ["idle", "n1"])):
        world.newcomers[ProcessKey(pid, 1)] = newcomer(pid, NOW_S, owner="bob")
        for _ in range(5):
            world.step()
        assert [key for key, _ in world.parked] == parked
    assert set(world.went_on.values()) == {GoesOn.ROOM}


def test_none_at_work_makes_room_for_a_newcomer_of_the_background() -> None:
    world = World([night("n0", 90)], [newcomer(7)._replace(is_background=True)])
    world.step()
    assert (world.went_on, world.parked) == ({ProcessKey(7, 1): GoesOn.NOTHING_IDLE}, [])
    world = World([night("n0", 60), resident("idle", 30)], [newcomer(7)._replace(is_background=True)])
    for _ in range(5):
        world.step()
    assert [key for key, _ in world.parked] == ["idle"]
    young = World([night("n0", 60), night("n1", 28, is_young=True)], [])
    young.step()
    assert young.parked == []


def test_what_programs_of_the_background_lose_is_not_counted() -> None:
    """They make room for newcomers of any owner, whatever that has cost before."""
    parked = PlannedProgram("n0", ParkStage.PARKED, {GPU: 10}, wakes_since_s=NOW_S, owner="alice", moved_for="bob")
    waits = ArrivalWaits()
    for at_s in (NOW_S, NOW_S + 900.0):
        waits.see([replace(parked, is_background=True)], at_s)
    assert waits.budgets_spent(30.0, NOW_S + 900.0) == BudgetsSpent()
    spent = BudgetsSpent(frozenset({"bob"}), frozenset({"alice"}))
    for program, moved in ((night("n0", 90), ("n0",)), (resident("idle", 90, owner="alice"), ())):
        world = World([program], [newcomer(7, owner="bob")])
        arrivals = plan_arrivals(RULES, TERMS, world.situation, world.newcomers.values(), world.memory, spent)
        assert plan(TERMS, with_arrivals(world.situation, arrivals)).park == moved


# The budget: what others lose.

HOUR_S = 3600.0
OWNERS = ("alice", "bob", "carol")
BUDGETED = replace(RULES, budget_s=30.0)


class Churn:
    """One GPU, on which owners keep starting programs, and use their parked ones. A step is ten seconds; a move takes
    one step, so that a program that is used waits for ten seconds at least."""

    def __init__(self, holders: Mapping[str, str]) -> None:
        self.programs = {key: resident(key, 24, owner=owner) for key, owner in holders.items()}
        self.waits, self.now_s, self.pid = ArrivalWaits(), NOW_S, 100
        # Each move for a newcomer: when, of which owner, for which owner.
        self.moves: list[tuple[float, str, str]] = []
        # Each ten seconds that a program waited to come back: when, its owner, for whom it had made room.
        self.lost: list[tuple[float, str, str]] = []
        self.spent = BudgetsSpent()

    def lost_s(self, owner: str, of: int) -> float:
        """In the last hour: of 1, by an owner; of 2, for newcomers of an owner."""
        return sum(10.0 for row in self.lost if row[of] == owner != row[3 - of] and row[0] > self.now_s - HOUR_S)

    def step(self, starts: str | None, uses: str | None) -> GoesOn | None:
        for key, program in self.programs.items():
            if program.stage is ParkStage.WAKING:
                self.programs[key] = replace(
                    program, stage=ParkStage.RESIDENT, wakes_since_s=None, moved_for="", resident_since_s=self.now_s
                )
            elif program.stage is ParkStage.PARKED and program.wakes_since_s is not None:
                self.programs[key] = replace(program, stage=ParkStage.WAKING)
        if uses is not None and self.programs[uses].stage is ParkStage.PARKED:
            self.programs[uses] = replace(self.programs[uses], wakes_since_s=self.now_s)
        there = sum(one.bytes for one in self.programs.values() if one.stage is not ParkStage.PARKED)
        rooms = {GPU: DeviceRoom(TOTAL - there, self.now_s)}
        programs = tuple(replace(one, settled_s=0.0) for one in self.programs.values())
        situation = ParkSituation(programs, rooms, HOST, now_s=self.now_s)
        self.waits.see(programs, self.now_s)
        self.spent = self.waits.budgets_spent(BUDGETED.budget_s, self.now_s)
        arriving = [newcomer(self.pid, self.now_s, owner=starts)] if starts is not None else []
        memory = {GPU: GpuMemory(TOTAL - there, TOTAL, 0)}
        planned = plan_arrivals(BUDGETED, TERMS, situation, arriving, memory, self.spent)
        # What it parks is in host memory at the next step, when the short program has ended.
        for key in plan(TERMS, with_arrivals(situation, planned)).park:
            assert starts is not None
            self.moves.append((self.now_s, self.programs[key].owner, starts))
            self.programs[key] = replace(self.programs[key], stage=ParkStage.PARKED, moved_for=starts)
        for program in self.programs.values():
            if program.wakes_since_s is not None:
                self.lost.append((self.now_s, program.owner, program.moved_for))
        self.now_s += 10.0
        self.pid += 1
        return planned.go_on.get(ProcessKey(self.pid - 1, 1))


@given(st.randoms(use_true_random=False))
@costly(20)
def test_newcomers_of_an_owner_cost_others_no_more_than_the_budget(chance: random.Random) -> None:
    """However the owners start programs, and use their parked ones in between."""
    churn = Churn({"p0": "alice", "p1": "alice", "p2": "bob", "p3": "bob"})
    for _ in range(250):
        # What it lasts until the next step is seen then.
        newcomers = {one for one in OWNERS if churn.lost_s(one, 2) >= BUDGETED.budget_s + 10}
        holders = {one for one in OWNERS if churn.lost_s(one, 1) >= BUDGETED.budget_s + 10}
        moved = len(churn.moves)
        churn.step(chance.choice(OWNERS), chance.choice([None, *churn.programs]))
        for _, holder, mover in churn.moves[moved:]:
            assert holder == mover or (mover not in newcomers and holder not in holders)
        for owner in OWNERS:
            # Two programs of each owner may be parked when its budget is spent. Each comes back once more.
            assert churn.lost_s(owner, 1) <= BUDGETED.budget_s + 10 + 2 * 20


def test_an_owner_that_starts_one_program_after_another_spends_its_budget_and_has_it_again_after_an_hour() -> None:
    churn = Churn({"p0": "alice", "p1": "alice", "p2": "alice", "p3": "alice"})
    for at in range(60):
        churn.step("bob", f"p{at % 4}")
    assert churn.spent == BudgetsSpent(frozenset({"bob"}), frozenset({"alice"}))
    assert churn.step("bob", None) is GoesOn.BUDGET
    moves = len(churn.moves)
    for at in range(60):
        churn.step("bob", f"p{at % 4}")
    assert len(churn.moves) == moves
    assert churn.step("alice", None) is not GoesOn.BUDGET, "its own programs make room for it"
    assert len(churn.moves) == moves + 1
    for _ in range(370):
        churn.step(None, None)
    assert churn.spent == BudgetsSpent()
    for at in range(12):
        churn.step(None, f"p{at % 4}")
    assert churn.step("bob", None) is None
    assert len(churn.moves) == moves + 2


def test_newcomers_cost_nothing_while_the_holders_of_their_room_do_not_need_it() -> None:
    """A thousand programs of one user in three hours, next to idle programs of another that stay parked."""
    churn = Churn({"p0": "alice", "p1": "alice", "p2": "alice", "p3": "alice"})
    went_on = {churn.step("bob", None) for _ in range(1000)}
    assert went_on == {None, GoesOn.ROOM}
    assert churn.spent == BudgetsSpent()


def test_a_program_that_its_user_has_stopped_does_not_wait_at_the_cost_of_others() -> None:
    """It is then not planned to come back."""
    waits = ArrivalWaits()
    parked = PlannedProgram("p0", ParkStage.PARKED, {GPU: 24}, owner="alice", moved_for="bob", wakes_since_s=NOW_S)
    waits.see([parked], NOW_S)
    waits.see([replace(parked, wakes_since_s=None)], NOW_S + 20)
    waits.see([replace(parked, wakes_since_s=None)], NOW_S + 900)
    assert waits.budgets_spent(21.0, NOW_S + 900) == BudgetsSpent()
    assert waits.budgets_spent(20.0, NOW_S + 900) == BudgetsSpent(frozenset({"bob"}), frozenset({"alice"}))
    assert waits.budgets_spent(20.0, NOW_S + 20 + HOUR_S - 20) != BudgetsSpent()
    assert waits.budgets_spent(20.0, NOW_S + 20 + HOUR_S - 19) == BudgetsSpent(), "a second of it is older than an hour"


def test_a_young_program_gets_no_more_room_from_others_than_its_owner_has_budget() -> None:
    idle = resident("idle", 40, owner="alice")
    young = resident("young", 28, idle_s=0.0, is_young=True, owner="bob")
    world = World([idle, young, resident("busy", 20, idle_s=0.0)], [])
    for spent, parked in (
        (BudgetsSpent(), ("idle",)),
        (BudgetsSpent(of_newcomers=frozenset({"bob"})), ()),
        (BudgetsSpent(of_holders=frozenset({"alice"})), ()),
        (BudgetsSpent(frozenset({"alice"}), frozenset({"bob"})), ("idle",)),
    ):
        arrivals = plan_arrivals(RULES, TERMS, world.situation, [], world.memory, spent)
        assert plan(TERMS, with_arrivals(world.situation, arrivals)).park == parked


@pytest.mark.parametrize(
    ("text", "room"), [("25%", (None, 0.25)), ("40Gi", (40 << 30, None)), ("off", (None, None)), ("100%", (None, 1.0))]
)
def test_room_as_it_is_written(text: str, room: tuple[int | None, float | None]) -> None:
    assert parse_room(text) == room


@pytest.mark.parametrize("text", ["", "0%", "101%", "much", "-1", "%", "20"])
def test_room_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_room(text)
