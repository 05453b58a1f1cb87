"""How a phase is carried out: where phases apply, which clients they consider, when they begin and end.

The state is made by hand. What the next phase is, co-running decides; its tests are in `corun/`.
"""

import pytest

from gpucommons.model.gpu import DeviceActivity
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.corun.coruns import LOOK_S, LOOK_SLACK_S, MAX_CLIENTS, SETTLE_S, Phase, Way
from gpucommons.scheduler.policy.phasing import Phasing
from gpucommons.scheduler.policy.state import NEVER, Action, Client, DropReason, Measure, Send
from gpucommons.scheduler.protocol.wire import MessageType
from scheduler.directed import DirectedGpus

# How long a client that was dropped is waited for.
PATIENCE_S = 1.0
# Of the shortest turn, and of the period in which each program has one.
SHORTEST_S, PERIOD_S = 0.05, 4.0
OVERDUE_S = 5.0


class PhasedGpu(DirectedGpus):
    """One GPU whose activity is measured."""

    def __init__(self, **changes: object) -> None:
        super().__init__(**changes)
        self.meter()
        self.phasing = Phasing(self.terms, self.grants)

    def applies(self) -> bool:
        return self.phasing.applies(self.gpu, self.now)

    def program(self, owner: str = "", *, waits_s: float | None = None) -> Client:
        """A program that runs, or that has been paused for so long."""
        client = self.enter_program(owner)
        self.ask(client)
        if waits_s is None:
            self.begin(client)
        else:
            client.turn.wait_s = client.turn.eligible_s = self.now - waits_s
        return client

    def set_phase(self, *clients: Client, way: Way = Way.TURNS, length_s: float = 10.0) -> None:
        """A phase of these clients began now, and considered all that request the GPU."""
        phases, turns = self.gpu.phases, self.gpu.turns
        ids = tuple(client.id for client in clients)
        phases.current = Phase(ids, length_s, way, unit=ids)
        phases.begun = True
        phases.counted_s = self.now
        phases.planned_s = phases.until_s = self.now + length_s
        phases.members = frozenset(turns.running) | frozenset(self.gpu.order.waiting)
        for client in self.gpu.clients.values():
            phases.coruns.record_activity((client.id,), DeviceActivity(0.9), self.now)

    def evaluate(self) -> tuple[float, list[Action]]:
        """The next deadline from now, and what is to be done."""
        actions: list[Action] = []
        self.gpu.turns.clock.advance(self.now)
        deadline_s = self.phasing.run(self.gpu, self.now, actions)
        return deadline_s - self.now, actions

    @property
    def phase(self) -> Phase[int]:
        assert self.gpu.phases.current is not None
        return self.gpu.phases.current


def sent(actions: list[Action], message: MessageType) -> list[Client]:
    return [action.client for action in actions if isinstance(action, Send) and action.message is message]


# Where phases apply


def test_phases_apply_where_all_clients_that_request_the_gpu_fit_into_its_memory() -> None:
    gpus = PhasedGpu()
    gpus.begin(gpus.enter("", 4))
    gpus.enter("", 9)
    assert gpus.applies(), "the other one requests nothing"
    gpus.ask(gpus.enter("", 5))
    assert gpus.applies()
    gpus.ask(gpus.enter("", 0.1))
    assert not gpus.applies()


def test_the_memory_of_one_that_ran_a_moment_ago_counts() -> None:
    gpus = PhasedGpu()
    gpus.begin(gpus.enter("", 5))
    gpus.run(gpus.enter("", 5), 1.0)
    assert not gpus.applies()
    gpus.now += 1.9
    assert not gpus.applies()
    gpus.now += 0.1
    assert gpus.applies()


def test_the_memory_that_the_revoked_hold_counts() -> None:
    gpus = PhasedGpu()
    deaf = gpus.enter("", 5)
    gpus.begin(deaf)
    gpus.revoke(deaf, 5)
    gpus.begin(gpus.enter("", 4))
    gpus.now += 3.0
    assert gpus.applies()
    gpus.ask(gpus.enter("", 1))
    assert not gpus.applies()


def test_phases_do_not_apply_during_overload_and_with_clients_of_unknown_memory() -> None:
    gpus = PhasedGpu()
    gpus.begin(gpus.enter("", 4))
    gpus.transitions.overload(gpus.gpu, True)
    assert not gpus.applies()
    gpus.transitions.overload(gpus.gpu, False)
    assert gpus.applies()
    old = gpus.enter(version=1)
    assert gpus.applies()
    gpus.ask(old)
    assert not gpus.applies()
    gpus.transitions.measure_memory(old, 1, None)
    assert gpus.applies()


def test_phases_apply_to_few_clients() -> None:
    gpus = PhasedGpu()
    for number in range(MAX_CLIENTS):
        client = gpus.enter()
        (gpus.begin if number % 2 else gpus.ask)(client)
    assert gpus.applies()
    gpus.ask(gpus.enter())
    assert not gpus.applies()
    gpus = PhasedGpu()
    gpus.begin(gpus.enter())
    for _ in range(255):
        gpus.enter()
    assert gpus.applies()
    gpus.enter()
    assert not gpus.applies()


# What is measured


@pytest.mark.parametrize(("window_s", "valid_s"), [(0.9, 5.0), (3.0, 9.0), (6.0, 18.0), (6.1, None)])
def test_how_long_a_utilisation_is_valid(window_s: float, valid_s: float | None) -> None:
    gpus = PhasedGpu()
    gpus.phasing.sample_busy(gpus.gpu, 0.5, window_s, gpus.now)
    until_s = gpus.gpu.phases.busy_until_s
    assert until_s == (-NEVER if valid_s is None else gpus.now + valid_s)


@pytest.mark.parametrize("disturbed_by", ["", "a short turn", "another client", "a revoked one", "a meter"])
def test_utilisation_is_the_activity_of_a_client_that_ran_alone_meanwhile(disturbed_by: str) -> None:
    gpus = PhasedGpu()
    gpus.meter(disturbed_by == "a meter")
    client, deaf = gpus.enter(), gpus.enter()
    if disturbed_by == "a revoked one":
        gpus.begin(deaf)
        gpus.revoke(deaf, 0)
    gpus.begin(client)
    if disturbed_by == "another client":
        gpus.begin(gpus.enter())
    gpus.now += 0.8 if disturbed_by == "a short turn" else 0.9
    gpus.phasing.sample_busy(gpus.gpu, 0.5, 0.9, gpus.now)
    activity = gpus.gpu.phases.coruns.solo_activity(client.id)
    assert (None if activity is None else activity.sm) == (None if disturbed_by else 0.5)


@pytest.mark.parametrize(
    "disturbed_by", ["", "an answer to an earlier one", "a turn", "a revoked one", "programs held back", "all ended"]
)
def test_the_answer_to_a_measurement_counts_if_nothing_has_changed_meanwhile(disturbed_by: str) -> None:
    gpus = PhasedGpu()
    client, deaf = gpus.enter(), gpus.enter()
    gpus.begin(client)
    if disturbed_by == "a revoked one":
        gpus.begin(deaf)
        gpus.revoke(deaf, 0)
    gpus.set_phase(client, length_s=1.0)
    gpus.gpu.phases.planned_s, begin_s = gpus.now + 0.95, gpus.now
    asked = gpus.phasing.measure(gpus.gpu, gpus.now, gpus.now + 0.9)
    gpus.now += 0.9
    match disturbed_by:
        case "an answer to an earlier one":
            gpus.phasing.measure(gpus.gpu, gpus.now, gpus.now + 0.9)
        case "a turn":
            gpus.begin(gpus.enter())
        case "programs held back":
            gpus.phasing.hold_back(gpus.gpu, gpus.now)
        case "all ended":
            gpus.end(client)
            gpus.gpu.turns.changed_s = begin_s
    ran = gpus.phasing.record_activity(gpus.gpu, asked.number, DeviceActivity(0.5), begin_s, gpus.now)
    assert ran == (() if disturbed_by else (client.id,))
    assert gpus.gpu.phases.until_s == pytest.approx(begin_s + (1.0 if disturbed_by else 0.95))


def test_a_phase_whose_measurement_came_late_ends_now() -> None:
    gpus = PhasedGpu()
    client = gpus.enter()
    gpus.begin(client)
    gpus.set_phase(client, length_s=1.0)
    gpus.gpu.phases.planned_s = gpus.now + 0.9
    asked = gpus.phasing.measure(gpus.gpu, gpus.now, gpus.now + 0.8)
    gpus.phasing.record_activity(gpus.gpu, asked.number, DeviceActivity(0.5), gpus.now, gpus.now + 0.95)
    assert gpus.gpu.phases.until_s == gpus.now + 0.95


# When a phase ends


def test_a_phase_is_chosen_again_when_what_it_is_chosen_by_has_changed() -> None:
    gpus = PhasedGpu()
    one, other = gpus.program("ann"), gpus.program("bob")
    gpus.set_phase(one, other, way=Way.TOGETHER)
    assert gpus.evaluate()[0] == 10.0
    before = gpus.phase
    gpus.phasing.choose_again(gpus.gpu, gpus.now)
    gpus.evaluate()
    assert gpus.phase is not before
    assert gpus.gpu.phases.before is before


def test_a_phase_ends_at_its_time_and_when_none_of_its_clients_requests_the_gpu() -> None:
    gpus = PhasedGpu()
    one, other = gpus.program("ann"), gpus.program("bob", waits_s=0.1)
    gpus.set_phase(one)
    before = gpus.phase
    gpus.now += 9.9
    gpus.evaluate()
    assert gpus.phase is before
    gpus.now += 0.1
    gpus.evaluate()
    assert gpus.phase is not before
    gpus.set_phase(one)
    gpus.end(one)
    gpus.evaluate()
    assert gpus.phase.clients == (other.id,)
    assert gpus.phase.way is Way.ALONE


def test_a_turn_of_several_goes_on_while_one_of_them_requests_the_gpu() -> None:
    gpus = PhasedGpu()
    one, other = gpus.program("ann"), gpus.program("ann")
    gpus.program("bob", waits_s=0.1)
    gpus.set_phase(one, other)
    before = gpus.phase
    gpus.end(one)
    gpus.evaluate()
    assert gpus.phase is before


@pytest.mark.parametrize("way", [Way.ALONE, Way.TOGETHER])
def test_a_newcomer_runs_already_where_no_client_is_stopped(way: Way) -> None:
    gpus = PhasedGpu()
    one = gpus.program("ann")
    gpus.set_phase(one, way=way)
    newcomer = gpus.program("bob")
    _, actions = gpus.evaluate()
    assert newcomer.id in gpus.phase.clients
    assert not sent(actions, MessageType.DROP_LOCK)


def test_a_newcomer_does_not_wait_for_the_end_of_a_long_turn() -> None:
    gpus = PhasedGpu(turn_quantum_s=0.25)
    one, other = gpus.program("ann"), gpus.program("bob", waits_s=0.1)
    gpus.set_phase(one)
    gpus.now += 0.1
    before, newcomer = gpus.phase, gpus.program("cid", waits_s=0.0)
    assert gpus.evaluate()[0] == pytest.approx(0.15), "a quantum after it began"
    assert gpus.phase is before
    gpus.now += 5.0
    gpus.set_phase(one)
    gpus.gpu.phases.members = frozenset((one.id, other.id))
    gpus.gpu.phases.counted_s -= 5.0
    before = gpus.phase
    gpus.evaluate()
    assert gpus.phase is not before, "the quantum has passed already"
    assert newcomer.id in gpus.gpu.phases.members


def test_without_requests_no_phase_is_left() -> None:
    gpus = PhasedGpu()
    one = gpus.program("ann")
    gpus.set_phase(one)
    gpus.end(one)
    assert gpus.evaluate() == (NEVER, [])
    assert (gpus.gpu.phases.current, gpus.gpu.phases.before, gpus.gpu.phases.until_s) == (None, None, NEVER)


# Clients that do not stop, or must not be stopped


def test_a_client_that_was_dropped_is_waited_for_but_not_for_long() -> None:
    gpus = PhasedGpu()
    slow, other = gpus.program("ann"), gpus.program("bob", waits_s=0.1)
    gpus.set_phase(other)
    deadline_s, actions = gpus.evaluate()
    assert sent(actions, MessageType.DROP_LOCK) == [slow]
    assert deadline_s == PATIENCE_S
    gpus.now += 0.9
    deadline_s, actions = gpus.evaluate()
    assert actions == [], "it is dropped once"
    assert deadline_s == pytest.approx(PATIENCE_S - 0.9)
    gpus.now += 0.1
    deadline_s, actions = gpus.evaluate()
    assert sent(actions, MessageType.LOCK_OK) == [other]
    assert deadline_s == pytest.approx(9.0)


def test_of_several_the_one_that_was_dropped_first_is_no_longer_waited_for_first() -> None:
    gpus = PhasedGpu()
    for late_s in (0.0, 0.4):
        gpus.now += late_s
        gpus.drop(gpus.program("ann"))
    gpus.set_phase(gpus.program("bob", waits_s=0.1))
    assert gpus.evaluate()[0] == pytest.approx(PATIENCE_S - 0.4)


@pytest.mark.parametrize("reason", [DropReason.QUOTA, DropReason.MEMORY])
def test_a_client_that_was_dropped_for_another_reason_is_not_waited_for(reason: DropReason) -> None:
    gpus = PhasedGpu()
    slow, other = gpus.program("ann"), gpus.program("bob", waits_s=0.1)
    gpus.grants.drop(gpus.gpu, slow, reason, gpus.now, [])
    gpus.set_phase(other)
    deadline_s, actions = gpus.evaluate()
    assert sent(actions, MessageType.LOCK_OK) == [other]
    assert deadline_s == 10.0


def test_a_phase_begins_when_the_last_of_its_own_clients_has_stopped_and_runs_again() -> None:
    gpus = PhasedGpu()
    slow, other = gpus.program("ann"), gpus.program("bob")
    gpus.set_phase(slow, other, way=Way.TOGETHER)
    gpus.gpu.phases.begun = False
    gpus.drop(slow)
    gpus.evaluate()
    assert not gpus.gpu.phases.begun
    gpus.end(slow)
    gpus.ask(slow)
    _, actions = gpus.evaluate()
    assert sent(actions, MessageType.LOCK_OK) == [slow]
    assert gpus.gpu.phases.begun
    assert len(actions) == 1, "nothing is to be measured"


def test_the_time_until_others_have_stopped_is_that_of_the_phase_before() -> None:
    gpus = PhasedGpu()
    slow, other = gpus.program("ann"), gpus.program("bob", waits_s=0.1)
    gpus.set_phase(slow)
    before = gpus.phase
    gpus.now += 10.0
    gpus.evaluate()
    assert gpus.gpu.phases.before is before
    gpus.set_phase(other)
    gpus.gpu.phases.begun = False
    gpus.now += 0.3
    gpus.phasing.choose_again(gpus.gpu, gpus.now)
    gpus.evaluate()
    assert gpus.gpu.phases.before is before, "the other has not begun to run"


def test_a_program_that_could_not_be_paused_takes_no_part_until_the_next_attempt() -> None:
    gpus = PhasedGpu()
    stubborn, other = gpus.program("ann"), gpus.program("bob", waits_s=0.1)
    gpus.transitions.keep(stubborn, gpus.now + 3.0)
    gpus.set_phase(other)
    deadline_s, actions = gpus.evaluate()
    assert [sent(actions, message) for message in (MessageType.DROP_LOCK, MessageType.LOCK_OK)] == [[], [other]]
    assert deadline_s == 3.0
    gpus.now += 3.0
    _, actions = gpus.evaluate()
    assert sent(actions, MessageType.DROP_LOCK) == [stubborn]


def test_of_several_that_could_not_be_paused_the_first_next_attempt_is_awaited() -> None:
    gpus = PhasedGpu()
    for number, until_s in enumerate((3.0, 2.0, 4.0)):
        gpus.transitions.keep(gpus.program(f"ann{number}"), gpus.now + until_s)
    gpus.set_phase(gpus.program("bob", waits_s=0.1))
    assert gpus.evaluate()[0] == 2.0


# What a phase is chosen by


def chosen(gpus: PhasedGpu) -> Phase[int]:
    gpus.evaluate()
    return gpus.phase


@pytest.mark.parametrize(
    ("clients", "programs", "operator_s", "expected_s"),
    [
        (0, 2, None, 0.25),
        (0, 40, None, PERIOD_S / 40),
        (0, 2, 60.0, PERIOD_S / 2),
        (3, 1, 60.0, PERIOD_S / 4),
        (2, 0, 60.0, 60.0),
        (40, 0, None, 0.25),
    ],
)
def test_turns_are_as_short_as_plain_programs_need_them(
    clients: int, programs: int, operator_s: float | None, expected_s: float
) -> None:
    gpus = PhasedGpu(turn_quantum_s=0.25)
    gpus.terms.set_quantum(operator_s)
    for _ in range(clients):
        gpus.begin(gpus.enter())
    for _ in range(programs):
        gpus.program()
    chosen(gpus)
    assert gpus.gpu.phases.coruns.quantum_s == pytest.approx(expected_s)


@pytest.mark.parametrize(("fair_between", "expected_s"), [("owners", 4.0 / 3 / 2), ("clients", 4.0 / 4)])
def test_the_programs_of_one_owner_share_a_turn(fair_between: str, expected_s: float) -> None:
    gpus = PhasedGpu(fair_between=fair_between, turn_quantum_s=60.0)
    for owner in ("ann", "ann", "ann", "bob"):
        gpus.program(owner)
    chosen(gpus)
    assert gpus.gpu.phases.coruns.quantum_s == pytest.approx(expected_s)


def test_no_turn_is_shorter_than_a_twentieth_of_a_second() -> None:
    gpus = PhasedGpu(max_pause_s=0.2)
    for _ in range(4):
        gpus.program()
    chosen(gpus)
    assert gpus.gpu.phases.coruns.quantum_s == SHORTEST_S


def test_background_programs_have_their_part_of_the_period_of_the_settings() -> None:
    gpus = PhasedGpu(background_percent=5.0, max_pause_s=20.0)
    gpus.program()
    chosen(gpus)
    coruns = gpus.gpu.phases.coruns
    assert (coruns.background_ratio, coruns.background_period_s) == (0.05, 8.0)


def test_classes_count_for_the_choice() -> None:
    gpus = PhasedGpu()
    batch, background = gpus.program("ann"), gpus.program("bob")
    background.sharing_class = SharingClass.BACKGROUND
    gpus.gpu.phases.coruns.phase({batch.id: "ann", background.id: "bob"}, gpus.now)
    gpus.now += 0.1
    assert background.id not in chosen(gpus).clients or gpus.phase.length_s < 0.1


def test_shares_of_a_batch_system_are_summed_by_owner() -> None:
    gpus = PhasedGpu()
    for owner, share in (("ann", 0.25), ("ann", 0.5), ("bob", 0.25), ("cid", None)):
        gpus.program(owner).gpu_share = share
    chosen(gpus)
    assert gpus.gpu.phases.coruns.weights == {"ann": 0.75, "bob": 0.25}


# Programs that were paused for long


@pytest.mark.parametrize(("waits_s", "runs_next"), [(OVERDUE_S - 0.1, False), (OVERDUE_S, True)])
def test_a_program_that_was_paused_for_half_of_the_longest_pause_runs_next(waits_s: float, runs_next: bool) -> None:
    gpus = PhasedGpu(turn_quantum_s=0.25)
    one, long = gpus.program("ann"), gpus.program("bob", waits_s=waits_s)
    gpus.program("ann")
    # The owners take turns, and this one has had many.
    gpus.set_phase(long)
    gpus.gpu.phases.coruns.phase(gpus.phasing.owners(gpus.gpu.clients), gpus.now)
    gpus.gpu.phases.coruns.record_phase_end(gpus.phase, 50.0)
    gpus.phasing.leave(gpus.gpu, gpus.now)
    phase = chosen(gpus)
    assert (long.id in phase.clients) is runs_next
    assert (one.id in phase.clients) is not runs_next
    assert phase.way is Way.TURNS
    if runs_next:
        assert (phase.length_s, phase.unit) == (0.25, (long.id,))


@pytest.mark.parametrize("first", [False, True])
def test_it_runs_before_any_program_is_measured(first: bool) -> None:
    """It may be the one that would be measured, with others behind it."""
    gpus = PhasedGpu()
    programs = [gpus.program("ann", waits_s=OVERDUE_S if first else None)]
    programs.append(gpus.program("bob", waits_s=None if first else OVERDUE_S))
    long = programs[0 if first else 1]
    # The first that was seen here is measured first.
    gpus.gpu.phases.coruns.phase(gpus.phasing.owners(gpus.gpu.clients), gpus.now - 100.0)
    assert chosen(gpus).clients == (long.id,)
    assert gpus.phase.way is Way.TURNS


def test_a_program_of_class_latency_runs_along() -> None:
    gpus = PhasedGpu()
    latency, one, long = gpus.program("ann"), gpus.program("cid"), gpus.program("bob", waits_s=OVERDUE_S)
    latency.sharing_class = SharingClass.LATENCY
    coruns, classes = gpus.gpu.phases.coruns, {latency.id: SharingClass.LATENCY}
    coruns.phase(gpus.phasing.owners(gpus.gpu.clients), gpus.now - 100.0, classes)
    assert coruns.runs_along(latency.id)
    assert set(chosen(gpus).clients) == {long.id, latency.id}
    assert gpus.phase.clients[0] == long.id
    assert one.id not in gpus.phase.clients


def test_a_client_that_waits_for_long_is_none_of_them() -> None:
    gpus = PhasedGpu()
    gpus.program("ann")
    client = gpus.enter("bob")
    gpus.ask(client)
    client.turn.wait_s -= 2 * OVERDUE_S
    assert chosen(gpus).unit != (client.id,)


@pytest.mark.parametrize(
    ("fair_between", "next_one", "length_s"), [("owners", 3, 0.125), ("clients", 1, 0.25)], ids=["owners", "clients"]
)
def test_of_several_that_of_the_owner_whose_programs_ran_least_recently_is_next(
    fair_between: str, next_one: int, length_s: float
) -> None:
    gpus = PhasedGpu(fair_between=fair_between, turn_quantum_s=0.25)
    programs = [gpus.program("ann")]
    programs += [gpus.program(owner, waits_s=s) for owner, s in (("ann", 8.0), ("bob", 5.5), ("bob", 7.0))]
    programs.append(gpus.program("cid", waits_s=5.2))
    gpus.gpu.phases.coruns.phase(gpus.phasing.owners(gpus.gpu.clients), gpus.now - 100.0)
    phase = chosen(gpus)
    assert phase.clients[0] == programs[next_one].id
    assert phase.length_s == pytest.approx(length_s), "the two of bob share a turn"


# How a phase begins


def test_a_lone_client_is_measured_for_a_moment() -> None:
    gpus = PhasedGpu()
    gpus.program()
    _, actions = gpus.evaluate()
    assert gpus.phase.way is Way.ALONE
    (asked,) = actions
    assert isinstance(asked, Measure)
    assert asked.begin_s == gpus.now + SETTLE_S
    assert gpus.now + 0.9 * LOOK_S < asked.end_s < gpus.now + LOOK_S
    phases = gpus.gpu.phases
    assert phases.planned_s == gpus.now + gpus.phase.length_s
    assert phases.planned_s < phases.until_s < phases.planned_s + 0.1, "the answer may take a moment"


def test_without_a_meter_nothing_is_measured() -> None:
    gpus = PhasedGpu()
    gpus.meter(available=False)
    gpus.program()
    assert gpus.evaluate()[1] == []
    assert gpus.gpu.phases.until_s == gpus.gpu.phases.planned_s


def test_a_phase_is_not_measured_where_the_activity_cannot_be_measured_any_more_when_it_begins() -> None:
    gpus = PhasedGpu()
    one, other = gpus.program("ann"), gpus.program("bob")
    gpus.gpu.phases.coruns.phase({one.id: "ann", other.id: "bob"}, gpus.now - 100.0)
    (stops,) = sent(gpus.evaluate()[1], MessageType.DROP_LOCK)
    assert gpus.phase.measure
    gpus.phasing.meter(gpus.gpu, available=False)
    gpus.now += 0.1
    gpus.end(stops)
    _, actions = gpus.evaluate()
    assert gpus.gpu.phases.begun
    assert actions == []
    assert gpus.gpu.phases.until_s == gpus.gpu.phases.planned_s


def test_a_look_ends_in_time_although_those_that_it_pauses_stop_slowly() -> None:
    gpus = PhasedGpu()
    one, other = gpus.program("ann"), gpus.program("bob")
    gpus.gpu.phases.coruns.phase({one.id: "ann", other.id: "bob"}, gpus.now - 100.0)
    _, actions = gpus.evaluate()
    assert gpus.phase.way is Way.MEASURING
    (stops,) = sent(actions, MessageType.DROP_LOCK)
    assert gpus.gpu.phases.until_s == gpus.now + LOOK_S + LOOK_SLACK_S
    begun_s = gpus.now
    gpus.now += 0.2
    gpus.end(stops)
    gpus.ask(stops)
    _, actions = gpus.evaluate()
    (asked,) = actions
    assert isinstance(asked, Measure)
    assert gpus.gpu.phases.until_s == begun_s + LOOK_S + LOOK_SLACK_S
    assert asked.begin_s == gpus.now + SETTLE_S
    assert begun_s + 0.39 < asked.end_s < begun_s + 0.4
