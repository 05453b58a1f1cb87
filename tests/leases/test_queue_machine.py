"""Random arrivals, deaths, restarts, reservations and lost GPUs: 1,000 steps in each walk, and the bound on waiting."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucommons.config.accounts import LeasesSettings
from gpucommons.leases.policy.queue import LeaseQueue
from gpucommons.leases.policy.values import UserFacts
from gpucommons.model.leases import LeaseRequest
from leases.random_node import RandomNode, whole
from unhurried import costly

STEPS = 1000


@given(seed=st.integers(0, 2**32))
@costly(8)
def test_no_slot_twice_no_starvation_fifo_and_capacity(seed: int) -> None:
    world = RandomNode(random.Random(seed))
    for _ in range(STEPS):
        world.step()
    assert world.granted > STEPS / 50


@pytest.mark.long
@settings(max_examples=6)
@given(seed=st.integers(0, 2**32))
def test_a_wait_is_bounded_by_the_pass_limit_and_the_requests_before_it(seed: int) -> None:
    """Where no lease lasts longer than D, the first request of a user waits at most the pass limit and D for itself
    and for each older request, however many users without a GPU arrive later."""
    dice, longest_s, settings = random.Random(seed), 100.0, LeasesSettings(pass_limit_s=300.0)
    queue, now_s, waited = LeaseQueue(settings), 0.0, 0
    queue.update_slots(map(whole, range(3)), now_s, UserFacts())
    ends_s: dict[str, float] = {}
    bounds: dict[str, float] = {}
    for number in range(1500):
        for id in [id for id, end_s in ends_s.items() if end_s <= now_s]:
            queue.end(id, now_s)
            del ends_s[id]
        # One user who always has a lease and waits with a big request, and many who have none.
        uid = 0 if dice.random() < 0.1 else number
        if len(queue.waiting) < 12 and not (uid == 0 and any(each.uid == 0 for each in queue.waiting.values())):
            request = queue.add(LeaseRequest(uid, f"user{uid}", now_s, 3 if uid == 0 else 1))
            bounds[request.id] = now_s + settings.pass_limit_s + longest_s * (len(queue.waiting) + 1)
        for lease in queue.settle(now_s).grants:
            assert now_s <= bounds[lease.request.id]
            waited += 1
            ends_s[lease.request.id] = now_s + dice.uniform(1.0, longest_s)
        for id in queue.waiting:
            assert now_s <= bounds[id]
        now_s += dice.uniform(0.5, 10.0)
    assert waited > 300
