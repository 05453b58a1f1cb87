"""The token bucket of a core quota by itself: its arithmetic, for any rate, window and tail."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.scheduler.policy.quota_bucket import EPSILON_S, QuotaBucket

PERCENTS = st.integers(1, 99)
SECONDS = st.floats(0.0, 100.0)
WINDOW_S = 2.0


def bucket_of(percent: int, balance_s: float = 0.0, tail_s: float = 0.0, carryover_percent: int = 10) -> QuotaBucket:
    bucket = QuotaBucket(
        percent, SchedulerSettings(compute_window_ms=2000, quota_carryover_percent=carryover_percent), 0.0
    )
    bucket.balance_s, bucket.tail_s = balance_s, tail_s
    return bucket


@given(PERCENTS, st.integers(1, 4), st.floats(0.0, 1.0), st.floats(-0.2, 5.0))
def test_a_turn_that_ends_when_it_should_has_spent_the_quota_and_one_that_ends_before_has_not(
    percent: int, running: int, tail_s: float, balance_s: float
) -> None:
    bucket = bucket_of(percent, balance_s, tail_s)
    left_s = bucket.spent_after_s(running)
    if 1.0 / running <= bucket.rate:
        assert left_s is None, "it gets no more than its rate"
        return
    assert left_s is not None
    until_s = left_s + tail_s
    if until_s > 0.01:
        earlier = bucket_of(percent, balance_s, tail_s)
        earlier.settle_running(until_s - 0.01, (until_s - 0.01) / running)
        assert not earlier.is_over() or earlier.rate > 1.0 / running - 0.01
        bucket.settle_running(until_s, until_s / running)
        assert bucket.balance_s == pytest.approx(-bucket.band_s, abs=1e-6)
    bucket.balance_s = -bucket.band_s + EPSILON_S / 2
    assert bucket.is_over()


@given(PERCENTS, SECONDS, st.floats(-3.0, 3.0))
def test_borrowed_time_is_free_and_without_an_end(percent: int, elapsed_s: float, balance_s: float) -> None:
    bucket = bucket_of(percent, balance_s)
    bucket.borrowing = True
    assert bucket.spent_after_s(1) is None
    bucket.settle_running(elapsed_s, elapsed_s)
    assert (bucket.balance_s, bucket.settled_s) == (balance_s, elapsed_s)


@given(PERCENTS, SECONDS, st.floats(-3.0, 3.0), st.integers(0, 100))
def test_an_idle_client_fills_up_to_what_it_may_keep_and_loses_more_only_after_a_window(
    percent: int, idle_s: float, balance_s: float, carryover_percent: int
) -> None:
    bucket = bucket_of(percent, balance_s, carryover_percent=carryover_percent)
    kept_s = max(bucket.band_s, bucket.rate * WINDOW_S * carryover_percent / 100)
    bucket.settle_idle(idle_s)
    if balance_s < kept_s:
        assert bucket.balance_s == pytest.approx(min(kept_s, balance_s + percent / 100 * idle_s))
    else:
        assert bucket.balance_s == pytest.approx(kept_s if idle_s > WINDOW_S else balance_s)


@given(PERCENTS, st.floats(-3.0, 0.0), st.floats(0.0, 10.0))
def test_the_next_turn_begins_when_the_bucket_is_full_to_its_band(
    percent: int, balance_s: float, tail_s: float
) -> None:
    """Also where turns end late and the share is small: what may be saved is never less than the band."""
    bucket = bucket_of(percent, balance_s, tail_s)
    due_s = bucket.refilled_s()
    bucket.settle_waiting(due_s, 0.0)
    assert bucket.balance_s == pytest.approx(bucket.band_s)


def test_the_band_is_half_of_what_a_slice_of_the_window_leaves_to_others() -> None:
    assert bucket_of(50).band_s == pytest.approx(0.5 * WINDOW_S / 2 * 0.5 / 2)
    assert bucket_of(1).band_s == pytest.approx(SchedulerSettings().quota_sample_interval_ms / 1000 * 0.99 / 2), (
        "a turn is not shorter than a sample"
    )


def test_the_first_tail_counts_in_full_and_later_ones_by_half() -> None:
    bucket = bucket_of(50)
    bucket.learn_tail(0.4)
    assert bucket.tail_s == pytest.approx(0.4)
    bucket.learn_tail(0.2)
    assert bucket.tail_s == pytest.approx(0.3)
