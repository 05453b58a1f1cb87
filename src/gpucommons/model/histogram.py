"""Counts values up to bounds, as Prometheus's histograms do."""

from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple


class HistogramReading(NamedTuple):
    """`counts` are cumulative and one longer than `bounds`: the last is the total."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class Histogram:
    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def reading(self) -> HistogramReading:
        return HistogramReading(self._bounds, tuple(accumulate(self._counts)), self._sum)
