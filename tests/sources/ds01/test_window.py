"""The 24 h window equals a plain count at any instant, in bounded memory."""

import random
from collections import Counter
from math import floor

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.sources.ds01.events import OTHER, WINDOW_S, EventWindow
from unhurried import unhurried

NOW = 1_800_000_000.0
TYPES = ["gpu.allocate", "container.start", "maintenance.idle_kill"]


def brute_force(events: list[tuple[str, float]], now_s: float) -> Counter[str]:
    last = floor(now_s)
    return Counter(type for type, wall_s in events if last - WINDOW_S < floor(wall_s) <= last)


def shown(counts: dict[str, int]) -> dict[str, int]:
    return {type: count for type, count in counts.items() if count}


def test_a_thousand_random_instants() -> None:
    luck = random.Random(3)
    window, events, now_s = EventWindow(), list[tuple[str, float]](), NOW
    for _ in range(1000):
        for _ in range(luck.randrange(5)):
            event = (luck.choice(TYPES), now_s - luck.choice([0.0, luck.expovariate(1 / 40_000)]))
            events.append(event)
            window.add(*event, now_s)
        now_s += luck.choice([0.3, 1.0, 59.9, luck.uniform(0, 7200)])
        assert shown(window.counts(now_s)) == brute_force(events, now_s)


@unhurried(60)
@given(
    st.lists(st.tuples(st.sampled_from(TYPES), st.floats(-90_000, 3000)), max_size=30),
    st.lists(st.floats(-3600, 5000), min_size=1, max_size=6),
)
def test_any_order_and_any_clock_step_within_an_hour(events: list[tuple[str, float]], steps: list[float]) -> None:
    window, now_s = EventWindow(), NOW
    written = [(type, NOW + offset_s) for type, offset_s in events]
    for event in written:
        window.add(*event, now_s)
    earliest = now_s
    for step in steps:
        now_s = max(now_s + step, earliest - 3600)
        earliest = max(earliest, now_s)
        assert shown(window.counts(now_s)) == brute_force(written, now_s)


def test_it_slides_to_the_second() -> None:
    window = EventWindow()
    window.add("gpu.allocate", NOW + 0.9, NOW + 1)
    assert window.counts(NOW + WINDOW_S - 0.001) == {"gpu.allocate": 1}
    assert window.counts(NOW + WINDOW_S) == {"gpu.allocate": 0}
    assert window.counts(NOW + 2 * WINDOW_S) == {}, "the type is removed"


def test_an_event_from_a_clock_that_runs_ahead_counts_when_its_time_has_come() -> None:
    window = EventWindow()
    window.add("gpu.allocate", NOW + 10, NOW)
    assert window.counts(NOW) == {"gpu.allocate": 0}
    assert window.counts(NOW + 10) == {"gpu.allocate": 1}


def test_memory_is_bounded_by_types_and_types_are_bounded() -> None:
    window = EventWindow()
    for number in range(1000):
        window.add(f"made.up.{number}", NOW, NOW)
    counts = window.counts(NOW)
    assert sum(counts.values()) == 1000
    assert len(counts) <= 201
    assert counts[OTHER] == 800
    busy = EventWindow()
    for second in range(3 * WINDOW_S):
        busy.add("x", NOW + second, NOW + second)
        if second % 60 == 0:
            busy.counts(NOW + second)
    assert busy.counts(NOW + 3 * WINDOW_S - 1) == {"x": WINDOW_S}
    assert len(busy.save()["x"]) < 500_000
    busy.add("x", NOW + 10**9, NOW + 3 * WINDOW_S)
    busy.add("x", 0.0, NOW + 3 * WINDOW_S)
    assert busy.counts(NOW + 3 * WINDOW_S - 1) == {"x": WINDOW_S}, "events far outside the window are dropped"


@unhurried(40)
@given(st.lists(st.tuples(st.sampled_from(TYPES), st.integers(0, WINDOW_S - 1)), max_size=40))
def test_what_is_saved_is_restored(events: list[tuple[str, int]]) -> None:
    window, again = EventWindow(), EventWindow()
    for type, ago_s in events:
        window.add(type, NOW - ago_s, NOW)
    again.restore(window.save(), NOW)
    assert again.counts(NOW + 500) == window.counts(NOW + 500)
