"""The rules of the queue, one by one."""

import re
from collections.abc import Iterable
from typing import Any

import pytest

from gpucommons.config.accounts import LeaseQuotaSettings, LeasesSettings
from gpucommons.leases.policy.plan import LeaseBoard, LeaseDurations, make_plan, quota_uses
from gpucommons.leases.policy.queue import HOLD_LEASE_S, HOLD_PLACE_S, LeaseQueue
from gpucommons.leases.policy.values import (
    KeptRoom,
    LeasableSlot,
    LeaseRefused,
    SlotUse,
    UserFacts,
)
from gpucommons.model.leases import Lease, LeaseQuotaUse, LeaseRequest, Reservation, WaitCause
from leases.random_node import GIB, mig, whole

ALICE, BOB, CHEN = (1, "alice"), (2, "bob"), (3, "chen")


def opened(
    *slots: LeasableSlot,
    settings: LeasesSettings | None = None,
    quotas: Iterable[LeaseQuotaSettings] = (),
    users: UserFacts | None = None,
) -> LeaseQueue:
    queue = LeaseQueue(settings, quotas)
    queue.update_slots(slots, 0.0, users or UserFacts())
    return queue


def granted(queue: LeaseQueue, now_s: float = 0.0) -> dict[str, tuple[str, ...]]:
    return {lease.request.id: lease.slots for lease in queue.settle(now_s).grants}


def asked(queue: LeaseQueue, who: tuple[int, str], now_s: float = 0.0, **demand: object) -> str:
    return queue.add(LeaseRequest(*who, now_s, **demand)).id  # type: ignore[arg-type]


def test_the_user_with_the_fewest_gpus_comes_first_then_the_oldest() -> None:
    queue = opened(whole(0), whole(1))
    first = asked(queue, ALICE)
    second = asked(queue, BOB)
    assert set(granted(queue)) == {first, second}
    of_alice, of_chen, of_bob = asked(queue, ALICE), asked(queue, CHEN), asked(queue, BOB)
    assert granted(queue) == {}
    assert {id: wait.position for id, wait in queue.waits.items()} == {of_chen: 1, of_alice: 2, of_bob: 3}
    queue.end(second, 5.0)
    # Alice has one, bob and chen have none: chen's request is older than bob's.
    assert granted(queue, 5.0) == {of_chen: ("GPU-1",)}
    queue.end(first, 6.0)
    assert granted(queue, 6.0) == {of_alice: ("GPU-0",)}


def test_room_that_a_parked_program_is_about_to_take_is_not_given_away() -> None:
    kept = KeptRoom(50 * GIB, frozenset({"1"}))
    crowded = whole(0, free_bytes=90 * GIB, use=SlotUse.USED, kept=(kept,))
    queue = opened(crowded)
    first = asked(queue, ALICE, share=True, memory_bytes=50 * GIB)
    second = asked(queue, BOB, share=True, memory_bytes=50 * GIB)
    assert (first, second) == ("1", "2")
    assert set(granted(queue)) == {first}, "the program made room for it"
    assert queue.waits[second].cause is WaitCause.BUSY, "parking may admit it"
    queue.end(first, 5.0)
    queue.update_slots([crowded._replace(free_bytes=99 * GIB)], 6.0, UserFacts())
    assert granted(queue, 6.0) == {}, "it comes after the program"
    queue.update_slots([crowded._replace(free_bytes=100 * GIB)], 7.0, UserFacts())
    assert set(granted(queue, 7.0)) == {second}, "there is room for both"


def test_a_gpu_to_which_a_parked_program_comes_back_is_not_free() -> None:
    queue = opened(whole(0, kept=(KeptRoom(GIB),)))
    alone = asked(queue, ALICE)
    assert granted(queue) == {}
    assert queue.waits[alone].cause is WaitCause.BUSY
    queue.update_slots([whole(0)], 5.0, UserFacts())
    assert set(granted(queue, 5.0)) == {alone}


def test_requests_of_a_user_keep_their_order_though_a_later_one_would_fit() -> None:
    queue = opened(whole(0), whole(1), whole(2, use=SlotUse.ALLOCATED))
    big = asked(queue, ALICE, gpus=3)
    small = asked(queue, ALICE)
    assert granted(queue) == {}
    assert [queue.waits[id].cause for id in (big, small)] == [WaitCause.BUSY, WaitCause.EARLIER]


def test_a_small_request_passes_a_big_one_only_if_it_ends_before_the_estimate() -> None:
    queue = opened(whole(0), whole(1))
    running = asked(queue, ALICE, limit_s=1000.0)
    assert granted(queue) == {running: ("GPU-0",)}
    big = asked(queue, BOB, gpus=2)
    assert granted(queue) == {}
    assert queue.waits[big].start_s == 1000.0
    long, short = asked(queue, CHEN, limit_s=1500.0), asked(queue, (4, "dana"), limit_s=900.0)
    assert granted(queue, 10.0) == {short: ("GPU-1",)}
    assert queue.waits[long].cause is WaitCause.KEPT
    queue.end(short, 200.0)
    # 900 s from now on would end after the estimate.
    late = asked(queue, (5, "emeka"), 200.0, limit_s=900.0)
    assert granted(queue, 200.0) == {}
    assert queue.waits[late].cause is WaitCause.KEPT
    queue.end(running, 900.0)
    assert set(granted(queue, 900.0)) == {big}


def test_the_estimate_is_kept_when_the_running_lease_lasts_longer() -> None:
    """Otherwise an estimate that moves would let later requests pass again and again."""
    queue = opened(whole(0), whole(1), settings=LeasesSettings(pass_limit_s=10_000.0))
    asked(queue, ALICE, limit_s=100.0)
    granted(queue)
    asked(queue, BOB, gpus=2)
    granted(queue)
    asked(queue, CHEN, 90.0, limit_s=50.0)
    assert granted(queue, 90.0) == {}
    assert granted(queue, 500.0) == {}


def test_a_start_that_nothing_is_known_of_is_not_shown() -> None:
    queue = opened(whole(0))
    running = asked(queue, ALICE)
    granted(queue)
    second, third = asked(queue, BOB, 1.0, limit_s=60.0), asked(queue, CHEN, 2.0)
    granted(queue, 10.0)
    # The queue has to plan with a number; people would take it for an estimate.
    assert [queue.waits[id].start_s is not None for id in (second, third)] == [True, True]
    assert [queue.waits[id].expected_start_s for id in (second, third)] == [None, None]
    queue.end(running, 500.0)
    assert set(granted(queue, 500.0)) == {second}
    granted(queue, 510.0)
    assert queue.waits[third].expected_start_s == 560.0, "the limit of the second"
    fourth = asked(queue, ALICE, 520.0)
    granted(queue, 520.0)
    assert queue.waits[fourth].expected_start_s == pytest.approx(560.0 + 500.0), "as long as the first"
    queue.end(second, 600.0)
    granted(queue, 600.0)
    granted(queue, 1101.0)
    assert queue.waits[fourth].expected_start_s is None, "none has lasted as long as the third"


def test_a_start_behind_an_earlier_request_whose_start_is_not_known_is_not_known() -> None:
    queue = opened(whole(0), mig(9, 0))
    asked(queue, ALICE, memory_bytes=100 * GIB)
    asked(queue, BOB, memory_bytes=10 * GIB, limit_s=60.0)
    assert len(granted(queue)) == 2
    large, small = (asked(queue, CHEN, 1.0, memory_bytes=size * GIB) for size in (100, 10))
    granted(queue, 1.0)
    assert [queue.waits[id].cause for id in (large, small)] == [WaitCause.BUSY, WaitCause.EARLIER]
    assert [queue.waits[id].expected_start_s for id in (large, small)] == [None, None]


def test_sharing_takes_a_free_slot_first_and_then_joins_others_up_to_the_limit() -> None:
    queue = opened(whole(0), whole(1), settings=LeasesSettings(share_limit=2))
    ids = [asked(queue, (n, f"user{n}"), share=True) for n in range(5)]
    found = granted(queue)
    assert [found.get(id) for id in ids] == [("GPU-0",), ("GPU-1",), ("GPU-0",), ("GPU-1",), None]
    exclusive = asked(queue, ALICE)
    queue.end(ids[0], 1.0)
    assert exclusive not in granted(queue, 1.0)


def test_sharing_joins_programs_without_a_lease_but_no_allocation() -> None:
    queue = opened(whole(0, use=SlotUse.ALLOCATED), whole(1, use=SlotUse.USED))
    shared, exclusive = asked(queue, ALICE, share=True), asked(queue, BOB)
    assert granted(queue) == {shared: ("GPU-1",)}
    assert queue.waits[exclusive].cause is WaitCause.BUSY


def test_memory_that_sharers_were_promised_is_not_promised_twice() -> None:
    queue = opened(whole(0))
    first = asked(queue, ALICE, share=True, memory_bytes=100 * GIB)
    second = asked(queue, BOB, share=True, memory_bytes=60 * GIB)
    third = asked(queue, CHEN, share=True, memory_bytes=40 * GIB, limit_s=10.0)
    assert set(granted(queue)) == {first, third}
    assert second in queue.waiting


def test_what_a_lease_does_not_use_yet_is_kept_next_to_programs_without_a_lease() -> None:
    """Programs without a lease have 90 GiB. What leases use is not free, and does not count twice."""
    slot = whole(0, use=SlotUse.USED, free_bytes=50 * GIB)
    queue = opened(slot)
    first = asked(queue, ALICE, share=True, memory_bytes=30 * GIB)
    second = asked(queue, BOB, share=True, memory_bytes=30 * GIB)
    assert granted(queue).keys() == {first}
    queue.update_slots((slot._replace(free_bytes=25 * GIB, used={first: 25 * GIB}),), 1.0, UserFacts())
    assert granted(queue, 1.0) == {}
    # Those without a lease release 10 GiB: of 35 free ones, 5 are promised.
    queue.update_slots((slot._replace(free_bytes=35 * GIB, used={first: 25 * GIB}),), 2.0, UserFacts())
    assert granted(queue, 2.0).keys() == {second}


def test_a_lease_that_uses_more_than_it_declared_leaves_the_room_of_the_others() -> None:
    """Alice uses 70 GiB instead of 10, Bob nothing yet of his 30: of 70 free GiB, 40 can be given."""
    queue = opened(whole(0))
    alice = asked(queue, ALICE, share=True, memory_bytes=10 * GIB)
    bob = asked(queue, BOB, share=True, memory_bytes=30 * GIB)
    assert granted(queue).keys() == {alice, bob}
    queue.update_slots((whole(0, free_bytes=70 * GIB, used={alice: 70 * GIB}),), 1.0, UserFacts())
    chen = asked(queue, CHEN, share=True, memory_bytes=41 * GIB)
    assert granted(queue, 1.0) == {}
    queue.end(chen, 1.0)
    chen = asked(queue, CHEN, share=True, memory_bytes=40 * GIB)
    assert granted(queue, 1.0).keys() == {chen}


def test_what_a_lease_has_parked_is_not_promised_on_the_gpu() -> None:
    """Alice's 100 GiB wait in host memory, and Bob's 60 are not used yet."""
    queue = opened(whole(0))
    alice = asked(queue, ALICE, share=True, memory_bytes=100 * GIB)
    assert granted(queue).keys() == {alice}
    queue.update_slots((whole(0, parked={alice: 100 * GIB}),), 1.0, UserFacts())
    bob = asked(queue, BOB, share=True, memory_bytes=60 * GIB)
    chen = asked(queue, CHEN, share=True, memory_bytes=90 * GIB)
    assert granted(queue, 1.0).keys() == {bob}
    assert chen in queue.waiting


def test_a_stated_memory_takes_the_smallest_slot_and_no_memory_the_largest() -> None:
    queue = opened(mig(9, 0), whole(0))
    assert granted_of(queue, memory_bytes=10 * GIB) == ("MIG-9-0",)
    assert granted_of(queue) == ("GPU-0",)


def granted_of(queue: LeaseQueue, **demand: object) -> tuple[str, ...]:
    id = asked(queue, ALICE, **demand)  # type: ignore[arg-type]
    return granted(queue)[id]


def test_a_request_names_the_model_or_the_gpu_or_a_whole_one() -> None:
    queue = opened(whole(0, model="NVIDIA A100"), whole(1, model="NVIDIA H100 80GB HBM3"), mig(9, 0), mig(9, 1))
    assert granted_of(queue, model="h100") == ("GPU-1",)
    assert granted_of(queue, slot="9.1") == ("MIG-9-1",)
    assert granted_of(queue, slot="9") == ("MIG-9-0",), "a MIG device of that GPU"
    assert granted_of(queue, whole=True, memory_bytes=GIB) == ("GPU-0",), "the smallest that fits would be a MIG device"


def test_free_memory_counts_not_only_the_total() -> None:
    queue = opened(whole(0, free_bytes=5 * GIB), whole(1))
    assert granted_of(queue, memory_bytes=20 * GIB) == ("GPU-1",)


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        ({"gpus": 9}, "9 GPUs requested, this node has 2 GPUs and 1 MIG devices"),
        ({"gpus": 3}, "3 GPUs requested, this node has 2 GPUs"),
        ({"slot": "99"}, "this node has no GPU '99'; see 'gpucommons gpus'"),
        ({"model": "tpu"}, "this node has no GPU of model 'tpu'; it has unknown models"),
        (
            {"memory_bytes": 200 * GIB},
            "with 200 GiB of memory requested, 0 of this node have that much, the largest has 140 GiB",
        ),
        (
            {"memory_bytes": 200 * GIB, "slot": "0"},
            "with 200 GiB of memory requested, 0 of this node have that much, the largest has 140 GiB",
        ),
        (
            {"memory_bytes": 200 * GIB, "whole": True},
            "1 GPU with 200 GiB of memory requested, 0 of this node have that much",
        ),
        ({"gpus": 3, "whole": True}, "3 GPUs without MIG requested, this node has 2 GPUs and 1 MIG devices"),
        ({"slot": "9", "whole": True}, "1 GPU named '9' without MIG requested"),
        ({"slot": "9", "memory_bytes": 100 * GIB}, "1 GPU named '9' requested"),
        ({"gpus": 2, "slot": "0", "memory_bytes": 100 * GIB}, "2 GPUs named '0' requested"),
        ({"gpus": 2, "whole": True, "memory_bytes": 200 * GIB}, "2 GPUs with 200 GiB of memory requested, 0 of this"),
    ],
)
def test_what_the_node_never_has_is_refused_at_once(demand: dict[str, Any], words: str) -> None:
    with pytest.raises(LeaseRefused, match=words.replace("(", "\\(")):
        asked(opened(whole(0), whole(1), mig(9, 0)), ALICE, **demand)


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        (
            {"gpus": 3, "model": "h200"},
            "3 GPUs of model 'h200' requested, this node has 3 GPUs (H200, T4), of which 2 fit",
        ),
        ({"model": "l4"}, "this node has no GPU of model 'l4'; it has H200, T4"),
        ({"gpus": 4}, "4 GPUs requested, this node has 3 GPUs; request fewer"),
        (
            {"gpus": 3, "memory_bytes": 100 * GIB},
            "3 GPUs with 100 GiB of memory requested, 2 of this node have that much",
        ),
        ({"gpus": 4, "memory_bytes": GIB}, "4 GPUs requested, this node has 3 GPUs; request fewer"),
    ],
)
def test_a_refusal_on_a_node_with_gpus_of_several_models(demand: dict[str, Any], words: str) -> None:
    slots = (whole(0, model="H200"), whole(1, model="H200"), whole(2, model="T4", total_bytes=16 * GIB))
    with pytest.raises(LeaseRefused, match=re.escape(words)):
        asked(opened(*slots), ALICE, **demand)


def test_memory_is_not_named_where_only_mig_devices_have_it() -> None:
    words = "1 GPU without MIG requested, this node has 0 GPUs and 2 MIG devices, which cannot be combined"
    with pytest.raises(LeaseRefused, match=words):
        asked(opened(mig(9, 0), mig(9, 1)), ALICE, whole=True, memory_bytes=10 * GIB)
    with pytest.raises(LeaseRefused, match="0 of this node have that much, the largest has 16 GiB"):
        asked(opened(mig(9, 0), mig(9, 1)), ALICE, whole=True, memory_bytes=20 * GIB)


def test_a_node_without_gpus_and_one_with_a_lost_gpu_say_so() -> None:
    with pytest.raises(LeaseRefused, match="no GPU"):
        asked(opened(), ALICE)
    with pytest.raises(LeaseRefused, match=r"this node has 2 GPUs \(1 lost\)"):
        asked(opened(whole(0), whole(1), whole(2, use=SlotUse.LOST)), ALICE, gpus=3)


def test_quotas_of_users_groups_and_hours() -> None:
    quotas = (LeaseQuotaSettings(user="*", gpus=2), LeaseQuotaSettings(group="students", gpus=3))
    users = UserFacts({"students": frozenset({"alice", "bob"})})
    queue = opened(*map(whole, range(6)), quotas=quotas, users=users)
    ids = [asked(queue, who) for who in (ALICE, ALICE, ALICE, BOB, BOB, CHEN)]
    assert set(granted(queue)) == {ids[0], ids[1], ids[3], ids[5]}
    assert queue.waits[ids[2]].detail == "user alice has 2 of 2 GPUs"
    assert queue.waits[ids[4]].detail == "group students has 3 of 3 GPUs"
    queue.end(ids[0], 1.0)
    # Three of four seats of the group are free for the one who waits longest.
    assert set(granted(queue, 1.0)) == {ids[2]}
    with pytest.raises(LeaseRefused, match="3 GPUs requested, and user chen has 0 of 2 GPUs"):
        asked(queue, CHEN, gpus=3)
    spent = opened(
        whole(0), quotas=(LeaseQuotaSettings("*", hours=10),), users=UserFacts({}, {"alice": 10, "bob": 9.9})
    )
    with pytest.raises(LeaseRefused, match=r"has used 10.0 of 10 GPU-hours in 30 days"):
        asked(spent, ALICE)
    asked(spent, BOB)


def test_a_reserved_slot_is_not_leased_beyond_its_start() -> None:
    queue = opened(whole(0), whole(1))
    reservation = queue.reserve(*ALICE, 1, 1000.0, 2000.0, 0.0)
    assert reservation.slots == ("GPU-0",)
    endless, short, long = (
        asked(queue, BOB),
        asked(queue, CHEN, limit_s=900.0),
        asked(queue, (4, "dana"), limit_s=1100.0),
    )
    assert granted(queue) == {endless: ("GPU-1",), short: ("GPU-0",)}
    queue.end(short, 500.0)
    assert granted(queue, 500.0) == {}
    assert queue.waits[long].cause is WaitCause.RESERVED
    of_owner = asked(queue, ALICE, 1000.0)
    assert granted(queue, 1000.0) == {of_owner: ("GPU-0",)}


def test_a_reservation_moves_to_a_slot_that_is_free() -> None:
    queue = opened(whole(0), whole(1))
    first, second = asked(queue, BOB), asked(queue, CHEN)
    granted(queue)
    queue.reserve(*ALICE, 1, 1000.0, 2000.0, 0.0)
    queue.end(second, 10.0)
    queue.settle(10.0)
    (reservation,) = queue.reservations.values()
    assert reservation.slots == ("GPU-1",)
    assert first in queue.leases


def test_a_reservation_prefers_a_slot_whose_lease_ends_before_it() -> None:
    """The limit counts from the start of the lease."""
    queue = opened(whole(0), whole(1))
    late, early = asked(queue, BOB, limit_s=900.0), asked(queue, CHEN, limit_s=900.0)
    assert granted(queue) == {late: ("GPU-0",), early: ("GPU-1",)}
    queue.end(late, 500.0)
    again = asked(queue, BOB, 500.0, limit_s=900.0)
    assert granted(queue, 500.0) == {again: ("GPU-0",)}
    assert queue.reserve(*ALICE, 1, 1000.0, 2000.0, 600.0).slots == ("GPU-1",)


def test_a_reservation_is_for_the_next_lease_of_its_user_only() -> None:
    queue = opened(whole(0), whole(1))
    own = asked(queue, ALICE)
    assert granted(queue) == {own: ("GPU-0",)}
    other = asked(queue, BOB)
    granted(queue)
    # Its own lease does not stand in its way: it keeps the slot that its user has.
    assert queue.reserve(*ALICE, 1, 1000.0, 2000.0, 10.0).slots == ("GPU-0",)
    assert other in queue.leases


def test_a_reservation_is_used_by_a_lease_on_one_of_its_slots() -> None:
    queue = opened(*map(whole, range(3)), settings=LeasesSettings(no_show_after_s=300.0))
    queue.reserve(*ALICE, 2, 100.0, 5000.0, 0.0)
    own = asked(queue, ALICE, 100.0)
    assert set(granted(queue, 100.0)) == {own}
    assert not queue.settle(2000.0).no_shows


def test_a_user_has_32_reservations_at_most() -> None:
    queue = opened(whole(0))
    for number in range(32):
        queue.reserve(*ALICE, 1, 100.0 * number, 100.0 * number + 50, 0.0)
    with pytest.raises(LeaseRefused, match="a user may have 32 reservations"):
        queue.reserve(*ALICE, 1, 9000.0, 9001.0, 0.0)
    queue.reserve(*BOB, 1, 9000.0, 9001.0, 0.0)


def test_a_reservation_of_no_time_is_refused() -> None:
    with pytest.raises(LeaseRefused, match="end before it begins"):
        opened(whole(0)).reserve(*ALICE, 1, 100.0, 100.0, 0.0)


def test_one_lease_without_a_limit_makes_the_start_a_guess() -> None:
    queue = opened(whole(0), settings=LeasesSettings(share_limit=2))
    asked(queue, ALICE, share=True, limit_s=100.0)
    asked(queue, BOB, share=True)
    assert len(granted(queue)) == 2
    waits = asked(queue, CHEN)
    granted(queue)
    assert queue.waits[waits].is_guess
    assert queue.waits[waits].expected_start_s is None


def test_memory_is_promised_once_also_where_free_memory_is_not_known() -> None:
    queue = opened(whole(0, free_bytes=None))
    first = asked(queue, ALICE, share=True, memory_bytes=100 * GIB)
    assert set(granted(queue)) == {first}
    asked(queue, BOB, share=True, memory_bytes=41 * GIB)
    assert granted(queue) == {}
    fits = asked(queue, CHEN, share=True, memory_bytes=40 * GIB, limit_s=60.0)
    assert set(granted(queue)) == {fits}


def test_a_client_that_is_not_back_after_a_restart_is_not_served_and_keeps_its_slot() -> None:
    before = opened(whole(0))
    holder, waits = asked(before, ALICE), asked(before, BOB)
    granted(before)
    before.end(holder, 10.0)
    queue = LeaseQueue(None, (), before.record(), 20.0)
    queue.update_slots((whole(0),), 20.0, UserFacts())
    later = asked(queue, CHEN, 20.0)
    assert granted(queue, 20.0) == {}
    assert queue.waits[waits].cause is WaitCause.KEPT
    queue.resume(waits)
    assert granted(queue, 21.0) == {waits: ("GPU-0",)}
    assert later in queue.waiting


def test_a_sharer_takes_a_slot_without_programs_first() -> None:
    queue = opened(whole(0, use=SlotUse.USED), whole(1))
    assert granted_of(queue, share=True) == ("GPU-1",)


def test_one_slot_that_is_a_guess_makes_the_start_of_a_large_request_one() -> None:
    queue = opened(whole(0), whole(1))
    asked(queue, ALICE, limit_s=100.0)
    asked(queue, BOB)
    granted(queue)
    waits = asked(queue, CHEN, gpus=2)
    granted(queue)
    assert queue.waits[waits].is_guess


def test_a_refusal_names_the_largest_gpu() -> None:
    with pytest.raises(LeaseRefused, match=r"the largest has 140(\.0)? GiB"):
        asked(opened(whole(0), mig(9, 0)), ALICE, memory_bytes=200 * GIB)


def test_a_promise_is_given_up_while_a_request_is_not_eligible() -> None:
    """An estimate from before would keep a slot for a request that its quota does not allow now."""
    quotas = (LeaseQuotaSettings("*", gpus=1),)
    queue = opened(whole(0), quotas=quotas)
    first = asked(queue, ALICE, limit_s=1000.0)
    granted(queue)
    second = asked(queue, BOB)
    granted(queue, 10.0)
    assert queue.record().promised_s == {second: 1000.0}
    more = asked(queue, BOB, 20.0)
    granted(queue, 20.0)
    assert set(queue.record().promised_s) == {second}, "an earlier request of its user comes first"
    queue.end(first, 30.0)
    assert set(granted(queue, 30.0)) == {second}
    granted(queue, 40.0)
    assert queue.waits[more].cause is WaitCause.QUOTA
    assert (queue.record().promised_s, queue.record().eligible_s) == ({}, {})


def test_an_unused_reservation_is_released_and_a_used_one_is_not() -> None:
    queue = opened(whole(0), whole(1), settings=LeasesSettings(no_show_after_s=300.0))
    queue.reserve(*ALICE, 1, 100.0, 5000.0, 0.0)
    queue.reserve(*BOB, 1, 100.0, 5000.0, 0.0)
    used = asked(queue, BOB, 100.0)
    assert used in granted(queue, 100.0)
    assert not queue.settle(399.0).no_shows
    assert [each.user for each in queue.settle(400.0).no_shows] == ["alice"]
    queue.end(used, 600.0)
    assert not queue.settle(600.0).no_shows
    assert [each.user for each in queue.settle(1000.0).no_shows] == ["bob"]
    assert not queue.reservations


def test_reservations_beyond_the_node_its_time_and_its_limits_are_refused() -> None:
    queue = opened(whole(0), whole(1))
    queue.reserve(*ALICE, 2, 100.0, 200.0, 0.0)
    for gpus, from_s, until_s, words in (
        (1, 150.0, 250.0, "other reservations overlap"),
        (3, 300.0, 400.0, "3 GPUs requested, 2 can be reserved"),
        (1, 400.0, 300.0, "end before it begins"),
        (1, 3e6, 3e6 + 1, "at most 14 days from now"),
        (1, 300.0, 9e6, "at most 31 days"),
    ):
        with pytest.raises(LeaseRefused, match=words):
            queue.reserve(*BOB, gpus, from_s, until_s, 0.0)
    queue.reserve(*BOB, 2, 200.0, 300.0, 0.0)


def test_quotas_add_up_the_reservations_of_one_time() -> None:
    quotas = (LeaseQuotaSettings("*", gpus=2), LeaseQuotaSettings(group="lab", gpus=3))
    users = UserFacts({"lab": frozenset({"alice", "bob"})})
    queue = opened(*map(whole, range(8)), quotas=quotas, users=users)
    queue.reserve(*ALICE, 2, 1000.0, 2000.0, 0.0)
    for from_s, until_s in ((1000.0, 2000.0), (0.0, 1001.0), (1999.0, 5000.0), (1200.0, 1300.0), (0.0, 9000.0)):
        with pytest.raises(LeaseRefused, match="user alice has 2 of 2 GPUs, reservations of that time included"):
            queue.reserve(*ALICE, 1, from_s, until_s, 0.0)
    queue.reserve(*ALICE, 2, 2000.0, 3000.0, 0.0)
    with pytest.raises(LeaseRefused, match="group lab has 2 of 3 GPUs"):
        queue.reserve(*BOB, 2, 2500.0, 2600.0, 0.0)
    queue.reserve(*BOB, 1, 2500.0, 2600.0, 0.0)
    queue.reserve(*CHEN, 2, 1000.0, 2000.0, 0.0)
    # Two that follow each other are never held at once.
    two = opened(*map(whole, range(8)), quotas=(LeaseQuotaSettings("*", gpus=2),))
    two.reserve(*ALICE, 1, 0.0, 1000.0, 0.0)
    two.reserve(*ALICE, 1, 1000.0, 2000.0, 0.0)
    two.reserve(*ALICE, 1, 0.0, 2000.0, 0.0)


def test_a_reservation_that_is_not_used_counts_against_its_users_quota() -> None:
    quotas = (LeaseQuotaSettings("*", gpus=2),)
    queue = opened(*map(whole, range(4)), quotas=quotas)
    queue.reserve(*ALICE, 2, 0.0, 1000.0, 0.0)
    on_reserved = asked(queue, ALICE)
    assert granted(queue) == {on_reserved: ("GPU-0",)}
    rest = asked(queue, ALICE)
    assert granted(queue) == {rest: ("GPU-1",)}, "its own reserved slot comes first"
    assert granted_of_quota(queue) == "user alice has 2 of 2 GPUs"
    # The reserved GPUs are free, but too small: a third GPU would be one more than the quota.
    small = opened(whole(0, total_bytes=GIB), whole(1, total_bytes=GIB), whole(2), quotas=quotas)
    small.reserve(*ALICE, 2, 0.0, 1000.0, 0.0)
    large = asked(small, ALICE, memory_bytes=80 * GIB)
    assert granted(small) == {}
    assert small.waits[large].detail == "user alice has 2 of 2 GPUs"
    assert granted(small, 1000.0) == {large: ("GPU-2",)}


def granted_of_quota(queue: LeaseQueue) -> str:
    id = asked(queue, ALICE)
    assert granted(queue) == {}
    return queue.waits[id].detail


def test_a_request_waits_for_its_own_reservation_within_the_quota() -> None:
    queue = opened(whole(0), whole(1), quotas=(LeaseQuotaSettings("*", gpus=2),))
    early = asked(queue, BOB, gpus=2)
    granted(queue)
    queue.reserve(*ALICE, 2, 10.0, 1000.0, 0.0)
    waits = asked(queue, ALICE, 20.0, gpus=2)
    assert granted(queue, 20.0) == {}
    assert queue.waits[waits].cause is WaitCause.BUSY, "it counts the GPUs that it waits for once"
    queue.end(early, 30.0)
    assert granted(queue, 30.0) == {waits: ("GPU-0", "GPU-1")}


def test_a_reservation_of_another_member_counts_against_the_quota_of_the_group() -> None:
    """Also while the request waits for a GPU: it does not wait for those of the other member."""
    users = UserFacts({"students": frozenset({"alice", "bob"})})
    queue = opened(*map(whole, range(3)), quotas=(LeaseQuotaSettings(group="students", gpus=2),), users=users)
    asked(queue, CHEN, gpus=3)
    granted(queue)
    queue.reserve(*BOB, 2, 10.0, 1000.0, 0.0)
    waits = asked(queue, ALICE, 20.0)
    assert granted(queue, 20.0) == {}
    assert queue.waits[waits].detail == "group students has 2 of 2 GPUs"


def test_a_lease_that_has_lasted_as_long_as_the_longest_before_it_is_not_expected_to_end_now() -> None:
    durations = LeaseDurations([("alice", 5000.0)])
    lease = Lease(LeaseRequest(*ALICE, 0.0), ("GPU-0",), 1.0, 0.0)
    assert durations.left_s(lease, 4000.0) == 1000.0
    assert durations.left_s(lease, 5000.0) == 5000.0, "as long again"


def test_a_lease_is_expected_to_last_as_long_as_three_of_four_before_it() -> None:
    durations = LeaseDurations([("alice", seconds) for seconds in (400.0, 100.0, 900.0, 200.0, 300.0)])
    assert durations.expected_s(LeaseRequest(*ALICE, 0.0)) == 400.0
    assert durations.expected_s(LeaseRequest(*ALICE, 0.0, limit_s=50.0)) == 50.0


def test_hours_that_are_not_known_are_shown_as_unknown_and_refuse_no_request() -> None:
    queue = opened(whole(0), quotas=(LeaseQuotaSettings("*", hours=10),), users=UserFacts({}, None))
    first = asked(queue, ALICE)
    assert set(granted(queue)) == {first}
    assert [use.used_hours for use in queue.quota_uses()["alice"]] == [None]


def test_one_waiting_request_keeps_no_more_reservations_than_it_needs() -> None:
    queue = opened(*map(whole, range(4)), settings=LeasesSettings(no_show_after_s=300.0))
    others = asked(queue, BOB, gpus=4)
    granted(queue)
    first = queue.reserve(*ALICE, 1, 100.0, 5000.0, 0.0)
    queue.reserve(*ALICE, 2, 101.0, 5000.0, 0.0)
    queue.reserve(*ALICE, 1, 102.0, 5000.0, 0.0)
    asked(queue, ALICE, 110.0)
    assert granted(queue, 110.0) == {}
    queue.settle(500.0)
    assert set(queue.reservations) == {first.id}
    assert others in queue.leases


def test_a_request_ages_over_restarts_of_the_agent() -> None:
    """Four GPUs are never free at once while later requests pass: from `pass_limit_s` on they are kept for it."""
    slots = tuple(map(whole, range(4)))
    settings = LeasesSettings(pass_limit_s=3600.0)
    queue = opened(*slots, settings=settings)
    now_s, ends, large = 0.0, {}, ""
    for number in range(4):
        ends[asked(queue, (10 + number, f"user{number}"))] = 600.0 + 600.0 * number
    granted(queue)
    large = asked(queue, ALICE, gpus=4)
    granted(queue)
    uid = 20
    while large in queue.waiting and now_s < 20_000:
        now_s += 300.0
        for id in [id for id, end_s in ends.items() if end_s <= now_s]:
            queue.end(id, now_s)
            del ends[id]
        if len(queue.waiting) < 4:
            uid += 1
            asked(queue, (uid, f"user{uid}"), now_s, limit_s=2400.0)
        if now_s % 1500 == 0:
            queue = LeaseQueue(settings, (), queue.record(), now_s)
            queue.update_slots(slots, now_s, UserFacts())
            for id in (*queue.leases, *queue.waiting):
                queue.resume(id)
        for id in granted(queue, now_s):
            ends[id] = now_s + 2400.0
    assert now_s <= 3600.0 + 2400.0 + 300.0


def test_what_a_request_was_promised_survives_a_restart() -> None:
    queue = opened(whole(0))
    asked(queue, ALICE, limit_s=1000.0)
    granted(queue)
    waits = asked(queue, BOB)
    granted(queue, 10.0)
    record = queue.record()
    assert (record.eligible_s, record.promised_s) == ({waits: 10.0}, {waits: 1000.0})
    # The lease has outlasted its limit: an estimate of now would be later.
    again = LeaseQueue(record=record, now_s=1500.0)
    again.update_slots((whole(0),), 1500.0, UserFacts())
    again.resume(waits)
    again.settle(1500.0)
    assert (again.record().eligible_s, again.record().promised_s) == ({waits: 10.0}, {waits: 1000.0})


def test_a_request_over_its_quota_does_not_age_and_loses_its_promise() -> None:
    """Otherwise a user could queue first, use up the hours, and pass all others later."""
    queue = opened(whole(0), quotas=(LeaseQuotaSettings("alice", hours=10),))
    running = asked(queue, BOB, limit_s=1000.0)
    granted(queue)
    waits = asked(queue, ALICE)
    granted(queue, 10.0)
    assert (queue.record().eligible_s, queue.record().promised_s) == ({waits: 10.0}, {waits: 1000.0})
    queue.update_slots((whole(0),), 50.0, UserFacts({}, {"alice": 11}))
    granted(queue, 50.0)
    assert queue.waits[waits].cause is WaitCause.QUOTA
    assert (queue.record().eligible_s, queue.record().promised_s) == ({}, {})
    queue.update_slots((whole(0),), 60.0, UserFacts({}, {"alice": 9}))
    granted(queue, 60.0)
    assert (queue.record().eligible_s, queue.record().promised_s) == ({waits: 60.0}, {waits: 1000.0})
    queue.end(running, 70.0)
    assert set(granted(queue, 70.0)) == {waits}
    assert (queue.record().eligible_s, queue.record().promised_s) == ({}, {})


def test_a_restart_holds_slots_for_60_s_and_places_for_10_s() -> None:
    before = opened(whole(0), whole(1))
    kept, lost = asked(before, ALICE), asked(before, BOB)
    granted(before)
    waits, gone = asked(before, CHEN), asked(before, (4, "dana"))
    granted(before)
    queue = LeaseQueue(None, (), before.record(), 1000.0)
    queue.update_slots((whole(0), whole(1)), 1000.0, UserFacts())
    newcomer = asked(queue, (5, "emeka"), 1000.0)
    assert granted(queue, 1000.0) == {}
    assert isinstance(queue.resume(kept), Lease)
    assert queue.resume(waits) is before.waiting[waits]
    assert queue.settle(1000.0 + HOLD_PLACE_S).dropped == (gone,)
    assert not queue.settle(1000.0 + HOLD_LEASE_S - 1).grants
    settled = queue.settle(1000.0 + HOLD_LEASE_S)
    assert settled.dropped == (lost,)
    # The programs of a lease whose client did not come back may still run: its slot is read first.
    assert not settled.grants
    queue.update_slots((whole(0), whole(1)), 1061.0, UserFacts())
    assert granted(queue, 1061.0) == {waits: ("GPU-1",)}
    assert newcomer in queue.waiting


def test_a_slot_whose_client_died_is_read_before_it_is_given_again() -> None:
    queue = opened(whole(0))
    dead = asked(queue, ALICE)
    granted(queue)
    waits = asked(queue, BOB)
    queue.end(dead, 10.0, clean=False)
    assert granted(queue, 10.0) == {}
    queue.update_slots((whole(0),), 9.0, UserFacts())
    assert granted(queue, 11.0) == {}
    queue.update_slots((whole(0),), 12.0, UserFacts())
    assert granted(queue, 12.0) == {waits: ("GPU-0",)}


def test_a_slot_is_free_within_5_s_also_where_gpus_are_read_seldom() -> None:
    queue = opened(whole(0))
    dead = asked(queue, ALICE)
    granted(queue)
    waits = asked(queue, BOB)
    queue.end(dead, 10.0, clean=False)
    assert granted(queue, 13.9) == {}
    assert granted(queue, 14.0) == {waits: ("GPU-0",)}


def test_nothing_is_granted_while_the_driver_does_not_answer() -> None:
    queue = opened(whole(0))
    queue.forget_slots()
    waits = asked(queue, ALICE, gpus=9)
    assert granted(queue) == {}
    assert queue.waits[waits].cause is WaitCause.UNREAD


def test_setting_the_clock_changes_no_age_and_no_reservation() -> None:
    queue = opened(whole(0))
    first = asked(queue, ALICE, 100.0)
    granted(queue, 100.0)
    asked(queue, BOB, 110.0)
    granted(queue, 110.0)
    queue.reserve(*CHEN, 1, 5000.0, 6000.0, 110.0)
    queue.shift(1000.0)
    assert queue.leases[first].since_s == 1100.0
    assert [each.from_s for each in queue.reservations.values()] == [5000.0]
    assert granted(queue, 1110.0) == {}
    queue.end(first, 1110.0)
    assert queue.record().ended == (("alice", 10.0),)


@pytest.mark.parametrize("step_s", [5000.0, -5000.0])
def test_setting_the_clock_neither_shortens_nor_lengthens_the_time_to_come_back(step_s: float) -> None:
    before = opened(whole(0))
    kept = asked(before, ALICE)
    granted(before)
    queue = LeaseQueue(None, (), before.record(), 9000.0)
    queue.update_slots((whole(0),), 9000.0, UserFacts())
    queue.shift(step_s)
    assert queue.settle(9000.0 + step_s + HOLD_LEASE_S - 1).dropped == ()
    assert queue.settle(9000.0 + step_s + HOLD_LEASE_S).dropped == (kept,)


def test_a_lost_gpu_keeps_its_lease_and_is_not_given_again() -> None:
    queue = opened(whole(0), whole(1))
    first = asked(queue, ALICE)
    granted(queue)
    queue.update_slots((whole(0)._replace(use=SlotUse.LOST), whole(1)), 1.0, UserFacts())
    assert first in queue.leases
    queue.end(first, 2.0)
    second, third = asked(queue, BOB, 2.0), asked(queue, CHEN, 2.0)
    assert granted(queue, 2.0) == {second: ("GPU-1",)}
    assert third in queue.waiting


def test_a_lease_under_mps_has_one_whole_gpu_on_which_no_program_is_paused() -> None:
    queue = opened(mig(9, 0), whole(0, use=SlotUse.USED, in_turns=True), whole(1, use=SlotUse.USED))
    first = asked(queue, ALICE, share=True, mps="per_user")
    assert granted(queue) == {first: ("GPU-1",)}
    plain = asked(queue, BOB, share=True, gpus=1, memory_bytes=100 * GIB)
    assert granted(queue) == {plain: ("GPU-0",)}, "turns are for leases without MPS"
    with pytest.raises(LeaseRefused, match=r"under MPS .* a command has one GPU"):
        asked(queue, CHEN, share=True, mps="per_user", gpus=2)


def test_leases_with_and_without_mps_share_no_gpu() -> None:
    queue = opened(whole(0))
    with_mps = asked(queue, ALICE, share=True, mps="per_user")
    assert set(granted(queue)) == {with_mps}
    without = asked(queue, BOB, share=True)
    assert granted(queue) == {}
    also = asked(queue, CHEN, share=True, mps="per_user")
    assert set(granted(queue)) == {also}, "it is expected to end when the older request can start"
    queue.end(with_mps, 1.0)
    assert granted(queue, 1.0) == {}
    queue.end(also, 2.0)
    assert set(granted(queue, 2.0)) == {without}


def test_a_part_of_a_gpu_is_promised_once_and_quotas_set_it() -> None:
    students = LeaseQuotaSettings(group="students", sm_percent=25)
    quotas = (LeaseQuotaSettings(user="*", sm_percent=60), students)
    users = UserFacts({"students": frozenset({"bob"})})
    queue = opened(whole(0), quotas=quotas, users=users)
    for who, requested, gets in ((ALICE, None, 60), (BOB, None, 25), (CHEN, 15, 15)):
        id = asked(queue, who, share=True, mps="per_user", sm_percent=requested)
        (lease,) = queue.settle(0.0).grants
        assert (lease.request.id, lease.request.sm_percent) == (id, gets)
    asked(queue, CHEN, share=True, mps="per_user", sm_percent=1)
    assert queue.settle(0.0).grants == ()
    with pytest.raises(LeaseRefused, match="--sm 30 requested, and the quota of bob is 25 %"):
        asked(queue, BOB, share=True, mps="per_user", sm_percent=30)
    plain = asked(queue, BOB, gpus=1)
    assert queue.waiting[plain].sm_percent is None


def test_a_request_for_whole_gpus_gets_no_mig_device_and_one_for_all_of_the_memory_gets_the_gpu() -> None:
    queue = opened(mig(9, 0), whole(0, use=SlotUse.ALLOCATED))
    waiting = asked(queue, ALICE, whole=True)
    assert granted(queue) == {}
    queue.update_slots([mig(9, 0), whole(0)], 1.0, UserFacts())
    assert granted(queue, 1.0) == {waiting: ("GPU-0",)}
    assert granted_of(opened(whole(0)), memory_bytes=140 * GIB) == ("GPU-0",)
    with pytest.raises(LeaseRefused, match="2 GPUs requested"):
        asked(opened(whole(0), mig(9, 0), mig(9, 1)), ALICE, gpus=2)


def test_of_gpus_of_several_sizes_the_largest_or_the_smallest_with_the_memory_is_chosen() -> None:
    slots = whole(0, total_bytes=80 * GIB), whole(1, total_bytes=40 * GIB), whole(2), whole(3, total_bytes=None)
    assert granted_of(opened(*slots)) == ("GPU-2",)
    assert granted_of(opened(*slots), memory_bytes=30 * GIB) == ("GPU-1",)
    assert granted_of(opened(*slots), memory_bytes=50 * GIB) == ("GPU-0",)


def test_a_later_reservation_of_ones_own_is_left_for_later() -> None:
    queue = opened(whole(0), whole(1))
    (reserved,) = queue.reserve(*ALICE, 1, 1000.0, 2000.0, 0.0).slots
    assert granted_of(queue, limit_s=10.0) != (reserved,)


def test_what_is_chosen_counts_for_the_quota_and_not_the_smallest_that_would_fit() -> None:
    queue = opened(whole(0), mig(9, 0)._replace(use=SlotUse.ALLOCATED), quotas=(LeaseQuotaSettings("*", gpus=0.5),))
    over = asked(queue, ALICE)
    assert granted(queue) == {}
    assert queue.waits[over].cause is WaitCause.QUOTA


def test_a_request_that_no_longer_fits_keeps_no_gpu_from_others() -> None:
    queue = opened(whole(0), whole(1, use=SlotUse.ALLOCATED))
    big = asked(queue, ALICE, gpus=2)
    assert granted(queue) == {}
    queue.update_slots([whole(0), whole(1, use=SlotUse.LOST)], 1.0, UserFacts())
    small, later = asked(queue, BOB, 1.0), asked(queue, ALICE, 1.0)
    assert granted(queue, 1.0) == {small: ("GPU-0",)}
    assert [queue.waits[id].cause for id in (big, later)] == [WaitCause.BUSY, WaitCause.EARLIER]
    assert queue.waits[big].start_s is None


def test_reservations_before_and_after_do_not_count_against_the_quota_of_a_new_one() -> None:
    queue = opened(*map(whole, range(4)), quotas=(LeaseQuotaSettings("*", gpus=2),))
    queue.reserve(*ALICE, 2, 200.0, 300.0, 0.0)
    queue.reserve(*ALICE, 2, 900.0, 1000.0, 0.0)
    queue.reserve(*ALICE, 2, 100.0, 200.0, 0.0)
    queue.reserve(*ALICE, 2, 300.0, 900.0, 0.0)
    with pytest.raises(LeaseRefused, match="reservations of that time included"):
        queue.reserve(*ALICE, 1, 299.0, 301.0, 0.0)


def test_nothing_is_reserved_while_the_gpus_cannot_be_read() -> None:
    queue = opened(whole(0))
    queue.forget_slots()
    with pytest.raises(LeaseRefused, match="the GPUs could not be read"):
        queue.reserve(*ALICE, 1, 100.0, 200.0, 0.0)


def test_a_request_keeps_its_age_when_the_clock_is_set() -> None:
    queue = opened(whole(0, use=SlotUse.ALLOCATED))
    asked(queue, ALICE, 50.0)
    queue.shift(-1000.0)
    assert [request.arrived_s for request in queue.record().waiting] == [-950.0]


def test_what_a_user_has_used_of_each_quota() -> None:
    quotas = (
        LeaseQuotaSettings("alice", gpus=2),
        LeaseQuotaSettings("*", hours=10),
        LeaseQuotaSettings(group="students", gpus=3, hours=20),
        LeaseQuotaSettings("bob", gpus=1),
        LeaseQuotaSettings("alice", sm_percent=50),
    )
    facts = UserFacts({"students": frozenset({"alice", "bob"})}, {"alice": 4.0, "bob": 5.0})
    assert quota_uses(quotas, "alice", {"bob": 1.0}, facts) == (
        LeaseQuotaUse("user alice", 2, 0.0, None, 4.0),
        LeaseQuotaUse("user alice", None, 0.0, 10, 4.0),
        LeaseQuotaUse("group students", 3, 1.0, 20, 9.0),
    )
    chen = quota_uses(quotas, "chen", {}, facts)
    assert chen == (LeaseQuotaUse("user chen", None, 0.0, 10, 0.0),)


def test_how_long_the_leases_of_a_user_last() -> None:
    durations = LeaseDurations([("alice", 100.0), ("bob", 9000.0)])
    expected_s = [durations.expected_s(LeaseRequest(*who, 0.0)) for who in (ALICE, BOB)]
    assert expected_s == [100.0, 9000.0]


def test_when_each_gpu_is_expected_to_be_free() -> None:
    """Only where that is known: not next to an allocation, and not after a lease or a request without a limit."""
    queue = opened(whole(0), whole(1), whole(2, use=SlotUse.ALLOCATED), whole(3))
    limited, unlimited = asked(queue, ALICE, limit_s=100.0, slot="0"), asked(queue, BOB, slot="1")
    assert set(granted(queue)) == {limited, unlimited}
    assert queue.ready_s == {"GPU-0": 100.0, "GPU-3": 0.0}
    waits = asked(queue, CHEN, limit_s=50.0, slot="0")
    granted(queue)
    assert queue.waits[waits].start_s == 100.0
    assert queue.ready_s == {"GPU-0": 150.0, "GPU-3": 0.0}
    queue.end(waits, 0.0)
    asked(queue, CHEN, slot="0")
    granted(queue)
    assert queue.ready_s == {"GPU-3": 0.0}, "how long the request will need it is not known"


def test_a_request_whose_start_is_not_known_changes_no_estimate() -> None:
    queue = opened(whole(0), whole(1, use=SlotUse.ALLOCATED))
    asked(queue, ALICE, limit_s=100.0)
    granted(queue)
    big = asked(queue, BOB, gpus=2)
    granted(queue)
    assert queue.waits[big].start_s is None
    assert queue.ready_s == {"GPU-0": 100.0}


def test_a_request_that_waits_for_an_earlier_one_of_its_user_keeps_nothing_from_others() -> None:
    queue = opened(whole(0), whole(1))
    asked(queue, BOB, limit_s=100.0)
    granted(queue)
    first, second = asked(queue, ALICE, slot="0", limit_s=60.0), asked(queue, ALICE, slot="1", limit_s=60.0)
    other = asked(queue, CHEN)
    assert granted(queue) == {other: ("GPU-1",)}
    assert queue.waits[second].cause is WaitCause.EARLIER
    assert queue.waits[first].expected_start_s == 100.0


def test_a_known_start_is_known_for_the_next_request_of_the_user_too() -> None:
    queue = opened(whole(0))
    asked(queue, BOB, limit_s=100.0)
    granted(queue)
    waits = [asked(queue, ALICE, limit_s=60.0) for _ in range(2)]
    granted(queue)
    assert [queue.waits[id].expected_start_s for id in waits] == [100.0, 160.0]


def test_when_one_that_shares_could_join() -> None:
    """At once where its own client is missing; after the request for which the GPU is kept, where there is one."""
    queue = opened(whole(0))
    asked(queue, BOB, share=True, limit_s=100.0)
    granted(queue)
    asked(queue, (4, "dana"), limit_s=50.0)
    joins = asked(queue, CHEN, share=True)
    assert granted(queue) == {}
    assert queue.waits[joins].start_s == 150.0
    free = LeaseRequest(*CHEN, 0.0, id="7", number=7, share=True)
    shared = Lease(LeaseRequest(*BOB, 0.0, id="1", number=1, share=True, limit_s=100.0), ("GPU-0",), 1.0, 0.0)
    board = LeaseBoard({"GPU-0": whole(0)}, (shared,), (free,), absent=frozenset({"7"}))
    assert make_plan(board, 10.0).waits["7"].start_s == 10.0


def test_which_reservations_count_against_the_quota_of_a_request() -> None:
    """Those of now, without the GPUs that the request takes or waits for; a MIG device is a part of a GPU."""

    def is_over(reserved: Reservation, quota: float, *slots: LeasableSlot, held: int = 0) -> bool:
        request = LeaseRequest(*ALICE, 0.0, id="9", number=9)
        leases = tuple(
            Lease(LeaseRequest(*ALICE, 0.0, id=f"{at}", number=at), (f"GPU-{8 + at}",), 1.0, 0.0) for at in range(held)
        )
        quotas = (LeaseQuotaSettings("*", gpus=quota),)
        board = LeaseBoard(
            {slot.uuid: slot for slot in slots}, leases, (request,), reservations=(reserved,), quotas=quotas
        )
        wait = make_plan(board, 10.0).waits.get("9")
        return wait is not None and wait.cause is WaitCause.QUOTA

    busy = [whole(at, use=SlotUse.ALLOCATED) for at in range(2)]
    both = Reservation("r1", *ALICE, 2, 0.0, 100.0, ("GPU-0", "GPU-1"))
    assert is_over(both, 2, *busy, held=1), "one in use, one awaited, one reserved"
    assert not is_over(both, 3, *busy, held=1)
    later = Reservation("r1", *ALICE, 2, 50.0, 100.0, ("GPU-0", "GPU-1"))
    assert not is_over(later, 2, *busy, held=1)
    devices = Reservation("r1", *ALICE, 2, 0.0, 100.0, ("MIG-9-0", "MIG-9-1"))
    assert not is_over(devices, 0.3, mig(9, 0), mig(9, 1))
    assert is_over(devices, 0.2, mig(9, 0), mig(9, 1))


def test_whole_gpus_are_reserved_and_mig_devices_where_there_is_none() -> None:
    queue = opened(whole(0), mig(9, 0), mig(9, 1))
    with pytest.raises(LeaseRefused, match="2 GPUs requested, 1 can be reserved on this node"):
        queue.reserve(*ALICE, 2, 10.0, 100.0, 0.0)
    assert queue.reserve(*ALICE, 1, 10.0, 100.0, 0.0).slots == ("GPU-0",)
    devices = opened(mig(9, 0), mig(9, 1))
    assert devices.reserve(*ALICE, 2, 10.0, 100.0, 0.0).slots == ("MIG-9-0", "MIG-9-1")


def test_the_leases_of_a_user_add_up_in_its_quota() -> None:
    queue = opened(*map(whole, range(3)), quotas=(LeaseQuotaSettings("*", gpus=3),))
    for _ in range(2):
        asked(queue, ALICE)
    granted(queue)
    (use,) = queue.quota_uses()["alice"]
    assert use == LeaseQuotaUse("user alice", 3, 2.0, None, None)


def test_nothing_fits_until_the_gpus_were_read() -> None:
    assert LeaseQueue().fitting(LeaseRequest(*ALICE, 0.0)) == []


def test_the_record_is_to_be_written_when_the_age_of_a_request_is_new() -> None:
    queue = opened(whole(0))
    asked(queue, BOB)
    assert not queue.settle(0.0).aged
    asked(queue, ALICE, 1.0)
    assert [queue.settle(at_s).aged for at_s in (1.0, 2.0)] == [True, False]
