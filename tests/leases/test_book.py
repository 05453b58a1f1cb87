"""The rules of the queue, one by one."""

from dataclasses import replace

import pytest

from gpucommons.leases.policy.book import HOLD_LEASE_S, HOLD_PLACE_S, LeaseDemand, LeasePolicy
from gpucommons.leases.policy.values import (
    KeptRoom,
    LeasableSlot,
    LeaseQuota,
    LeaseRefused,
    LeaseTerms,
    SlotUse,
    UserFacts,
)
from gpucommons.model.leases import Lease, WaitCause
from leases.book_world import GIB, mig, whole

ALICE, BOB, CHEN = (1, "alice"), (2, "bob"), (3, "chen")


def opened(*slots: LeasableSlot, terms: LeaseTerms | None = None, users: UserFacts | None = None) -> LeasePolicy:
    book = LeasePolicy(terms)
    book.update_slots(slots, 0.0, users or UserFacts())
    return book


def granted(book: LeasePolicy, now_s: float = 0.0) -> dict[str, tuple[str, ...]]:
    return {lease.request.id: lease.slots for lease in book.settle(now_s).grants}


def asked(book: LeasePolicy, who: tuple[int, str], now_s: float = 0.0, **demand: object) -> str:
    return book.request(LeaseDemand(*who, **demand), now_s).id  # type: ignore[arg-type]


def test_the_user_with_the_fewest_gpus_comes_first_then_the_oldest() -> None:
    book = opened(whole(0), whole(1))
    first = asked(book, ALICE)
    second = asked(book, BOB)
    assert set(granted(book)) == {first, second}
    of_alice, of_chen, of_bob = asked(book, ALICE), asked(book, CHEN), asked(book, BOB)
    assert granted(book) == {}
    assert sorted(book.waits, key=lambda id: book.waits[id].position) == [of_chen, of_alice, of_bob]
    book.end(second, 5.0)
    # Alice has one, bob and chen have none: chen's request is older than bob's.
    assert granted(book, 5.0) == {of_chen: ("GPU-1",)}
    book.end(first, 6.0)
    assert granted(book, 6.0) == {of_alice: ("GPU-0",)}


def test_room_that_a_parked_program_is_about_to_take_is_not_given_away() -> None:
    kept = KeptRoom(50 * GIB, frozenset({"1"}))
    crowded = whole(0, free_bytes=90 * GIB, use=SlotUse.USED, kept=(kept,))
    book = opened(crowded)
    first = asked(book, ALICE, share=True, memory_bytes=50 * GIB)
    second = asked(book, BOB, share=True, memory_bytes=50 * GIB)
    assert (first, second) == ("1", "2")
    assert set(granted(book)) == {first}, "the program made room for it"
    assert book.waits[second].cause is WaitCause.BUSY, "parking may admit it"
    book.end(first, 5.0)
    book.update_slots([replace(crowded, free_bytes=99 * GIB)], 6.0, UserFacts())
    assert granted(book, 6.0) == {}, "it comes after the program"
    book.update_slots([replace(crowded, free_bytes=100 * GIB)], 7.0, UserFacts())
    assert set(granted(book, 7.0)) == {second}, "there is room for both"


def test_a_gpu_to_which_a_parked_program_comes_back_is_not_free() -> None:
    book = opened(whole(0, kept=(KeptRoom(GIB),)))
    alone = asked(book, ALICE)
    assert granted(book) == {}
    assert book.waits[alone].cause is WaitCause.BUSY
    book.update_slots([whole(0)], 5.0, UserFacts())
    assert set(granted(book, 5.0)) == {alone}


def test_requests_of_a_user_keep_their_order_though_a_later_one_would_fit() -> None:
    book = opened(whole(0), whole(1), whole(2, use=SlotUse.ALLOCATED))
    big = asked(book, ALICE, gpus=3)
    small = asked(book, ALICE)
    assert granted(book) == {}
    assert [book.waits[id].cause for id in (big, small)] == [WaitCause.BUSY, WaitCause.EARLIER]


def test_a_small_request_passes_a_big_one_only_if_it_ends_before_the_estimate() -> None:
    book = opened(whole(0), whole(1))
    running = asked(book, ALICE, limit_s=1000.0)
    assert granted(book) == {running: ("GPU-0",)}
    big = asked(book, BOB, gpus=2)
    assert granted(book) == {}
    assert book.waits[big].start_s == 1000.0
    long, short = asked(book, CHEN, limit_s=1500.0), asked(book, (4, "dana"), limit_s=900.0)
    assert granted(book, 10.0) == {short: ("GPU-1",)}
    assert book.waits[long].cause is WaitCause.KEPT
    book.end(short, 200.0)
    # 900 s from now on would end after the estimate.
    late = asked(book, (5, "emeka"), 200.0, limit_s=900.0)
    assert granted(book, 200.0) == {}
    assert book.waits[late].cause is WaitCause.KEPT
    book.end(running, 900.0)
    assert set(granted(book, 900.0)) == {big}


def test_the_estimate_is_kept_when_the_running_lease_lasts_longer() -> None:
    """Otherwise an estimate that moves would let later requests pass again and again."""
    book = opened(whole(0), whole(1), terms=LeaseTerms(pass_limit_s=10_000.0))
    asked(book, ALICE, limit_s=100.0)
    granted(book)
    asked(book, BOB, gpus=2)
    granted(book)
    asked(book, CHEN, 90.0, limit_s=50.0)
    assert granted(book, 90.0) == {}
    assert granted(book, 500.0) == {}


def test_a_start_that_nothing_is_known_of_is_not_shown() -> None:
    book = opened(whole(0))
    running = asked(book, ALICE)
    granted(book)
    second, third = asked(book, BOB, 1.0, limit_s=60.0), asked(book, CHEN, 2.0)
    granted(book, 10.0)
    # The queue has to plan with a number; people would take it for an estimate.
    assert [book.waits[id].start_s is not None for id in (second, third)] == [True, True]
    assert [book.waits[id].expected_start_s for id in (second, third)] == [None, None]
    book.end(running, 500.0)
    assert set(granted(book, 500.0)) == {second}
    granted(book, 510.0)
    assert book.waits[third].expected_start_s == 560.0, "the limit of the second"
    fourth = asked(book, ALICE, 520.0)
    granted(book, 520.0)
    assert book.waits[fourth].expected_start_s == pytest.approx(560.0 + 500.0), "as long as the first"
    book.end(second, 600.0)
    granted(book, 600.0)
    granted(book, 1101.0)
    assert book.waits[fourth].expected_start_s is None, "none has lasted as long as the third"


def test_a_start_behind_an_earlier_request_whose_start_is_not_known_is_not_known() -> None:
    book = opened(whole(0), mig(9, 0))
    asked(book, ALICE, memory_bytes=100 * GIB)
    asked(book, BOB, memory_bytes=10 * GIB, limit_s=60.0)
    assert len(granted(book)) == 2
    large, small = (asked(book, CHEN, 1.0, memory_bytes=size * GIB) for size in (100, 10))
    granted(book, 1.0)
    assert [book.waits[id].cause for id in (large, small)] == [WaitCause.BUSY, WaitCause.EARLIER]
    assert [book.waits[id].expected_start_s for id in (large, small)] == [None, None]


def test_sharing_takes_a_free_slot_first_and_then_joins_others_up_to_the_limit() -> None:
    book = opened(whole(0), whole(1), terms=LeaseTerms(share_limit=2))
    ids = [asked(book, (n, f"user{n}"), share=True) for n in range(5)]
    found = granted(book)
    assert [found.get(id) for id in ids] == [("GPU-0",), ("GPU-1",), ("GPU-0",), ("GPU-1",), None]
    exclusive = asked(book, ALICE)
    book.end(ids[0], 1.0)
    assert exclusive not in granted(book, 1.0)


def test_sharing_joins_programs_without_a_lease_but_no_allocation() -> None:
    book = opened(whole(0, use=SlotUse.ALLOCATED), whole(1, use=SlotUse.USED))
    shared, exclusive = asked(book, ALICE, share=True), asked(book, BOB)
    assert granted(book) == {shared: ("GPU-1",)}
    assert book.waits[exclusive].cause is WaitCause.BUSY


def test_memory_that_sharers_were_promised_is_not_promised_twice() -> None:
    book = opened(whole(0))
    first = asked(book, ALICE, share=True, memory_bytes=100 * GIB)
    second = asked(book, BOB, share=True, memory_bytes=60 * GIB)
    third = asked(book, CHEN, share=True, memory_bytes=40 * GIB, limit_s=10.0)
    assert set(granted(book)) == {first, third}
    assert second in book.waiting


def test_what_a_lease_does_not_use_yet_is_kept_next_to_programs_without_a_lease() -> None:
    """Programs without a lease have 90 GiB. What leases use is not free, and does not count twice."""
    slot = whole(0, use=SlotUse.USED, free_bytes=50 * GIB)
    book = opened(slot)
    first = asked(book, ALICE, share=True, memory_bytes=30 * GIB)
    second = asked(book, BOB, share=True, memory_bytes=30 * GIB)
    assert granted(book).keys() == {first}
    book.update_slots((replace(slot, free_bytes=25 * GIB, used={first: 25 * GIB}),), 1.0, UserFacts())
    assert granted(book, 1.0) == {}
    # Those without a lease release 10 GiB: of 35 free ones, 5 are promised.
    book.update_slots((replace(slot, free_bytes=35 * GIB, used={first: 25 * GIB}),), 2.0, UserFacts())
    assert granted(book, 2.0).keys() == {second}


def test_a_lease_that_uses_more_than_it_declared_leaves_the_room_of_the_others() -> None:
    """Alice uses 70 GiB instead of 10, Bob nothing yet of his 30: of 70 free GiB, 40 can be given."""
    book = opened(whole(0))
    alice = asked(book, ALICE, share=True, memory_bytes=10 * GIB)
    bob = asked(book, BOB, share=True, memory_bytes=30 * GIB)
    assert granted(book).keys() == {alice, bob}
    book.update_slots((whole(0, free_bytes=70 * GIB, used={alice: 70 * GIB}),), 1.0, UserFacts())
    chen = asked(book, CHEN, share=True, memory_bytes=41 * GIB)
    assert granted(book, 1.0) == {}
    book.end(chen, 1.0)
    chen = asked(book, CHEN, share=True, memory_bytes=40 * GIB)
    assert granted(book, 1.0).keys() == {chen}


def test_what_a_lease_has_parked_is_not_promised_on_the_gpu() -> None:
    """Alice's 100 GiB wait in host memory, and Bob's 60 are not used yet."""
    book = opened(whole(0))
    alice = asked(book, ALICE, share=True, memory_bytes=100 * GIB)
    assert granted(book).keys() == {alice}
    book.update_slots((whole(0, parked={alice: 100 * GIB}),), 1.0, UserFacts())
    bob = asked(book, BOB, share=True, memory_bytes=60 * GIB)
    chen = asked(book, CHEN, share=True, memory_bytes=90 * GIB)
    assert granted(book, 1.0).keys() == {bob}
    assert chen in book.waiting


def test_a_stated_memory_takes_the_smallest_slot_and_no_memory_the_largest() -> None:
    book = opened(mig(9, 0), whole(0))
    assert granted_of(book, memory_bytes=10 * GIB) == ("MIG-9-0",)
    assert granted_of(book) == ("GPU-0",)


def granted_of(book: LeasePolicy, **demand: object) -> tuple[str, ...]:
    id = asked(book, ALICE, **demand)  # type: ignore[arg-type]
    return granted(book)[id]


def test_free_memory_counts_not_only_the_total() -> None:
    book = opened(whole(0, free_bytes=5 * GIB), whole(1))
    assert granted_of(book, memory_bytes=20 * GIB) == ("GPU-1",)


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        ({"gpus": 9}, "9 GPUs requested, this node has 2 GPUs and 1 MIG devices"),
        ({"gpus": 3}, "3 GPUs requested, this node has 2 GPUs"),
        ({"memory_bytes": 200 * GIB}, "with 200.0 GiB of memory requested, 0 of this node have that much"),
    ],
)
def test_what_the_node_never_has_is_refused_at_once(demand: dict[str, int], words: str) -> None:
    with pytest.raises(LeaseRefused, match=words.replace("(", "\\(")):
        asked(opened(whole(0), whole(1), mig(9, 0)), ALICE, **demand)


def test_a_node_without_gpus_and_one_with_a_lost_gpu_say_so() -> None:
    with pytest.raises(LeaseRefused, match="no GPU"):
        asked(opened(), ALICE)
    with pytest.raises(LeaseRefused, match=r"this node has 1 GPU \(1 lost\)"):
        asked(opened(whole(0), whole(1, use=SlotUse.LOST)), ALICE, gpus=2)


def test_quotas_of_users_groups_and_hours() -> None:
    terms = LeaseTerms(quotas=(LeaseQuota(user="*", gpus=2), LeaseQuota(group="students", gpus=3)))
    users = UserFacts({"students": frozenset({"alice", "bob"})})
    book = opened(*map(whole, range(6)), terms=terms, users=users)
    ids = [asked(book, who) for who in (ALICE, ALICE, ALICE, BOB, BOB, CHEN)]
    assert set(granted(book)) == {ids[0], ids[1], ids[3], ids[5]}
    assert book.waits[ids[2]].detail == "user alice has 2 of 2 GPUs"
    assert book.waits[ids[4]].detail == "group students has 3 of 3 GPUs"
    book.end(ids[0], 1.0)
    # Three of four seats of the group are free for the one who waits longest.
    assert set(granted(book, 1.0)) == {ids[2]}
    with pytest.raises(LeaseRefused, match="3 GPUs requested, and user chen has 0 of 2 GPUs"):
        asked(book, CHEN, gpus=3)
    spent = opened(
        whole(0), terms=LeaseTerms(quotas=(LeaseQuota("alice", hours=10),)), users=UserFacts({}, {"alice": 11})
    )
    with pytest.raises(LeaseRefused, match=r"has used 11.0 of 10 GPU-hours in 30 days"):
        asked(spent, ALICE)
    asked(spent, BOB)


def test_a_reserved_slot_is_not_leased_beyond_its_start() -> None:
    book = opened(whole(0), whole(1))
    reservation = book.reserve(*ALICE, 1, 1000.0, 2000.0, 0.0)
    assert reservation.slots == ("GPU-0",)
    endless, short, long = asked(book, BOB), asked(book, CHEN, limit_s=900.0), asked(book, (4, "dana"), limit_s=1100.0)
    assert granted(book) == {endless: ("GPU-1",), short: ("GPU-0",)}
    book.end(short, 500.0)
    assert granted(book, 500.0) == {}
    assert book.waits[long].cause is WaitCause.RESERVED
    of_owner = asked(book, ALICE, 1000.0)
    assert granted(book, 1000.0) == {of_owner: ("GPU-0",)}


def test_a_reservation_moves_to_a_slot_that_is_free() -> None:
    book = opened(whole(0), whole(1))
    first, second = asked(book, BOB), asked(book, CHEN)
    granted(book)
    book.reserve(*ALICE, 1, 1000.0, 2000.0, 0.0)
    book.end(second, 10.0)
    book.settle(10.0)
    (reservation,) = book.reservations.values()
    assert reservation.slots == ("GPU-1",)
    assert first in book.leases


def test_an_unused_reservation_is_released_and_a_used_one_is_not() -> None:
    book = opened(whole(0), whole(1), terms=LeaseTerms(no_show_after_s=300.0))
    book.reserve(*ALICE, 1, 100.0, 5000.0, 0.0)
    book.reserve(*BOB, 1, 100.0, 5000.0, 0.0)
    used = asked(book, BOB, 100.0)
    assert used in granted(book, 100.0)
    assert not book.settle(399.0).no_shows
    assert [each.user for each in book.settle(400.0).no_shows] == ["alice"]
    book.end(used, 600.0)
    assert not book.settle(600.0).no_shows
    assert [each.user for each in book.settle(1000.0).no_shows] == ["bob"]
    assert not book.reservations


def test_reservations_beyond_the_node_its_time_and_its_limits_are_refused() -> None:
    book = opened(whole(0), whole(1))
    book.reserve(*ALICE, 2, 100.0, 200.0, 0.0)
    for gpus, from_s, until_s, words in (
        (1, 150.0, 250.0, "other reservations overlap"),
        (3, 300.0, 400.0, "3 GPUs requested, 2 can be reserved"),
        (1, 400.0, 300.0, "end before it begins"),
        (1, 3e6, 3e6 + 1, "at most 14 days from now"),
        (1, 300.0, 9e6, "at most 31 days"),
    ):
        with pytest.raises(LeaseRefused, match=words):
            book.reserve(*BOB, gpus, from_s, until_s, 0.0)
    book.reserve(*BOB, 2, 200.0, 300.0, 0.0)


def test_a_restart_holds_slots_for_60_s_and_places_for_10_s() -> None:
    before = opened(whole(0), whole(1))
    kept, lost = asked(before, ALICE), asked(before, BOB)
    granted(before)
    waits, gone = asked(before, CHEN), asked(before, (4, "dana"))
    granted(before)
    book = LeasePolicy(None, before.record(), 1000.0)
    book.update_slots((whole(0), whole(1)), 1000.0, UserFacts())
    newcomer = asked(book, (5, "emeka"), 1000.0)
    assert granted(book, 1000.0) == {}
    assert isinstance(book.resume(kept), Lease)
    assert book.resume(waits) is before.waiting[waits]
    assert book.settle(1000.0 + HOLD_PLACE_S).dropped == (gone,)
    assert not book.settle(1000.0 + HOLD_LEASE_S - 1).grants
    settled = book.settle(1000.0 + HOLD_LEASE_S)
    assert settled.dropped == (lost,)
    # The programs of a lease whose client did not come back may still run: its slot is read first.
    assert not settled.grants
    book.update_slots((whole(0), whole(1)), 1061.0, UserFacts())
    assert granted(book, 1061.0) == {waits: ("GPU-1",)}
    assert newcomer in book.waiting


def test_a_slot_whose_client_died_is_read_before_it_is_given_again() -> None:
    book = opened(whole(0))
    dead = asked(book, ALICE)
    granted(book)
    waits = asked(book, BOB)
    book.end(dead, 10.0, clean=False)
    assert granted(book, 10.0) == {}
    book.update_slots((whole(0),), 9.0, UserFacts())
    assert granted(book, 11.0) == {}
    book.update_slots((whole(0),), 12.0, UserFacts())
    assert granted(book, 12.0) == {waits: ("GPU-0",)}


def test_a_slot_is_free_within_5_s_also_where_gpus_are_read_seldom() -> None:
    book = opened(whole(0))
    dead = asked(book, ALICE)
    granted(book)
    waits = asked(book, BOB)
    book.end(dead, 10.0, clean=False)
    assert granted(book, 13.9) == {}
    assert granted(book, 14.0) == {waits: ("GPU-0",)}


def test_nothing_is_granted_while_the_driver_does_not_answer() -> None:
    book = opened(whole(0))
    book.forget_slots()
    waits = asked(book, ALICE, gpus=9)
    assert granted(book) == {}
    assert book.waits[waits].cause is WaitCause.UNREAD


def test_setting_the_clock_changes_no_age_and_no_reservation() -> None:
    book = opened(whole(0))
    first = asked(book, ALICE, 100.0)
    granted(book, 100.0)
    asked(book, BOB, 110.0)
    granted(book, 110.0)
    book.reserve(*CHEN, 1, 5000.0, 6000.0, 110.0)
    book.shift(1000.0)
    assert book.leases[first].since_s == 1100.0
    assert [each.from_s for each in book.reservations.values()] == [5000.0]
    assert granted(book, 1110.0) == {}
    book.end(first, 1110.0)
    assert book.record().ended == (("alice", 10.0),)


def test_a_lost_gpu_keeps_its_lease_and_is_not_given_again() -> None:
    book = opened(whole(0), whole(1))
    first = asked(book, ALICE)
    granted(book)
    book.update_slots((replace(whole(0), use=SlotUse.LOST), whole(1)), 1.0, UserFacts())
    assert first in book.leases
    book.end(first, 2.0)
    second, third = asked(book, BOB, 2.0), asked(book, CHEN, 2.0)
    assert granted(book, 2.0) == {second: ("GPU-1",)}
    assert third in book.waiting


def test_a_lease_under_mps_has_one_whole_gpu_on_which_no_program_is_paused() -> None:
    book = opened(mig(9, 0), whole(0, use=SlotUse.USED, in_turns=True), whole(1, use=SlotUse.USED))
    first = asked(book, ALICE, share=True, mps="per_user")
    assert granted(book) == {first: ("GPU-1",)}
    plain = asked(book, BOB, share=True, gpus=1, memory_bytes=100 * GIB)
    assert granted(book) == {plain: ("GPU-0",)}, "turns are for leases without MPS"
    with pytest.raises(LeaseRefused, match=r"under MPS .* a command has one GPU"):
        asked(book, CHEN, share=True, mps="per_user", gpus=2)


def test_leases_with_and_without_mps_share_no_gpu() -> None:
    book = opened(whole(0))
    with_mps = asked(book, ALICE, share=True, mps="per_user")
    assert set(granted(book)) == {with_mps}
    without = asked(book, BOB, share=True)
    assert granted(book) == {}
    also = asked(book, CHEN, share=True, mps="per_user")
    assert set(granted(book)) == {also}, "it is expected to end when the older request can start"
    book.end(with_mps, 1.0)
    assert granted(book, 1.0) == {}
    book.end(also, 2.0)
    assert set(granted(book, 2.0)) == {without}


def test_a_part_of_a_gpu_is_promised_once_and_quotas_set_it() -> None:
    students = LeaseQuota(group="students", sm_percent=25)
    terms = LeaseTerms(quotas=(LeaseQuota(user="*", sm_percent=60), students))
    users = UserFacts({"students": frozenset({"bob"})})
    book = opened(whole(0), terms=terms, users=users)
    for who, requested, gets in ((ALICE, None, 60), (BOB, None, 25), (CHEN, 15, 15)):
        id = asked(book, who, share=True, mps="per_user", sm_percent=requested)
        (lease,) = book.settle(0.0).grants
        assert (lease.request.id, lease.request.sm_percent) == (id, gets)
    asked(book, CHEN, share=True, mps="per_user", sm_percent=1)
    assert book.settle(0.0).grants == ()
    with pytest.raises(LeaseRefused, match="--sm 30 requested, and the quota of bob is 25 %"):
        asked(book, BOB, share=True, mps="per_user", sm_percent=30)
    plain = asked(book, BOB, gpus=1)
    assert book.waiting[plain].sm_percent is None
