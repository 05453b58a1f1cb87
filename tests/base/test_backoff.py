"""Waits double, stay within their bounds, and start over after a success."""

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.base.backoff import Backoff, RetrySchedule


def test_waits_double_up_to_the_limit_and_start_over() -> None:
    backoff = Backoff(first_s=1, max_s=10, jitter=0)
    assert [backoff.next_s() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    backoff.reset()
    assert backoff.next_s() == 1


@given(failures=st.integers(1, 40))
def test_jitter_shortens_a_wait_by_at_most_half(failures: int) -> None:
    backoff = Backoff(first_s=1, max_s=30)
    waits = [backoff.next_s() for _ in range(failures)]
    assert all(min(2**n, 30) / 2 <= wait <= min(2**n, 30) for n, wait in enumerate(waits))


@given(st.integers(1, 50))
def test_a_schedule_is_due_after_each_wait_and_starts_over(times: int) -> None:
    schedule, now_s = RetrySchedule(1.0, 60.0), 0.0
    assert schedule.is_due(now_s)
    for number in range(times):
        delay_s = schedule.postpone(now_s)
        assert delay_s == min(2.0**number, 60.0)
        assert not schedule.is_due(now_s + delay_s - 0.01)
        now_s += delay_s
        assert schedule.is_due(now_s)
    schedule.reset()
    assert schedule.postpone(now_s) == 1.0
