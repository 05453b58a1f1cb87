"""Which programs compete for the GPU: single steps, arbitrary histories, and the 2 s within which one is back."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpucommons.model.process_identity import ProcessKey
from gpucommons.scheduler.programs.jobs import DeviceUse, GpuUser, Program, ProgramActivity
from gpucommons.scheduler.programs.joining import (
    Observation,
    ProgramRoster,
    ProgramStanding,
    ProgramTurn,
    Standing,
    judge_reading,
    judge_turn,
)

ACTIVE, IDLE, UNKNOWN = ProgramActivity.ACTIVE, ProgramActivity.IDLE, ProgramActivity.UNKNOWN
KEYS = frozenset({ProcessKey(5, 100), ProcessKey(6, 100)})
JOINED = ProgramStanding(KEYS, ("GPU-0",), Standing.JOINED, since_s=10.0, used_s=10.0)
RESTING = replace(JOINED, standing=Standing.RESTING, since_s=20.0)


def seen(activity: ProgramActivity, as_of_s: float, keys: frozenset[ProcessKey] = KEYS) -> Observation:
    return Observation(keys, ("GPU-0",), activity, as_of_s)


def program(
    activity: ProgramActivity, *pids: int, start_ticks: int = 100, key: str = "job", device: str = "GPU-0"
) -> Program:
    use = DeviceUse(device, "compute", 0, activity)
    return Program(key, tuple(GpuUser(pid, ProcessKey(pid, start_ticks), key, (use,)) for pid in pids))


@pytest.mark.parametrize(("activity", "joins"), [(ACTIVE, True), (UNKNOWN, True), (IDLE, False)])
def test_a_new_program_joins_unless_it_is_idle(activity: ProgramActivity, joins: bool) -> None:
    new = judge_reading(None, seen(activity, 1.0), 1.1)
    assert (new.joined, new.since_s, new.used_s) == (joins, 1.1, 1.0 if activity is ACTIVE else None)


def test_a_joined_program_does_not_rest_because_a_reading_shows_it_idle() -> None:
    standing = JOINED
    for second in range(30, 60):
        standing = judge_reading(standing, seen(IDLE, float(second)), second + 0.1)
    assert standing.joined, "it may be paused"


def test_a_joined_program_that_is_not_paused_rests_after_it_was_idle_for_a_while() -> None:
    def after(seconds: int, ran: bool = True, used_at: int | None = None) -> bool:
        standing = JOINED
        for second in range(30, 30 + seconds):
            activity = ACTIVE if second == used_at else IDLE
            standing = judge_reading(standing, seen(activity, float(second))._replace(ran=ran), second + 0.1)
        return standing.joined

    assert after(8)
    assert not after(9)
    assert after(9, ran=False)
    assert after(12, used_at=35)


@pytest.mark.parametrize(
    ("turn", "rests"),
    [
        (ProgramTurn(15.0, 15.25, IDLE, others_waited=True), True),
        (ProgramTurn(15.0, 15.25, IDLE, others_waited=False), False),
        (ProgramTurn(15.0, 15.25, ACTIVE, others_waited=True), False),
        (ProgramTurn(15.0, 15.25, UNKNOWN, others_waited=True), False),
    ],
)
def test_a_program_rests_after_a_whole_idle_turn_while_others_waited(turn: ProgramTurn, rests: bool) -> None:
    after = judge_turn(JOINED, turn)
    assert after.joined is not rests
    assert after.since_s == (turn.end_s if rests else JOINED.since_s)


def test_a_turn_in_which_it_joined_was_not_a_whole_turn() -> None:
    member = replace(JOINED, used_s=None)
    assert judge_turn(member, ProgramTurn(9.0, 15.25, IDLE, others_waited=True)).joined
    assert not judge_turn(member, ProgramTurn(10.0, 15.25, IDLE, others_waited=True)).joined


def test_a_reading_that_shows_use_during_the_turn_disproves_that_it_was_idle() -> None:
    active = judge_reading(JOINED, seen(ACTIVE, 15.1), 15.2)
    assert judge_turn(active, ProgramTurn(15.0, 15.25, IDLE, others_waited=True)).joined
    assert not judge_turn(active, ProgramTurn(16.0, 16.25, IDLE, others_waited=True)).joined


@pytest.mark.parametrize(
    ("activity", "as_of_s", "joins"),
    [
        (ACTIVE, 20.1, True),
        # From before it began to rest.
        (ACTIVE, 19.9, False),
        (IDLE, 25.0, False),
        (UNKNOWN, 20.9, False),
        (UNKNOWN, 21.0, True),
    ],
)
def test_a_resting_program_joins_when_it_uses_the_gpu_again(
    activity: ProgramActivity, as_of_s: float, joins: bool
) -> None:
    after = judge_reading(RESTING, seen(activity, as_of_s), 22.0)
    assert after.joined is joins
    assert after.since_s == (22.0 if joins else 20.0)


def test_a_program_without_a_process_in_common_is_a_new_one() -> None:
    reused = frozenset({ProcessKey(5, 200)})
    assert not judge_reading(JOINED, seen(IDLE, 30.0, reused), 30.1).joined
    remaining = frozenset({ProcessKey(6, 100), ProcessKey(9, 300)})
    after = judge_reading(JOINED, seen(IDLE, 30.0, remaining), 30.1)
    assert (after.joined, after.since_s, after.processes) == (True, 10.0, remaining)


def test_a_program_that_disappears_leaves() -> None:
    roster = ProgramRoster()
    roster.see([program(ACTIVE, 5), program(ACTIVE, 7, key="other")], 1.0, 1.0)
    assert set(roster.see([program(ACTIVE, 7, key="other")], 2.0, 2.0)) == {"other"}
    assert roster.end_turn("job", ProgramTurn(1.0, 2.0, IDLE, others_waited=True)) is None
    assert not roster.see([program(IDLE, 5)], 3.0, 3.0)["job"].joined, "it has to use the GPU to join again"


def test_a_program_on_a_gpu_that_could_not_be_listed_stays() -> None:
    roster = ProgramRoster()
    roster.see([program(ACTIVE, 5), program(ACTIVE, 7, key="other", device="GPU-1")], 1.0, 1.0)
    assert set(roster.see([], 2.0, 2.0, unlisted={"GPU-0"})) == {"job"}
    assert roster.members["job"].joined
    assert not roster.see([], 3.0, 3.0)


def test_where_turns_are_taken_a_program_joins_as_soon_as_it_is_seen() -> None:
    """It may have used the GPU: the driver's first sample of a process comes later."""
    roster = ProgramRoster()
    assert not roster.see([program(IDLE, 5)], 1.0, 1.0, contested={"GPU-1"})["job"].joined
    seen = roster.see([program(IDLE, 5), program(IDLE, 7, key="new")], 2.0, 2.0, contested={"GPU-0"})
    assert seen["new"].joined
    assert not seen["job"].joined, "it was seen before, and has not used the GPU"


@given(
    rest_s=st.floats(0, 10),
    use_after_s=st.floats(0, 5),
    phase_s=st.floats(0, 1),
    measured=st.booleans(),
)
def test_a_resting_program_is_back_within_2_s_of_using_the_gpu(
    rest_s: float, use_after_s: float, phase_s: float, measured: bool
) -> None:
    """Readings each second, in any phase, whether or not the driver samples processes."""
    member = replace(RESTING, since_s=rest_s)
    use_s = rest_s + use_after_s
    for number in range(30):
        now_s = phase_s + number
        activity = (ACTIVE if now_s > use_s else IDLE) if measured else UNKNOWN
        member = judge_reading(member, seen(activity, now_s), now_s)
        if member.joined:
            break
    assert member.joined
    assert member.since_s <= use_s + 2.0
    assert not measured or member.since_s > use_s, "it stays unpaused while it is known to be idle"


ACTIVITIES = st.sampled_from(ProgramActivity)
NAMES = st.sampled_from(["a", "b", "c"])


class JoiningMachine(RuleBasedStateMachine):
    """Any readings and turns. The model remembers, for each program, only what the rules speak of."""

    def __init__(self) -> None:
        super().__init__()
        self.roster = ProgramRoster()
        self.now_s = 100.0
        self.alive: dict[str, tuple[int, ProgramActivity]] = {}

    def see(self) -> None:
        before = dict(self.roster.members)
        programs = [program(activity, 5, start_ticks=ticks, key=name) for name, (ticks, activity) in self.alive.items()]
        after = self.roster.see(programs, self.now_s, self.now_s)
        assert set(after) == set(self.alive)
        for one in programs:
            old, new = before.get(one.key), after[one.key]
            assert new.processes == one.process_keys
            assert new.joined or one.activity is not ACTIVE, "a program that uses the GPU has joined"
            if old is not None and old.joined and old.processes & new.processes:
                assert new.joined, "no reading makes a program rest"
            if old is not None and not old.processes & new.processes:
                assert new.since_s == self.now_s, "a reused pid is a new program"

    @rule(name=NAMES, ticks=st.integers(1, 3), activity=ACTIVITIES)
    def start(self, name: str, ticks: int, activity: ProgramActivity) -> None:
        self.alive[name] = (ticks, activity)

    @rule(name=NAMES)
    def end(self, name: str) -> None:
        self.alive.pop(name, None)

    @rule(passed_s=st.floats(0.1, 3.0))
    def read(self, passed_s: float) -> None:
        self.now_s += passed_s
        self.see()

    @precondition(lambda self: self.roster.members)
    @rule(data=st.data(), length_s=st.floats(0.05, 2.0), activity=ACTIVITIES, others=st.booleans())
    def turn(self, data: st.DataObject, length_s: float, activity: ProgramActivity, others: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.roster.members)))
        before = self.roster.members[name]
        begin_s, self.now_s = self.now_s, self.now_s + length_s
        after = self.roster.end_turn(name, ProgramTurn(begin_s, self.now_s, activity, others))
        assert after is not None
        rests = before.joined and activity is IDLE and others
        assert after.joined is (before.joined and not rests)

    @invariant()
    def times_are_past(self) -> None:
        for member in self.roster.members.values():
            assert member.since_s <= self.now_s
            assert member.used_s is None or member.used_s <= self.now_s


TestJoining = JoiningMachine.TestCase
