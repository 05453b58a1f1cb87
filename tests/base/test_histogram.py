"""Histograms count what they were given."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpucommons.model.sharing import Histogram

BOUNDS = (0.1, 0.5, 1.0, 10.0)


@given(st.lists(st.floats(0, 20), max_size=300))
@example([0.1, 0.5, 10.0, 10.1])
def test_a_histogram_counts_what_it_was_given(values: list[float]) -> None:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    reading = histogram.reading()
    assert reading.counts == (*(sum(value <= bound for value in values) for bound in BOUNDS), len(values))
    assert reading.sum == pytest.approx(sum(values))
    assert histogram.reading() == reading
