"""Scrapes of one dialect alone: count, bytes, and the latencies of the last minute."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.faces.web.http.dispatch import ScrapeMeter
from peers import fetch, run, serving


def test_quantiles_are_of_the_last_minute_and_the_totals_are_of_all_time() -> None:
    meter = ScrapeMeter()
    meter.record(0.0, 9.0, 100)
    for number in range(100):
        meter.record(50.0, number / 100, 10)
    reading = meter.reading(70.0)
    assert (reading.count, reading.body_bytes) == (101, 1100)
    assert reading.sum_s == 9.0 + sum(number / 100 for number in range(100))
    assert dict(reading.quantiles_s) == {0.5: 0.5, 0.9: 0.9, 0.99: 0.99}
    later = meter.reading(111.0)
    assert later.count == 101
    assert all(math.isnan(seconds) for _, seconds in later.quantiles_s)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=3000))
def test_a_quantile_is_one_of_the_newest_observations_and_they_rise(latencies: list[float]) -> None:
    meter = ScrapeMeter()
    for seconds in latencies:
        meter.record(0.0, seconds, 1)
    values = [seconds for _, seconds in meter.reading(0.0).quantiles_s]
    assert values == sorted(values)
    assert set(values) <= set(latencies[-1024:])


def test_scrapes_of_a_drop_in_and_of_the_path_of_a_dialect_count_together() -> None:
    async def check() -> None:
        async with serving(listeners=[("127.0.0.1:0", None), ("127.0.0.1:0", "node")]) as server:
            main, drop_in = (address.port for address in server.addresses)
            bodies = [(await fetch(main, "/metrics/node")).body, (await fetch(drop_in)).body]
            for other in ("/metrics", "/healthz", "/nothing"):
                await fetch(main, other)
            await fetch(drop_in, method="HEAD")
            scrapes = server.stats().scrapes
            assert list(scrapes) == ["node"]
            assert (scrapes["node"].count, scrapes["node"].body_bytes) == (2, sum(map(len, bodies)))
            assert 0 < dict(scrapes["node"].quantiles_s)[0.5] <= scrapes["node"].sum_s

    run(check())
