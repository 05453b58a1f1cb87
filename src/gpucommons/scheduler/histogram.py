"""A histogram that counts as it goes: fixed buckets, one bisection per observation."""

from bisect import bisect_left
from itertools import accumulate
from typing import Final

from gpucommons.model.sharing import HistogramReading

# Seconds. Hand-offs take microseconds, turns and waits seconds to minutes.
HANDOFF_BUCKETS: Final = (0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1)
DRAIN_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
TURN_BUCKETS: Final = (0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


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
