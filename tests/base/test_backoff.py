"""Waits grow, stay within their bounds, and begin anew after a success."""

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.base.backoff import Backoff


def test_it_doubles_up_to_its_limit_and_begins_anew() -> None:
    backoff = Backoff(first_s=1, most_s=10, uniform=lambda low, high: high)
    assert [backoff.next_s() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    backoff.reset()
    assert backoff.next_s() == 1


@given(failures=st.integers(1, 40))
def test_no_wait_is_shorter_than_half_its_step_or_longer_than_the_limit(failures: int) -> None:
    backoff = Backoff(first_s=1, most_s=30)
    waits = [backoff.next_s() for _ in range(failures)]
    assert all(min(2**n, 30) / 2 <= wait <= min(2**n, 30) for n, wait in enumerate(waits))
