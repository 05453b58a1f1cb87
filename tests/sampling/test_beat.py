"""Ticks stay on the grid, even if timers fire early."""

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.agent.sampler import next_beat, on_beat

period = st.floats(0.1, 3600)
now = st.floats(0, 1e8)


@given(now, period)
def test_the_next_tick_is_within_one_period(now_s: float, period_s: float) -> None:
    due_s = next_beat(now_s, period_s)
    assert 0.9 * period_s <= due_s - now_s <= 1.1 * period_s or now_s < due_s <= now_s + 1.1 * period_s


@given(st.integers(0, 10**6), st.floats(-0.04, 0.9), period)
def test_an_early_timer_causes_no_additional_tick(beat: int, off: float, period_s: float) -> None:
    woken_s = (beat + off) * period_s
    if woken_s < 0:
        return
    due_s = next_beat(woken_s, period_s)
    assert on_beat(woken_s, beat * period_s, period_s)
    assert not on_beat(woken_s, due_s, period_s)
    assert abs(due_s - (beat + 1) * period_s) < 0.01 * period_s
