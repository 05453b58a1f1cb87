"""A histogram with a cheap `observe`: values are collected, and counted later."""

from bisect import bisect_right
from typing import Final

from gpucommons.model.sharing import HistogramReading

_PART: Final = 1024


class Histogram:
    """Call `observe` for each value; `count` when there is time, at least once per reading."""

    __slots__ = ("_bounds", "_counts", "_pending", "_sum", "observe")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._pending: list[float] = []
        self.observe = self._pending.append

    def count(self) -> bool:
        """Counts a bounded part of the collected values. Returns whether some are left."""
        part = self._pending[:_PART]
        del self._pending[:_PART]
        part.sort()
        for place, bound in enumerate(self._bounds):
            self._counts[place] += bisect_right(part, bound)
        self._counts[-1] += len(part)
        self._sum += sum(part)
        return bool(self._pending)

    def reading(self) -> HistogramReading:
        while self.count():
            pass
        return HistogramReading(self._bounds, tuple(self._counts), self._sum)
