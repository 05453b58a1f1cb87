"""The escalation of idle holders: each step once in a period, no action without a message that arrived."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.config.accounts import IdleSettings
from gpucommons.idle.escalation import EscalationState, IdleHolder, StepsTaken, find_due_steps, mark_reached
from gpucommons.model.idle import IdleStep
from unhurried import unhurried

NOTIFY, REMIND, ACT = IdleStep.NOTIFY, IdleStep.REMIND, IdleStep.ACT


def _terms(after_s: float, remind_after_s: float, act_after_s: float) -> IdleSettings:
    return IdleSettings(after_s=after_s, remind_after_s=remind_after_s, act_after_s=act_after_s)


TERMS = _terms(100, 50, 120)


class Escalated:
    """One holder; what is sent arrives at once unless the test says otherwise."""

    def __init__(self, terms: IdleSettings = TERMS, *, arrives: bool = True) -> None:
        self.terms, self.arrives = terms, arrives
        self.escalation: EscalationState = {}

    def at(self, idle_s: float | None, *, can_act: bool = True, is_exempt: bool = False) -> list[IdleStep]:
        self.escalation, due = find_due_steps(
            [IdleHolder("a", idle_s, can_act, is_exempt)], self.escalation, self.terms
        )
        if due and self.arrives and idle_s is not None:
            self.escalation = mark_reached(self.escalation, "a", self.escalation["a"].notified_s, idle_s)
        return [step for _, step in due]


def test_the_steps_in_their_order() -> None:
    holder = Escalated()
    taken = {idle_s: steps for idle_s in range(0, 1000, 10) if (steps := holder.at(float(idle_s)))}
    assert taken == {100: [NOTIFY], 150: [REMIND], 220: [ACT]}


def test_work_begins_a_new_period() -> None:
    holder = Escalated()
    assert holder.at(100) == [NOTIFY]
    assert holder.at(None) == []
    assert holder.at(99) == []
    assert holder.at(100) == [NOTIFY]


def test_a_period_that_began_between_two_looks_is_seen() -> None:
    holder = Escalated()
    assert holder.at(160) == [NOTIFY]
    assert holder.at(120) == [NOTIFY], "shorter than at the message: it is another period"


def test_a_holder_that_was_idle_for_long_is_still_notified_first() -> None:
    holder = Escalated()
    assert holder.at(5000) == [NOTIFY]
    assert holder.at(5049) == []
    assert holder.at(5050) == [REMIND]
    assert holder.at(5119) == []
    assert holder.at(5120) == [ACT]


def test_the_reminder_comes_before_the_action_also_if_both_are_late() -> None:
    holder = Escalated()
    assert [holder.at(idle_s) for idle_s in (100, 9000, 9001, 9002)] == [[NOTIFY], [REMIND], [ACT], []]


def test_no_action_without_a_message_that_arrived() -> None:
    holder = Escalated(arrives=False)
    taken = [holder.at(float(idle_s)) for idle_s in range(0, 5000, 10)]
    assert [steps for steps in taken if steps] == [[NOTIFY], [REMIND]]
    holder.escalation = mark_reached(holder.escalation, "a", 100, 5000)
    assert holder.at(5119) == []
    assert holder.at(5120) == [ACT], "the time counts from the message that arrived"


def test_a_message_of_an_earlier_period_allows_no_action() -> None:
    holder = Escalated(arrives=False)
    holder.at(100)
    holder.at(None)
    holder.at(130)
    holder.escalation = mark_reached(holder.escalation, "a", 100, 5000)
    assert holder.escalation["a"] == StepsTaken(130)


def test_exempt_holders_and_terms_without_a_step() -> None:
    assert [Escalated().at(5000, is_exempt=True), Escalated(_terms(0, 50, 120)).at(5000)] == [[], []]
    holder = Escalated(_terms(100, 0, 99_999))
    assert [holder.at(float(idle_s)) for idle_s in (100, 1000, 9000)] == [[NOTIFY], [], []]
    holder = Escalated()
    assert [holder.at(float(idle_s), can_act=False) for idle_s in (100, 150, 9000)] == [[NOTIFY], [REMIND], []]


def test_a_missing_holder_is_forgotten_unless_not_every_holder_is_known() -> None:
    escalation = {"a": StepsTaken(100, 100, True)}
    assert find_due_steps([], escalation, TERMS) == ({}, [])
    assert find_due_steps([], escalation, TERMS, {"a"}) == (escalation, [])
    assert find_due_steps([], escalation, TERMS, {"b"}) == ({}, [])
    assert find_due_steps([IdleHolder("a", None)], escalation, TERMS, {"a"}) == ({}, []), "it is there, and works"


moves = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from(["idle", "idle", "idle", "work", "leave", "restart", "arrive", "unknown"]),
        st.floats(0, 200),
    ),
    max_size=120,
)


@unhurried(300)
@given(moves, st.sampled_from([TERMS, _terms(10, 0, 30), _terms(10, 300, 1), _terms(50, 20, 99_999)]))
def test_whatever_happens(steps: list[tuple[str, str, float]], terms: IdleSettings) -> None:
    """Each step at most once in an idle period, in order, and the action only after a message arrived.

    A restart keeps what the record holds: the idle time and the escalation.
    """
    idle: dict[str, float | None] = {"a": 0.0, "b": 0.0}
    present = {"a", "b"}
    escalation: EscalationState = {}
    taken: dict[str, Counter[IdleStep]] = {"a": Counter(), "b": Counter()}
    arrived = {"a": False, "b": False}

    def new_period(key: str) -> None:
        taken[key], arrived[key] = Counter(), False

    for key, what, seconds in steps:
        current = idle[key]
        if what == "idle":
            idle[key] = seconds if current is None else current + seconds
            present.add(key)
        elif what == "work":
            idle[key] = None
            present.add(key)
            new_period(key)
        elif what == "leave":
            idle[key] = None
            present.discard(key)
            new_period(key)
        elif what == "restart":
            escalation = {name: StepsTaken(*done) for name, done in escalation.items()}
        elif what == "arrive" and key in escalation:
            escalation = mark_reached(escalation, key, escalation[key].notified_s, current or 0.0)
            arrived[key] = True
        seen = [IdleHolder(name, idle[name], can_act=True) for name in sorted(present)]
        if what == "unknown":
            seen = [each for each in seen if each.key != key]
        escalation, due = find_due_steps(seen, escalation, terms, {key} if what == "unknown" else frozenset())
        for holder, step in due:
            taken[holder.key][step] += 1
            counted = taken[holder.key]
            assert counted[step] == 1, "once in a period"
            assert holder.idle_s is not None
            assert holder.idle_s >= terms.after_s
            if step is not NOTIFY:
                assert counted[NOTIFY] == 1
            if step is ACT:
                assert arrived[holder.key]
                assert terms.act_after_s
            if step is REMIND:
                assert terms.remind_after_s
                assert not counted[ACT]
