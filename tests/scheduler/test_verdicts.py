"""Verdicts on one GPU: which clients may run and why not, which turns are in the way and how long they last, and which
client may pass the first that waits.

The state is made by hand; no turn begins or ends by a rule.
"""

import pytest

from gpucommons.model.sharing import WaitReason
from gpucommons.model.words import SharingClass
from gpucommons.scheduler.corun.coruns import Phase, PhaseCause, Way
from gpucommons.scheduler.policy.attained import owe_turn, promise_room
from gpucommons.scheduler.policy.evaluation import (
    REMEMBERED_S,
    QueueScan,
    Revocations,
    biggest_waiter,
    in_the_way,
    quantum_s,
    room_due_s,
    scan_queue,
    wait_reason,
)
from gpucommons.scheduler.policy.state import DROP_RESEND_S, GIB, NEVER, Client, Mode
from scheduler.directed import DirectedGpus

BATCH, BACKGROUND = SharingClass.BATCH, SharingClass.BACKGROUND
TURN, MEMORY, DEMAND, SOLO = WaitReason.TURN, WaitReason.MEMORY, WaitReason.DEMAND, WaitReason.SOLO
# The quantum of clients with little memory; 5 s for each GiB of others.
SHORT_S = 10.0


def concurrent(**changes: object) -> DirectedGpus:
    return DirectedGpus(mode=Mode.CONCURRENT, **changes)


def measured() -> DirectedGpus:
    """The GPU's activity is measured, and so is that of clients with `sm`."""
    gpus = DirectedGpus()
    gpus.meter()
    return gpus


def running(gpus: DirectedGpus, owner: str, gib: float, sm: float | None = None, lasts_s: float = 0.0) -> Client:
    """A client with a turn, which has lasted for so long."""
    client = gpus.enter(owner, gib, sm=sm)
    gpus.begin(client)
    client.turn.begun_s -= lasts_s
    return client


def waiting(gpus: DirectedGpus, owner: str, gib: float, sm: float | None = None) -> Client:
    client = gpus.enter(owner, gib, sm=sm)
    gpus.ask(client)
    return client


# Revocations


def test_revocations_are_counted_by_process_and_forgotten_after_a_while() -> None:
    revocations = Revocations()
    assert [revocations.add("ann", now) for now in (0.0, 1.0)] == [1, 2]
    assert revocations.add("bob", 2.0) == 1
    assert [revocations.count(key, 3.0) for key in ("ann", "bob", "cid")] == [2, 1, 0]
    assert revocations.count("ann", REMEMBERED_S + 0.5) == 1
    assert revocations.add("ann", REMEMBERED_S + 0.5) == 2
    assert revocations.count("bob", REMEMBERED_S + 2.5) == 0


def test_the_revocations_of_the_last_ten_thousand_processes_are_remembered() -> None:
    revocations = Revocations()
    for pid in range(10_001):
        revocations.add(pid, 0.0)
    assert [revocations.count(pid, 1.0) for pid in (0, 1, 10_000)] == [0, 1, 1]


# Why a client waits


@pytest.mark.parametrize(
    ("own", "others", "way", "cause", "reason"),
    [
        (BACKGROUND, (BATCH,), Way.TURNS, PhaseCause.CLASS, WaitReason.BACKGROUND),
        (BACKGROUND, (BACKGROUND, BATCH), Way.TURNS, PhaseCause.FAIRNESS, WaitReason.BACKGROUND),
        (BACKGROUND, (BACKGROUND, BACKGROUND), Way.TURNS, PhaseCause.FAIRNESS, WaitReason.FAIRNESS),
        (BATCH, (BATCH,), Way.MEASURING, PhaseCause.FAIRNESS, SOLO),
        (BATCH, (BACKGROUND,), Way.TURNS, PhaseCause.FAIRNESS, WaitReason.FAIRNESS),
        (BATCH, (BATCH,), Way.TURNS, PhaseCause.GAIN, DEMAND),
    ],
)
def test_why_a_client_waits_in_a_phase(
    own: SharingClass, others: tuple[SharingClass, ...], way: Way, cause: PhaseCause, reason: WaitReason
) -> None:
    gpus = measured()
    clients = [gpus.enter() for _ in others]
    for client, sharing_class in zip(clients, others, strict=True):
        client.sharing_class = sharing_class
        gpus.begin(client)
    waits = waiting(gpus, "", 1)
    waits.sharing_class = own
    gpus.gpu.phases.current = Phase(tuple(client.id for client in clients), 1.0, way, cause=cause)
    assert wait_reason(gpus.terms, waits, gpus.now) is reason
    assert wait_reason(gpus.terms, clients[0], gpus.now) is None, "it runs"


def test_a_client_of_the_phase_that_has_left_is_not_one_of_class_background() -> None:
    gpus = measured()
    waits = waiting(gpus, "", 1)
    waits.sharing_class = BACKGROUND
    gpus.gpu.phases.current = Phase((waits.id + 1,), 1.0, Way.TURNS)
    assert wait_reason(gpus.terms, waits, gpus.now) is WaitReason.BACKGROUND


def test_a_client_whose_quota_is_spent_waits_for_it_whatever_else_is_in_its_way() -> None:
    gpus = concurrent()
    running(gpus, "", 9)
    spent = gpus.enter("", 9)
    gpus.quotas.limit(spent, 25, gpus.now)
    assert spent.quota.bucket is not None
    spent.quota.bucket.balance_s = -1.0
    gpus.ask(spent)
    assert wait_reason(gpus.terms, spent, gpus.now) is WaitReason.QUOTA


def test_a_program_outside_of_phases_waits_for_nothing() -> None:
    gpus = DirectedGpus(mode=Mode.SERIAL)
    running(gpus, "", 9)
    program = gpus.enter_program()
    gpus.ask(program)
    assert wait_reason(gpus.terms, program, gpus.now) is None


@pytest.mark.parametrize("mode", [Mode.SERIAL, Mode.AUTO])
def test_next_to_programs_a_client_runs_as_if_it_were_alone(mode: Mode) -> None:
    gpus = DirectedGpus(mode=mode)
    gpus.meter()
    for _ in range(2):
        gpus.begin(gpus.enter_program())
    waits = waiting(gpus, "", 20)
    assert wait_reason(gpus.terms, waits, gpus.now) is None


@pytest.mark.parametrize(("held", "reason"), [(4.0, None), (5.0, MEMORY)])
def test_the_memory_of_the_revoked_may_block_a_client_that_would_run_alone(
    held: float, reason: WaitReason | None
) -> None:
    gpus = concurrent()
    deaf = running(gpus, "", 5)
    gpus.revoke(deaf, held)
    waits = waiting(gpus, "", 5)
    assert wait_reason(gpus.terms, waits, gpus.now) is reason


def test_a_client_larger_than_the_gpu_is_not_blocked_by_revoked_ones_that_hold_nothing() -> None:
    gpus = concurrent()
    gpus.revoke(running(gpus, "", 5), 0.0)
    assert wait_reason(gpus.terms, waiting(gpus, "", 20), gpus.now) is None


@pytest.mark.parametrize(
    ("sm", "other_sm", "reason"), [(0.5, 0.25, None), (0.5, 0.26, DEMAND), (None, 0.1, SOLO), (0.1, None, SOLO)]
)
def test_a_client_runs_next_to_others_if_their_activities_leave_a_quarter_of_the_gpu(
    sm: float | None, other_sm: float | None, reason: WaitReason | None
) -> None:
    gpus = measured()
    gpus.begin(gpus.enter_program())
    running(gpus, "", 4, other_sm)
    assert wait_reason(gpus.terms, waiting(gpus, "", 4, sm), gpus.now) is reason


def test_by_utilisation_clients_run_together_if_they_fill_the_gpu() -> None:
    gpus = DirectedGpus()
    running(gpus, "", 4, 0.6)
    waits = waiting(gpus, "", 4, 0.4)
    more = waiting(gpus, "", 4, 0.5)
    gpus.gpu.phases.busy_until_s = gpus.now + 1.0
    assert [wait_reason(gpus.terms, client, gpus.now) for client in (waits, more)] == [None, DEMAND]
    gpus.now += 1.0
    assert wait_reason(gpus.terms, more, gpus.now) is None, "the utilisation is not known any more"


def test_activity_counts_in_mode_auto_only() -> None:
    gpus = concurrent()
    gpus.meter()
    running(gpus, "", 4, 0.9)
    assert wait_reason(gpus.terms, waiting(gpus, "", 4, 0.9), gpus.now) is None


def test_a_client_that_was_dropped_for_memory_needs_a_margin() -> None:
    gpus = concurrent()
    running(gpus, "", 4)
    dropped, other = waiting(gpus, "", 4.5), waiting(gpus, "", 4.5)
    gpus.transitions.require_margin(dropped)
    assert [wait_reason(gpus.terms, client, gpus.now) for client in (dropped, other)] == [MEMORY, None]


# Which turns are in the way


def had(client: Client, seconds: float) -> Client:
    """The owner of this client has had so much in all."""
    client.service.line.served_s = seconds
    return client


def leaving(gpus: DirectedGpus, front: Client, reason: WaitReason = MEMORY) -> list[Client]:
    return in_the_way(gpus.terms, gpus.gpu, front, reason, gpus.now)


def test_the_turns_of_those_that_had_most_are_in_the_way() -> None:
    gpus = concurrent()
    little, most, more = (had(running(gpus, owner, 3), s) for owner, s in (("ann", 1), ("bob", 3), ("cid", 2)))
    assert leaving(gpus, waiting(gpus, "dan", 3)) == [most]
    assert leaving(gpus, waiting(gpus, "dan", 4)) == [most, more]
    assert leaving(gpus, waiting(gpus, "dan", 9)) == [most, more, little]
    assert leaving(gpus, waiting(gpus, "dan", 1), TURN) == [most, more, little], "the others do not fit next to it"
    assert leaving(gpus, waiting(gpus, "ann", 3)) == [little], "of its own owner"


def test_of_one_owner_the_client_that_had_most_is_in_the_way() -> None:
    gpus = concurrent()
    less, more = running(gpus, "ann", 4, lasts_s=1.0), running(gpus, "ann", 4, lasts_s=2.0)
    assert leaving(gpus, waiting(gpus, "bob", 5)) == [more]
    assert leaving(gpus, waiting(gpus, "ann", 5)) == [more]
    less.service.served_s += 2.0
    assert leaving(gpus, waiting(gpus, "bob", 5)) == [less]


def test_a_turn_that_need_not_end_once_a_later_one_does_is_not_in_the_way() -> None:
    gpus = concurrent()
    had(running(gpus, "ann", 1), 3)
    big = had(running(gpus, "bob", 6), 2)
    had(running(gpus, "cid", 1), 1)
    assert leaving(gpus, waiting(gpus, "dan", 5)) == [big]
    gpus = concurrent()
    first = had(running(gpus, "ann", 2), 3)
    had(running(gpus, "bob", 1), 2)
    big = had(running(gpus, "cid", 5), 1)
    assert leaving(gpus, waiting(gpus, "dan", 7)) == [first, big], "8 of 9 GiB; with both that stay it were 10"


def test_turns_that_were_ended_already_are_not_in_the_way() -> None:
    gpus = concurrent()
    dropped, other = had(running(gpus, "ann", 4), 3), running(gpus, "bob", 4)
    gpus.drop(dropped)
    assert leaving(gpus, waiting(gpus, "cid", 5)) == []
    assert leaving(gpus, waiting(gpus, "cid", 6)) == [other]


def test_what_revoked_clients_hold_and_what_a_margin_takes_is_in_the_way() -> None:
    gpus = concurrent()
    other = running(gpus, "bob", 4)
    front = waiting(gpus, "cid", 4.5)
    assert leaving(gpus, front) == []
    gpus.transitions.require_margin(front)
    assert leaving(gpus, front) == [other], "8.5 of 8.1 GiB"
    gpus = concurrent()
    deaf, other = running(gpus, "ann", 3), running(gpus, "bob", 3)
    gpus.revoke(deaf, 2)
    assert leaving(gpus, waiting(gpus, "cid", 4)) == []
    assert leaving(gpus, waiting(gpus, "cid", 5)) == [other]


def test_turns_are_in_the_way_by_their_activity_as_well() -> None:
    gpus = measured()
    light = had(running(gpus, "ann", 1, 0.2), 3)
    busy = had(running(gpus, "bob", 1, 0.4), 2)
    assert leaving(gpus, waiting(gpus, "cid", 1, 0.1)) == []
    assert leaving(gpus, waiting(gpus, "cid", 1, 0.3), DEMAND) == [light]
    assert leaving(gpus, waiting(gpus, "cid", 1, 0.5), DEMAND) == [busy], "next to the light one it fits"
    assert leaving(gpus, waiting(gpus, "cid", 8, 0.1)) == [light]
    assert leaving(gpus, waiting(gpus, "cid", 1), SOLO) == [light, busy], "its activity is not known"
    unknown = had(running(gpus, "dan", 1), 1)
    assert leaving(gpus, waiting(gpus, "cid", 1, 0.1), SOLO) == [light, busy, unknown]


def test_a_turn_stays_in_the_way_if_its_activity_does_not_fit_next_to_the_front() -> None:
    gpus = measured()
    first = had(running(gpus, "ann", 1, 0.3), 3)
    second = had(running(gpus, "bob", 1, 0.4), 2)
    assert leaving(gpus, waiting(gpus, "cid", 1, 0.5), DEMAND) == [first, second]
    gpus = measured()
    first = had(running(gpus, "ann", 1, 0.1), 3)
    had(running(gpus, "bob", 1, 0.15), 2)
    busy = had(running(gpus, "cid", 1, 0.5), 1)
    assert leaving(gpus, waiting(gpus, "dan", 1, 0.55), DEMAND) == [first, busy], "only one of the light ones fits"


def test_without_measurements_only_memory_is_in_the_way() -> None:
    gpus = concurrent()
    gpus.meter()
    other = running(gpus, "ann", 4, 0.9)
    assert leaving(gpus, waiting(gpus, "bob", 4, 0.9)) == []
    assert leaving(gpus, waiting(gpus, "bob", 6)) == [other]


# How long they last


def due_s(gpus: DirectedGpus, turns: list[Client], front: Client, reason: WaitReason = MEMORY) -> float:
    """From now."""
    return room_due_s(gpus.terms, turns, front, reason, gpus.now) - gpus.now


def test_turns_end_together_when_the_last_of_them_has_lasted_a_quantum() -> None:
    gpus = concurrent()
    old, young = running(gpus, "ann", 1, lasts_s=9.0), running(gpus, "bob", 1, lasts_s=3.0)
    front = had(waiting(gpus, "cid", 1), 0)
    assert due_s(gpus, [old], front) == SHORT_S - 9.0
    assert due_s(gpus, [old, young], front) == SHORT_S - 3.0
    promise_room(gpus.gpu, front, gpus.now + 2.0)
    assert due_s(gpus, [old, young], front) == 2.0, "it was promised before the second began"
    assert due_s(gpus, [old, young], waiting(gpus, "dan", 1)) == SHORT_S - 3.0


def test_a_turn_lasts_until_its_owner_has_had_as_much_as_that_of_the_front() -> None:
    gpus = concurrent()
    holder = had(running(gpus, "ann", 1), 5)
    front = had(waiting(gpus, "bob", 1), 40)
    assert due_s(gpus, [holder], front) == 35.0
    assert due_s(gpus, [holder], had(front, 12)) == SHORT_S, "it lasts a quantum in any case"
    assert due_s(gpus, [holder], had(front, 1)) == SHORT_S


def test_an_owner_that_had_the_anchor_pays_for_it_with_its_place_in_the_queue_only() -> None:
    gpus = concurrent()
    anchor, front = running(gpus, "bob", 1), waiting(gpus, "bob", 1)
    gpus.now += 40.0
    holder = gpus.enter("ann", 1)
    gpus.begin(holder, NEVER)
    owe_turn(holder)
    gpus.drop(anchor)
    gpus.end(anchor)
    had(holder, 0)
    assert gpus.gpu.order.anchor is anchor
    assert due_s(gpus, [holder], front) == SHORT_S


def test_a_turn_of_the_same_owner_lasts_until_its_client_has_had_as_much() -> None:
    gpus = concurrent()
    holder, front = running(gpus, "ann", 1, lasts_s=5.0), waiting(gpus, "ann", 1)
    front.service.served_s = 30.0
    assert due_s(gpus, [holder], front) == 25.0


def test_guests_leave_when_the_others_do_or_at_once() -> None:
    gpus = concurrent()
    anchor = running(gpus, "ann", 1, lasts_s=4.0)
    guest = gpus.enter("bob", 1)
    gpus.begin(guest, gpus.now + 20.0)
    front = had(waiting(gpus, "cid", 1), 0)
    assert due_s(gpus, [anchor, guest], front) == SHORT_S - 4.0
    assert due_s(gpus, [guest], front) == 0.0
    stops = running(gpus, "dan", 1)
    gpus.drop(stops)
    assert due_s(gpus, [guest], front) == 20.0, "it uses the time until the other has stopped"
    assert due_s(gpus, [anchor, guest], front) == 20.0
    assert due_s(gpus, [anchor], front) == SHORT_S - 4.0


@pytest.mark.parametrize(
    ("holder_gib", "front_gib", "reason", "expected_s"),
    [(1, 1, MEMORY, 10.0), (4, 1, MEMORY, 20.0), (1, 4, TURN, 20.0), (1, 4, DEMAND, 40.0), (1, 4, SOLO, 40.0)],
)
def test_a_quantum_grows_with_the_memory_that_is_moved(
    holder_gib: int, front_gib: int, reason: WaitReason, expected_s: float
) -> None:
    """Where turns end by activity, with that of the biggest client that waits: all turns are long."""
    gpus = DirectedGpus()
    holder, front = running(gpus, "", holder_gib), waiting(gpus, "", front_gib)
    gpus.gpu.biggest_waiter = waiting(gpus, "", 8)
    assert quantum_s(gpus.terms, holder, front, reason) == expected_s
    gpus.gpu.biggest_waiter = None
    assert quantum_s(gpus.terms, holder, front, reason) == max(10.0, 5.0 * max(holder_gib, front_gib))


def test_the_biggest_client_that_waits_is_the_one_whose_memory_takes_longest_to_move() -> None:
    gpus = DirectedGpus()
    _, big, claims_more = waiting(gpus, "", 1), waiting(gpus, "", 5), waiting(gpus, "", 8)
    gpus.transitions.measure_memory(claims_more, 2 * GIB, None)
    assert biggest_waiter(gpus.gpu) is big


def test_a_quantum_is_that_of_phases_while_there_is_one_and_that_of_the_operator_if_set() -> None:
    gpus = DirectedGpus(turn_quantum_s=0.5)
    holder, front = running(gpus, "", 9), waiting(gpus, "", 9)
    gpus.gpu.phases.current = Phase((holder.id,), 1.0, Way.TURNS)
    assert quantum_s(gpus.terms, holder, front, MEMORY) == 0.5
    gpus.terms.set_quantum(3.0)
    assert quantum_s(gpus.terms, holder, front, MEMORY) == 3.0


# Who passes


def scan(gpus: DirectedGpus) -> QueueScan:
    return scan_queue(gpus.terms, gpus.gpu, gpus.now)


def test_a_client_that_fits_next_to_the_front_passes_it() -> None:
    gpus = concurrent()
    running(gpus, "ann", 5)
    front, small = waiting(gpus, "bob", 8), waiting(gpus, "cid", 1)
    assert scan(gpus) == QueueScan(front, MEMORY, small, NEVER)


def test_the_first_that_fits_is_found_behind_others_that_do_not() -> None:
    gpus = concurrent()
    running(gpus, "ann", 5)
    front, _, small = waiting(gpus, "bob", 8), waiting(gpus, "cid", 8), waiting(gpus, "dan", 1)
    assert scan(gpus) == QueueScan(front, MEMORY, small, NEVER)


def test_a_client_that_does_not_fit_next_to_the_front_is_a_guest_for_its_own_quantum_at_least() -> None:
    gpus = concurrent()
    holder = running(gpus, "ann", 5)
    front, guest = waiting(gpus, "bob", 8), waiting(gpus, "cid", 4)
    # 8 GiB are moved: the turn of the holder lasts 40 s, and the shortest of the guest 20 s.
    assert scan(gpus) == QueueScan(front, MEMORY, guest, gpus.now + 40.0)
    holder.turn.begun_s -= 20.0
    assert scan(gpus) == QueueScan(front, MEMORY, guest, gpus.now + 20.0)
    holder.turn.begun_s -= 1.0
    assert scan(gpus) == QueueScan(front, MEMORY, None)


def test_while_a_turn_that_was_ended_goes_on_for_long_a_guest_runs_for_its_own_quantum() -> None:
    gpus = concurrent()
    stops = running(gpus, "ann", 5)
    front, guest = waiting(gpus, "bob", 8), waiting(gpus, "cid", 4)
    gpus.drop(stops)
    gpus.now += DROP_RESEND_S - 0.1
    assert scan(gpus) == QueueScan(front, MEMORY, None), "its room is kept: the other may stop in a moment"
    gpus.now += 0.1
    assert scan(gpus) == QueueScan(front, MEMORY, guest, gpus.now + 20.0)


def test_those_that_stay_count_for_what_fits_next_to_the_front() -> None:
    gpus = concurrent()
    had(running(gpus, "ann", 3), 9)
    running(gpus, "bob", 2)
    front, small = waiting(gpus, "cid", 6), waiting(gpus, "dan", 2)
    assert scan(gpus) == QueueScan(front, MEMORY, small, gpus.now + 30.0), "6 + 2 + 2 GiB of 9"
    gpus = concurrent()
    gpus.revoke(running(gpus, "ann", 2), 2)
    running(gpus, "bob", 4)
    front, small = waiting(gpus, "cid", 6), waiting(gpus, "dan", 2)
    assert scan(gpus) == QueueScan(front, MEMORY, small, gpus.now + 30.0), "6 + 2 GiB, and 2 of the revoked one"


@pytest.mark.parametrize("of_front", [True, False])
def test_a_margin_counts_for_what_fits_next_to_the_front(of_front: bool) -> None:
    gpus = concurrent()
    running(gpus, "ann", 5)
    front, small = waiting(gpus, "bob", 7.5), waiting(gpus, "cid", 1)
    assert scan(gpus).guest_until_s == NEVER
    gpus.transitions.require_margin(front if of_front else small)
    assert scan(gpus) == QueueScan(front, MEMORY, small, gpus.now + 37.5)


@pytest.mark.parametrize(("sm", "until_s"), [(0.05, NEVER), (0.2, 20.0)])
def test_activity_counts_for_what_fits_next_to_the_front(sm: float, until_s: float) -> None:
    gpus = measured()
    running(gpus, "ann", 4, 0.5)
    front, small = waiting(gpus, "bob", 4, 0.7), waiting(gpus, "cid", 0.1, sm)
    assert scan(gpus) == QueueScan(front, DEMAND, small, gpus.now + until_s)


def test_no_client_is_together_with_a_front_whose_activity_is_not_known() -> None:
    gpus = measured()
    running(gpus, "ann", 4, 0.5)
    front, small = waiting(gpus, "bob", 4), waiting(gpus, "cid", 0.1, 0.01)
    assert scan(gpus) == QueueScan(front, SOLO, small, gpus.now + 20.0)


def test_nor_with_one_that_waits_for_memory() -> None:
    gpus = measured()
    running(gpus, "ann", 5, 0.1)
    front, small = waiting(gpus, "bob", 8), waiting(gpus, "cid", 0.1, 0.01)
    assert scan(gpus) == QueueScan(front, MEMORY, small, gpus.now + 40.0)


def test_no_client_passes_one_that_has_waited_for_the_longest_bypass() -> None:
    gpus = concurrent(max_bypass_s=5.0)
    running(gpus, "ann", 5)
    front, small = waiting(gpus, "bob", 8), waiting(gpus, "cid", 1)
    gpus.now += 4.9
    assert scan(gpus).fitting is small
    gpus.now += 0.1
    assert scan(gpus) == QueueScan(front, MEMORY, None)


def test_one_that_only_the_revoked_block_keeps_none_from_running() -> None:
    gpus = concurrent(max_bypass_s=5.0)
    gpus.revoke(running(gpus, "ann", 5), 5)
    running(gpus, "bob", 2)
    waiting(gpus, "cid", 8)
    small = waiting(gpus, "dan", 2)
    gpus.now += 10.0
    assert scan(gpus) == QueueScan(None, TURN, small)


def test_no_client_passes_where_turns_are_exclusive() -> None:
    gpus = DirectedGpus(mode=Mode.SERIAL)
    running(gpus, "ann", 1)
    front, _ = waiting(gpus, "bob", 1), waiting(gpus, "cid", 1)
    assert scan(gpus) == QueueScan(front, TURN, None)
    gpus = DirectedGpus()
    gpus.begin(gpus.enter("ann", version=1))
    front, program = waiting(gpus, "bob", 1), gpus.enter_program()
    gpus.ask(program)
    assert scan(gpus) == QueueScan(front, TURN, None)


def test_a_v1_client_waits_for_the_others_and_is_passed_by_guests() -> None:
    gpus = DirectedGpus()
    running(gpus, "ann", 1)
    front = gpus.enter("bob", version=1)
    gpus.ask(front)
    guest = waiting(gpus, "cid", 1)
    assert scan(gpus) == QueueScan(front, TURN, guest, gpus.now + SHORT_S)
