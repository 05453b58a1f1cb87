"""The accounts by which turns are given: what clients and owners are charged, and what is forgotten of it."""

import pytest

from gpucommons.scheduler.policy import attained
from gpucommons.scheduler.policy.attained import BACK_WITHIN_S, promised_s
from gpucommons.scheduler.policy.state import NEVER, Client, GpuQueue
from scheduler.directed import DirectedGpus

# In the room that others leave over.
LEFT_OVER = NEVER


# What is charged


def test_the_service_of_a_client_is_the_time_of_its_turns() -> None:
    accounts = DirectedGpus()
    client = accounts.enter()
    accounts.begin(client)
    accounts.now += 5.0
    assert accounts.own_service(client) == [5.0]
    accounts.end(client)
    accounts.now += 5.0
    assert accounts.own_service(client) == [5.0]
    accounts.begin(client)
    accounts.now += 2.0
    assert accounts.own_service(client) == [7.0]


def test_an_owner_in_left_over_room_is_charged_unless_another_of_its_clients_waits() -> None:
    accounts = DirectedGpus()
    anchor, guest, other = accounts.enter("ann"), accounts.enter("bob"), accounts.enter("bob")
    accounts.begin(anchor)
    accounts.begin(guest, LEFT_OVER)
    accounts.now += 5.0
    assert accounts.service(anchor, guest) == [5.0, 5.0]
    accounts.ask(other)
    accounts.now += 3.0
    assert accounts.service(anchor, guest) == [8.0, 5.0]
    accounts.transitions.dequeue(accounts.gpu, other, accounts.now)
    accounts.now += 2.0
    assert accounts.service(anchor, guest) == [10.0, 7.0]
    accounts.end(anchor)
    accounts.end(guest)
    accounts.now += 4.0
    assert accounts.service(anchor, guest) == [10.0, 7.0], "it runs no more"


def test_the_owner_of_the_anchor_is_charged_although_another_of_its_clients_waits() -> None:
    accounts = DirectedGpus()
    anchor, other = accounts.enter("ann"), accounts.enter("ann")
    accounts.begin(anchor)
    accounts.ask(other)
    accounts.now += 5.0
    assert accounts.service(anchor) == [5.0]


def test_a_client_that_inherits_the_part_of_the_anchor_is_charged_from_then_on() -> None:
    accounts = DirectedGpus()
    anchor, guest, other = accounts.enter("ann"), accounts.enter("bob"), accounts.enter("bob")
    accounts.begin(anchor)
    accounts.begin(guest, LEFT_OVER)
    accounts.ask(other)
    accounts.now += 5.0
    attained.inherit(accounts.gpu, guest, accounts.now)
    assert accounts.service(anchor, guest) == [5.0, 0.0]
    accounts.now += 3.0
    assert accounts.service(anchor, guest) == [8.0, 3.0]


def test_plain_programs_are_not_charged_to_their_owner() -> None:
    accounts = DirectedGpus()
    program, client = accounts.enter_program("ann"), accounts.enter("ann")
    accounts.begin(program)
    accounts.now += 5.0
    assert accounts.service(program) == [0.0]
    accounts.begin(client)
    accounts.now += 2.0
    accounts.end(program)
    assert accounts.service(client) == [2.0]


def test_newcomers_are_not_compared_with_plain_programs() -> None:
    accounts = DirectedGpus()
    accounts.begin(accounts.enter_program("ann"))
    accounts.begin(accounts.enter("bob"))
    accounts.now += 20.0
    newcomer = accounts.enter("cid")
    accounts.ask(newcomer)
    assert accounts.service(newcomer) == [20.0]


# Owners that were away


@pytest.mark.parametrize(
    ("dropped", "away_s", "expected_s"),
    [(True, 0.0, 3.0), (True, BACK_WITHIN_S - 0.5, 3.0), (True, BACK_WITHIN_S + 0.5, 20.0), (False, 0.0, 20.0)],
    ids=["at once", "soon", "later", "released by itself"],
)
def test_an_owner_that_was_away_begins_at_the_least_that_the_present_ones_had(
    dropped: bool, away_s: float, expected_s: float
) -> None:
    accounts = DirectedGpus()
    ann, bob, returns = accounts.enter("ann"), accounts.enter("bob"), accounts.enter("cid")
    accounts.begin(returns, LEFT_OVER)
    accounts.begin(ann)
    accounts.begin(bob, LEFT_OVER)
    accounts.now += 3.0
    if dropped:
        accounts.drop(returns)
    accounts.end(returns)
    # The others have had 20 s and more when it asks again.
    for client in (ann, bob):
        client.service.line.served_s += 17.0
    accounts.now += away_s
    accounts.ask(returns)
    least_s = accounts.service(ann)[0]
    assert accounts.service(returns) == [3.0 if expected_s == 3.0 else least_s]
    assert least_s == 20.0 + away_s


def test_the_owner_of_the_anchor_is_not_away_while_it_waits() -> None:
    accounts = DirectedGpus()
    anchor, waits, newcomer = (accounts.enter("ann") for _ in range(3))
    accounts.ask(waits)
    accounts.begin(anchor)
    bob = accounts.enter("bob")
    accounts.begin(bob, LEFT_OVER)
    accounts.now += 3.0
    accounts.drop(anchor)
    accounts.end(anchor)
    accounts.now += 17.0
    accounts.ask(accounts.enter("cid"))
    assert accounts.gpu.order.floor_s == 20.0
    accounts.ask(newcomer)
    assert accounts.service(newcomer) == [3.0]


def test_an_owner_is_not_away_when_another_of_its_clients_requests() -> None:
    accounts = DirectedGpus()
    first, second, other = accounts.enter("ann"), accounts.enter("ann"), accounts.enter("bob")
    accounts.begin(other)
    accounts.run(first, 3.0, LEFT_OVER)
    other.service.line.served_s += 17.0
    accounts.now += 1.0
    accounts.ask(second)
    assert accounts.service(second, other) == [3.0, 21.0]


def test_a_client_that_was_away_begins_at_the_least_of_the_clients_of_its_owner() -> None:
    accounts = DirectedGpus()
    first, second, third = (accounts.enter("ann") for _ in range(3))
    accounts.ask(third)
    accounts.begin(first)
    accounts.now += 8.0
    accounts.ask(second)
    assert accounts.own_service(second) == [0.0], "the third has had nothing so far"
    accounts.begin(third)
    accounts.now += 4.0
    newcomer = accounts.enter("ann")
    accounts.transitions.dequeue(accounts.gpu, second, accounts.now)
    accounts.ask(newcomer)
    assert accounts.own_service(first, third, newcomer) == [12.0, 4.0, 4.0]


def test_a_new_client_is_not_compared_with_the_clients_of_other_owners() -> None:
    accounts = DirectedGpus()
    first, second, other = accounts.enter("ann"), accounts.enter("ann"), accounts.enter("bob")
    accounts.begin(first)
    accounts.now += 100.0
    accounts.begin(other, LEFT_OVER)
    accounts.now += 1.0
    accounts.ask(second)
    assert accounts.own_service(first, other, second) == [101.0, 1.0, 101.0]


@pytest.mark.parametrize(("dropped", "expected_s"), [(True, 3.0), (False, 20.0)], ids=["at once", "released by itself"])
def test_a_client_that_requests_again_at_once_keeps_its_account(dropped: bool, expected_s: float) -> None:
    accounts = DirectedGpus()
    first, second = accounts.enter("ann"), accounts.enter("ann")
    accounts.begin(first)
    accounts.begin(second, LEFT_OVER)
    accounts.now += 3.0
    if dropped:
        accounts.drop(first)
    accounts.end(first)
    second.service.served_s += 17.0
    accounts.ask(first)
    assert accounts.own_service(first, second) == [expected_s, 20.0]


# What is forgotten


def waiting(accounts: DirectedGpus) -> Client:
    """An owner that waits and has had nothing."""
    client = accounts.enter("waits")
    accounts.ask(client)
    return client


@pytest.mark.parametrize(
    ("seconds", "left_s"),
    [(8.0, 8.0), (20.0, 15.0), (100.0, 30.0)],
    ids=["a quantum is kept", "half of the rest", "two more quanta at most"],
)
def test_what_an_owner_had_in_left_over_room_is_forgotten_in_part(seconds: float, left_s: float) -> None:
    accounts = DirectedGpus()
    waiting(accounts)
    anchor, lucky = accounts.enter("ann"), accounts.enter("bob")
    accounts.begin(anchor)
    accounts.run(lucky, seconds, LEFT_OVER)
    assert accounts.service(anchor, lucky) == [seconds, left_s]
    accounts.drop(anchor)
    accounts.end(anchor)
    assert accounts.service(anchor) == [seconds], "no part of its time was left over"


def test_an_owner_that_waits_has_its_place_by_what_is_left() -> None:
    accounts = DirectedGpus()
    first, other = waiting(accounts), accounts.enter("cid")
    anchor, lucky, again = accounts.enter("ann"), accounts.enter("bob"), accounts.enter("bob")
    other.service.line.served_s = 50.0
    accounts.ask(other)
    accounts.begin(anchor)
    accounts.begin(lucky, LEFT_OVER)
    accounts.now += 100.0
    accounts.ask(again)
    assert list(accounts.gpu.order.in_order()) == [first, other, again]
    accounts.drop(lucky)
    accounts.end(lucky)
    assert accounts.service(lucky) == [30.0]
    assert list(accounts.gpu.order.in_order()) == [first, again, other]


def test_an_owner_that_waits_keeps_its_place_if_nothing_is_forgotten() -> None:
    accounts = DirectedGpus()
    anchor, turn, again, other = (accounts.enter(owner) for owner in ("ann", "bob", "bob", "cid"))
    accounts.begin(anchor)
    accounts.begin(turn, LEFT_OVER)
    accounts.now += 5.0
    accounts.ask(again)
    accounts.ask(other)
    assert accounts.service(turn, other) == [5.0, 5.0]
    accounts.drop(turn)
    accounts.end(turn)
    assert list(accounts.gpu.order.in_order()) == [again, other], "in the order of their requests"


def test_no_more_is_forgotten_than_was_left_over() -> None:
    accounts = DirectedGpus()
    waiting(accounts)
    ann, bob = accounts.enter("ann"), accounts.enter("bob")
    accounts.run(bob, 100.0)
    accounts.begin(ann)
    accounts.run(bob, 40.0, LEFT_OVER)
    assert accounts.service(bob) == [100.0], "140 s, of which 40 s were left over"
    accounts.run(bob, 10.0, LEFT_OVER)
    assert accounts.service(bob) == [100.0]


@pytest.mark.parametrize(
    ("late_s", "left_s"), [(0.05, 30.0), (9.0, 30.0), (15.0, 115.0)], ids=["at once", "a tenth of its turn", "kept"]
)
def test_a_turn_that_was_kept_is_not_forgotten(late_s: float, left_s: float) -> None:
    accounts = DirectedGpus()
    waiting(accounts)
    anchor, lucky = accounts.enter("ann"), accounts.enter("bob")
    accounts.begin(anchor)
    accounts.begin(lucky, LEFT_OVER)
    accounts.now += 100.0
    accounts.drop(lucky)
    accounts.now += late_s
    accounts.end(lucky)
    assert accounts.service(lucky) == [left_s]


def test_a_short_turn_may_take_a_moment_to_end() -> None:
    accounts = DirectedGpus()
    waiting(accounts)
    anchor, lucky = accounts.enter("ann"), accounts.enter("bob")
    accounts.begin(anchor)
    lucky.service.line.served_s = lucky.service.line.luck_s = 100.0
    accounts.begin(lucky, LEFT_OVER)
    accounts.now += 0.2
    accounts.drop(lucky)
    accounts.now += 0.08
    accounts.end(lucky)
    assert accounts.service(lucky) == [30.0], "less than 0.1 s"


def test_a_client_is_at_most_three_quanta_ahead_of_the_others_of_its_owner() -> None:
    accounts = DirectedGpus()
    first, other = accounts.enter("ann"), accounts.enter("ann")
    accounts.ask(other)
    accounts.run(first, 100.0)
    assert accounts.own_service(first, other) == [30.0, 0.0]
    assert accounts.service(first) == [100.0]


# What one turn after another costs, in one step and in two


IN_ONE_STEP = pytest.mark.parametrize("fast", [False, True], ids=["in two steps", "in one"])


@IN_ONE_STEP
@pytest.mark.parametrize("same_owner", [False, True])
def test_the_least_that_owners_had_does_not_fall(fast: bool, same_owner: bool) -> None:
    accounts = DirectedGpus()
    first, other = accounts.enter("ann"), accounts.enter("bob")
    waits = accounts.enter("ann" if same_owner else "cid")
    accounts.begin(other, LEFT_OVER)
    accounts.run(first, 3.0)
    accounts.drop(other)
    accounts.end(other)
    accounts.gpu.order.floor_s = 20.0
    accounts.begin(first)
    accounts.ask(waits)
    accounts.now += 1.0
    accounts.hand_over(first, waits, fast=fast)
    assert accounts.service(first) == [4.0]
    assert accounts.gpu.order.floor_s == 20.0
    newcomer = accounts.enter("dan")
    accounts.ask(newcomer)
    assert accounts.service(newcomer) == [20.0]


@IN_ONE_STEP
@pytest.mark.parametrize("other_owner", ["ann", "bob"])
def test_a_client_that_moves_has_no_claim_to_the_turns_before_it_came(fast: bool, other_owner: str) -> None:
    accounts = DirectedGpus()
    target = accounts.add_gpu()
    first, other = accounts.enter("ann", gpu=target), accounts.enter(other_owner, gpu=target)
    accounts.begin(first)
    accounts.ask(other)
    accounts.now += 50.0
    accounts.hand_over(first, other, fast=fast)
    accounts.ask(first)
    accounts.now += 50.0
    accounts.hand_over(other, first, fast=fast)
    newcomer = accounts.enter("cid")
    accounts.ask(newcomer)
    move(accounts, target, newcomer)
    assert accounts.service(newcomer, first) == [100.0 if other_owner == "ann" else 50.0] * 2


@IN_ONE_STEP
@pytest.mark.parametrize(("floor_s", "other_s", "expected_s"), [(0.0, 20.0, 4.0), (0.0, 1.0, 1.0), (6.0, 20.0, 6.0)])
def test_a_new_client_begins_at_the_least_that_those_of_its_owner_had(
    fast: bool, floor_s: float, other_s: float, expected_s: float
) -> None:
    accounts = DirectedGpus()
    client, other, next_one, newcomer = (accounts.enter(owner) for owner in ("ann", "ann", "bob", "ann"))
    other.service.served_s = other_s
    accounts.ask(other)
    accounts.ask(next_one)
    accounts.begin(client)
    client.service.served_s, client.service.line.floor_s = 0.0, floor_s
    accounts.now += 4.0
    accounts.hand_over(client, next_one, fast=fast)
    accounts.transitions.dequeue(accounts.gpu, other, accounts.now)
    accounts.ask(newcomer)
    assert accounts.own_service(client, newcomer) == [4.0, expected_s]


@IN_ONE_STEP
def test_luck_is_forgotten_at_the_end_of_any_turn(fast: bool) -> None:
    accounts = DirectedGpus()
    waits = waiting(accounts)
    anchor, lucky = accounts.enter("ann"), accounts.enter("bob")
    accounts.begin(anchor)
    accounts.run(lucky, 5.0, LEFT_OVER)
    accounts.end(anchor)
    accounts.begin(lucky)
    accounts.now += 100.0
    accounts.hand_over(lucky, waits, fast=fast)
    assert accounts.service(lucky) == [100.0], "105 s, of which 5 s were left over"


# Owners that leave


def test_an_owner_that_had_more_than_the_least_is_remembered() -> None:
    accounts = DirectedGpus()
    waiting(accounts)
    one, other = accounts.enter("ann"), accounts.enter("ann")
    accounts.run(one, 8.0)
    accounts.leave(one)
    accounts.leave(other)
    assert accounts.service(accounts.enter("ann")) == [8.0]
    assert not accounts.gpu.order.departed_s, "it is here again"
    assert accounts.service(accounts.enter("bob")) == [0.0]


def test_a_client_without_an_owner_is_not_remembered() -> None:
    """It does not come back, and there is room for few."""
    accounts = DirectedGpus()
    waiting(accounts)
    client = accounts.enter()
    accounts.run(client, 8.0)
    accounts.leave(client)
    assert not accounts.gpu.order.departed_s


def test_an_owner_that_had_the_least_needs_not_be_remembered() -> None:
    accounts = DirectedGpus()
    client = accounts.enter("ann")
    accounts.run(client, 8.0)
    accounts.leave(client)
    assert not accounts.gpu.order.departed_s


def test_those_that_the_others_have_overtaken_are_forgotten_first() -> None:
    accounts = DirectedGpus()
    last = waiting(accounts)

    def visit(owner: str, seconds: float) -> None:
        client = accounts.enter(owner)
        accounts.run(client, seconds)
        accounts.leave(client)

    visit("ann", 100.0)
    for number in range(200):
        visit(f"uid:{number}", 1.0)
    accounts.run(last, 50.0)
    keeper = accounts.enter("dan")
    accounts.ask(keeper)
    assert accounts.service(keeper) == [50.0]
    for number in range(100):
        visit(f"gid:{number}", 60.0)
    remembered = accounts.gpu.order.departed_s
    assert "ann" in remembered
    assert len(remembered) == 101


def test_the_last_owners_that_left_are_remembered() -> None:
    accounts = DirectedGpus()
    waiting(accounts)
    for number in range(300):
        client = accounts.enter(str(number))
        accounts.run(client, 1.0)
        accounts.leave(client)
    assert list(accounts.gpu.order.departed_s) == [str(number) for number in range(44, 300)]


# Room


def test_room_is_promised_to_the_front_until_it_leaves() -> None:
    accounts = DirectedGpus()
    front, other = accounts.enter("ann"), accounts.enter("bob")
    attained.promise_room(accounts.gpu, front, 50.0)
    assert [promised_s(accounts.gpu, client) for client in (front, other)] == [50.0, NEVER]
    accounts.leave(other)
    assert promised_s(accounts.gpu, front) == 50.0
    accounts.leave(front)
    assert promised_s(accounts.gpu, front) == NEVER


def test_the_promise_ends_when_the_front_no_longer_waits() -> None:
    accounts = DirectedGpus()
    front, other = accounts.enter("ann"), accounts.enter("bob")
    for client in (front, other):
        accounts.ask(client)
    attained.promise_room(accounts.gpu, front, 50.0)
    accounts.transitions.dequeue(accounts.gpu, other, accounts.now)
    assert promised_s(accounts.gpu, front) == 50.0
    accounts.begin(front)
    assert promised_s(accounts.gpu, front) == NEVER


def test_the_client_that_turns_were_ended_for_is_served_before_those_with_less() -> None:
    accounts = DirectedGpus()
    less, more, other = accounts.enter("ann"), accounts.enter("bob"), accounts.enter("cid")
    for client in (less, more, other):
        accounts.ask(client)
    accounts.run(more, 5.0)
    accounts.ask(more)
    attained.claim_room(accounts.gpu, more)
    accounts.transitions.dequeue(accounts.gpu, other, accounts.now)
    assert list(accounts.gpu.order.in_order()) == [more, less]
    accounts.begin(more)
    assert list(accounts.gpu.order.in_order()) == [less]


# Moving


def move(accounts: DirectedGpus, target: GpuQueue, *clients: Client) -> None:
    source = clients[0].gpu
    for client in clients:
        accounts.transitions.move(client, target, accounts.now)
    for gpu in (source, target):
        accounts.transitions.order_again(gpu, accounts.now)


def test_an_owner_that_moves_is_ahead_of_the_least_of_the_other_queue_by_as_much() -> None:
    accounts = DirectedGpus()
    target = accounts.add_gpu()
    there = accounts.enter("ann", gpu=target)
    accounts.run(there, 50.0)
    assert target.order.floor_s == 50.0
    accounts.run(accounts.enter("cid"), 3.0)
    waiting(accounts)
    first, second = accounts.enter("bob"), accounts.enter("bob")
    accounts.run(first, 8.0)
    assert accounts.service(first) == [3.0 + 8.0]
    accounts.now += 100.0
    move(accounts, target, first, second)
    assert accounts.service(first, second) == [58.0, 58.0], "it was idle since its turn"


def test_after_a_move_the_oldest_turn_of_a_client_is_the_anchor() -> None:
    accounts = DirectedGpus()
    target = accounts.add_gpu()
    program, young = accounts.enter_program("ann", gpu=target), accounts.enter("bob", gpu=target)
    old, waits, other = accounts.enter("cid"), accounts.enter("cid"), accounts.enter("dan")
    accounts.begin(program)
    accounts.now += 1.0
    accounts.begin(old)
    other.service.line.served_s = 50.0
    for client in (waits, other):
        accounts.ask(client)
    accounts.now += 1.0
    accounts.begin(young)
    accounts.now += 1.0
    move(accounts, target, old, waits, other)
    assert target.order.anchor is old
    assert list(target.order.in_order()) == [other, waits], "the owner of the anchor is behind all others"
    accounts.now += 3.0
    assert accounts.service(old, young) == [5.0, 4.0]
    assert [client.service.line.running for client in (program, old, young)] == [0, 1, 1]


def test_after_a_move_those_that_had_as_much_wait_in_the_order_of_their_requests() -> None:
    accounts = DirectedGpus()
    target = accounts.add_gpu()
    clients = [accounts.enter(f"uid:{number % 3}", gpu=(accounts.gpu, target)[number % 2]) for number in range(6)]
    for client in clients:
        accounts.now += 0.1
        accounts.ask(client)
    move(accounts, target, *clients[::2])
    assert list(target.order.in_order()) == clients
    newcomer = accounts.enter("uid:0", gpu=target)
    accounts.ask(newcomer)
    assert list(target.order.in_order()) == [*clients[:4], newcomer, *clients[4:]]
