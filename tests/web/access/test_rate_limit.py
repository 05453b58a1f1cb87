"""The token bucket admits exactly the burst and one request per interval."""

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.faces.web.access.web_config import RateLimit, TokenBucket


@given(
    st.integers(1, 5),
    st.sampled_from([0.1, 1.0, 60.0]),
    st.lists(st.floats(0, 100, allow_nan=False), max_size=60),
)
def test_never_more_than_the_burst_and_one_per_interval(burst: int, interval_s: float, waits: list[float]) -> None:
    bucket = TokenBucket(RateLimit(interval_s, burst), now_s=1000.0)
    now_s, passed = 1000.0, 0
    for wait in waits:
        now_s += wait
        passed += bucket.take(now_s)
        assert passed <= burst + (now_s - 1000.0) / interval_s + 1e-6


def test_one_per_interval_after_the_burst() -> None:
    bucket = TokenBucket(RateLimit(interval_s=2.0, burst=3), now_s=0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(now_s) for now_s in (1.9, 2.0, 3.9, 4.0)] == [False, True, False, True]


def test_a_clock_that_stops_or_steps_back_adds_no_token() -> None:
    bucket = TokenBucket(RateLimit(interval_s=1.0, burst=1), now_s=10.0)
    assert bucket.take(10.0)
    assert not bucket.take(5.0)
