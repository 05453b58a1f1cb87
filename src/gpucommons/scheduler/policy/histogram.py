"""A histogram that is cheap to feed: what is observed goes on a pile, which is counted now and then."""

from bisect import bisect_right
from typing import Final

from gpucommons.model.sharing import HistogramReading

_PART: Final = 1024


class Histogram:
    """Call `observe` for each value; `count` when there is time, at the latest once per reading."""

    __slots__ = ("_bounds", "_counts", "_pile", "_sum", "observe")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._pile: list[float] = []
        self.observe = self._pile.append

    def count(self) -> bool:
        """Counts a part of the pile that takes no noticeable time. Returns whether some is left."""
        part = self._pile[:_PART]
        del self._pile[:_PART]
        part.sort()
        for place, bound in enumerate(self._bounds):
            self._counts[place] += bisect_right(part, bound)
        self._counts[-1] += len(part)
        self._sum += sum(part)
        return bool(self._pile)

    def reading(self) -> HistogramReading:
        while self.count():
            pass
        return HistogramReading(self._bounds, tuple(self._counts), self._sum)
