"""The integrator: for any samples, no time is lost or added, and gaps are not billed."""

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.ledger.integrate import MINUTE_S, NS, STALLED, UNREAD, Batch, Integrator
from gpucommons.model.accounts import Amounts
from gpucommons.model.allocations import WHOLE_SHARE, WHOLE_SM, Account, Holding, Slot, SlotUsage, UsageSample
from gpucommons.owners.allocations import divide
from unhurried import unhurried

LONGEST_S = 5.0
ALICE, BOB = Account("user", "alice", user="alice"), Account("user", "bob", user="bob")
GPU = Slot("GPU-0", "GPU-0", "0")

accounts = st.sampled_from([Account("user", name, user=name) for name in "abcd"])
SLOTS = [GPU, Slot("GPU-1", "GPU-1", "1")] + [
    Slot(f"MIG-{i}", "GPU-2", f"2.{i}", slices, 7) for i, slices in enumerate((1, 2, 4))
]


@st.composite
def slot_usages(draw: st.DrawFn, slot: Slot) -> SlotUsage:
    holders = draw(st.dictionaries(accounts, st.sampled_from([1, 1, 2, 3, 4]), max_size=3))
    shares = divide([Fraction(1, parts) for parts in holders.values()])
    states = st.sampled_from([(True, 90_000), (False, 0), (None, None)])
    readings = st.sampled_from([(None, None), (1 << 38, 700_001), (12_345_678_901, 0)])
    return SlotUsage(
        slot,
        tuple(
            Holding(account, share, *draw(states), *draw(readings))
            for account, share in zip(holders, shares, strict=True)
        ),
        holders_known=draw(st.sampled_from([True, True, True, False])),
    )


@st.composite
def timelines(draw: st.DrawFn) -> list[UsageSample]:
    """Samples at any distance, slots that appear and disappear, and any wall clock."""
    now_ns = 10**15
    samples = []
    for after_ns, wall_s in draw(st.lists(st.tuples(st.integers(1, 8 * NS), st.integers(0, 4 * 10**9)), max_size=7)):
        now_ns += after_ns
        slots = draw(st.lists(st.sampled_from(SLOTS), unique=True, max_size=3))
        samples.append(UsageSample(now_ns, float(wall_s), tuple(draw(slot_usages(slot)) for slot in slots)))
    return samples


def run(samples: list[UsageSample]) -> Batch:
    integrator = Integrator(LONGEST_S)
    for sample in samples:
        integrator.step(sample)
    return integrator.take()


def by_account(batch: Batch) -> dict[Account, Amounts]:
    totals: dict[Account, Amounts] = {}
    for (_, _, account), amounts in batch.usage.items():
        totals[account] = totals.get(account, Amounts()).plus(amounts)
    return totals


@unhurried(60)
@given(timelines())
def test_held_and_free_time_sum_to_the_time_observed(samples: list[UsageSample]) -> None:
    batch = run(samples)
    watched, gaps = defaultdict[str, int](int), defaultdict[str, int](int)
    for (_, slot), time in batch.slot_time.items():
        assert min(time) >= 0
        watched[slot.uuid] += sum(time)
    for gap in batch.gaps:
        assert gap.ns > 0
        gaps[gap.slot_uuid] += gap.ns
    for slot in SLOTS:
        seen = [s.monotonic_ns for s in samples if any(u.slot == slot for u in s.slots)]
        # A stall while the slot was away is the whole node's, whether or not the slot ever comes back.
        stalled = sum(
            b.monotonic_ns - a.monotonic_ns
            for a, b in pairwise(samples)
            if b.monotonic_ns - a.monotonic_ns > LONGEST_S * NS and seen and seen[0] <= a.monotonic_ns < seen[-1]
        )
        expected = seen[-1] - seen[0] if seen else 0
        assert watched[slot.uuid] + gaps[slot.uuid] + stalled == expected


@unhurried(60)
@given(timelines())
def test_the_held_time_of_accounts_is_that_of_slots(samples: list[UsageSample]) -> None:
    batch = run(samples)
    held = defaultdict[tuple[int, Slot], int](int)
    for (minute, slot, _), amounts in batch.usage.items():
        held[minute, slot] += amounts.held_ns
        assert amounts.active_ns >= 0
        assert amounts.idle_ns >= 0
        assert amounts.active_ns + amounts.idle_ns <= amounts.held_ns
        assert min(amounts) >= 0
    assert {place: time.held_ns for place, time in batch.slot_time.items() if time.held_ns} == {
        place: ns for place, ns in held.items() if ns
    }


@unhurried(60)
@given(timelines())
def test_a_split_gpu_is_never_more_than_one(samples: list[UsageSample]) -> None:
    """In equivalents, the MIG devices of one GPU are held for no longer than the GPU was observed."""
    batch = run(samples)
    equivalent = sum(amounts.equivalent_ns for (_, slot, _), amounts in batch.usage.items() if slot.of == 7)
    longest = max(sum(sum(t) for (_, s), t in batch.slot_time.items() if s == slot) for slot in SLOTS)
    assert equivalent <= longest


@pytest.mark.long
@unhurried(60)
@given(timelines(), st.lists(st.floats(-1e9, 1e9), min_size=12, max_size=12))
def test_steps_of_the_wall_clock_are_not_billed(samples: list[UsageSample], steps: list[float]) -> None:
    stepped = [
        sample._replace(wall_s=sample.wall_s + step)
        for sample, step in zip(samples, steps[: len(samples)], strict=True)
    ]
    one, other = run(samples), run(stepped)
    assert {a: t.held_ns for a, t in by_account(one).items()} == {a: t.held_ns for a, t in by_account(other).items()}
    assert sum(t.free_ns for t in one.slot_time.values()) == sum(t.free_ns for t in other.slot_time.values())
    assert [gap.ns for gap in one.gaps] == [gap.ns for gap in other.gaps]


@unhurried(60)
@given(timelines(), st.integers(0, 11))
def test_taking_batches_in_between_changes_nothing(samples: list[UsageSample], cut: int) -> None:
    integrator = Integrator(LONGEST_S)
    batches = []
    for number, sample in enumerate(samples):
        integrator.step(sample)
        if number == cut:
            batches.append(integrator.take())
    batches.append(integrator.take())
    halves = batches[0].merge(batches[1]) if len(batches) > 1 else batches[0]
    whole = run(samples)
    assert halves.slot_time == whole.slot_time
    assert halves.gaps == whole.gaps
    assert {a: t.held_ns for a, t in by_account(halves).items()} == {a: t.held_ns for a, t in by_account(whole).items()}


@unhurried()
@given(st.lists(st.fractions(min_value="1/1000", max_value=1), max_size=20))
def test_division(claims: list[Fraction]) -> None:
    shares, claimed = divide(claims), sum(claims, Fraction(0))
    assert all(share >= 0 for share in shares)
    if claimed >= 1:
        assert sum(shares) == WHOLE_SHARE, "a slot that is claimed in full is held in full"
    else:
        assert abs(sum(shares) - claimed * WHOLE_SHARE) < 1
    for share, claim in zip(shares, claims, strict=True):
        assert abs(share - claim * WHOLE_SHARE / max(claimed, Fraction(1))) <= 1


@dataclass
class Clock:
    now_s: float = 0.0

    def sample(self, after_s: float, *held: Holding, wall_s: float | None = None, known: bool = True) -> UsageSample:
        self.now_s += after_s
        wall = 1_000_000 * MINUTE_S + self.now_s if wall_s is None else wall_s
        return UsageSample(round(self.now_s * NS), wall, (SlotUsage(GPU, held, known),))


def half(account: Account) -> Holding:
    return Holding(account, WHOLE_SHARE // 2, True)


def test_two_owners_of_one_slot_are_billed_a_half_each() -> None:
    clock = Clock()
    both = (half(ALICE), half(BOB))
    totals = by_account(run([clock.sample(0, *both), clock.sample(2, *both), clock.sample(2)]))
    assert totals[ALICE].held_ns == totals[BOB].held_ns == 2 * NS
    assert totals[ALICE].equivalent_ns == 2 * NS


def test_only_jobs_and_pods_have_figures_of_a_job() -> None:
    clock = Clock()
    held = (half(ALICE), half(BOB._replace(job="7")), half(BOB._replace(pod="train-0")))
    batch = run([clock.sample(0, *held), clock.sample(2)])
    assert set(batch.jobs) == {held[1].account, held[2].account}


def test_memory_and_energy_are_multiplied_by_the_monotonic_time() -> None:
    clock = Clock()
    using = Holding(ALICE, WHOLE_SHARE, True, WHOLE_SM // 4, 3 << 30, 500_000)
    totals = by_account(run([clock.sample(0, using), clock.sample(1.5, using), clock.sample(2.5)]))
    assert totals[ALICE] == Amounts(4 * NS, 4 * NS, 0, 4 * NS, NS, 4 * 3 << 20, 2_000_000_000)


def test_a_gap_is_counted_and_not_billed() -> None:
    clock = Clock()
    holding = Holding(ALICE, WHOLE_SHARE, False)
    batch = run([clock.sample(0, holding), clock.sample(1, holding), clock.sample(600, holding), clock.sample(1)])
    assert by_account(batch)[ALICE].held_ns == 2 * NS
    assert [(gap.reason, gap.slot_uuid, gap.ns) for gap in batch.gaps] == [(STALLED, "", 600 * NS)]
    assert batch.seconds == 2.0
    batch = run([clock.sample(0, holding), clock.sample(600, holding)])
    assert not batch.usage
    assert not batch.slot_time


def test_a_gpu_that_was_not_read_is_a_separate_gap() -> None:
    clock = Clock()
    holding = Holding(ALICE, WHOLE_SHARE, True)
    first = clock.sample(0, holding)
    without = clock.sample(1)._replace(slots=())
    batch = run([first, without, clock.sample(1, holding), clock.sample(1)])
    assert by_account(batch)[ALICE].held_ns == NS
    assert [(gap.reason, gap.slot_uuid, gap.ns) for gap in batch.gaps] == [(UNREAD, "GPU-0", 2 * NS)]
    assert batch.gaps[0].wall_s == int(first.wall_s), "it begins with the last reading"


def test_no_time_is_in_two_gaps() -> None:
    clock = Clock()
    batch = run([clock.sample(0), clock.sample(600)._replace(slots=()), clock.sample(1)])
    assert [(gap.reason, gap.ns) for gap in batch.gaps] == [(STALLED, 600 * NS), (UNREAD, NS)]


def test_the_time_of_a_slot_is_added_up_within_a_minute() -> None:
    clock = Clock()
    batch = run([clock.sample(0, half(ALICE)), clock.sample(1), clock.sample(2, half(ALICE)), clock.sample(3)])
    (time,) = batch.slot_time.values()
    assert time == (2 * NS, 4 * NS, 0)


@pytest.mark.parametrize(("slices", "equivalent_ns"), [(2, 4 * NS), (7, 14 * NS), (None, 0)])
def test_a_part_of_a_gpu_counts_as_that_part(slices: int | None, equivalent_ns: int) -> None:
    usage = SlotUsage(Slot("MIG", "GPU", "0.0", slices, 7), (Holding(ALICE, WHOLE_SHARE, False),))
    batch = run([UsageSample(round(second * NS), 60.0 + second, (usage,)) for second in (0.0, 3.5, 7.0, 10.5, 14.0)])
    assert by_account(batch)[ALICE][:4] == (14 * NS, 0, 14 * NS, equivalent_ns)


def test_the_models_of_gpus_are_those_that_were_read_last() -> None:
    clock = Clock()
    named = [clock.sample(1)._replace(models={"GPU-0": model}) for model in ("A100", "H100")]
    assert run([*named, clock.sample(1)]).models == {"GPU-0": "H100"}


def test_a_repeated_or_unordered_sample_is_ignored() -> None:
    clock = Clock()
    holding = Holding(ALICE, WHOLE_SHARE, True)
    one, two = clock.sample(0, holding), clock.sample(1, holding)
    assert by_account(run([one, two, two, one]))[ALICE].held_ns == NS


def test_while_a_source_is_down_time_is_not_free() -> None:
    clock = Clock()
    batch = run([clock.sample(0, half(ALICE), known=False), clock.sample(2)])
    (time,) = batch.slot_time.values()
    assert time == (NS, 0, NS)


def test_the_wall_clock_decides_the_minute() -> None:
    clock = Clock()
    holding = Holding(ALICE, WHOLE_SHARE, True)
    batch = run(
        [clock.sample(0, holding, wall_s=59.0), clock.sample(1, holding, wall_s=60.0), clock.sample(1, wall_s=7261.0)]
    )
    assert [minute for minute, _, _ in batch.usage] == [0, 121]


def test_an_account_that_could_not_be_judged_is_neither_active_nor_idle() -> None:
    clock = Clock()
    batch = run([clock.sample(0, Holding(ALICE, WHOLE_SHARE, None)), clock.sample(1)])
    assert by_account(batch)[ALICE][:3] == (NS, 0, 0)
