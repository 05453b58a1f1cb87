"""What the agent counts of its pauser."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from gpucommons.model.sharing import MOVE_BUCKETS, HistogramReading

# Seconds. A lock takes under a millisecond where the queue is short, and up to its timeout where it is deep.
CALL_BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


class Durations:
    """A histogram of seconds."""

    __slots__ = ("_bounds", "_counts", "_sum_s")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum_s += seconds

    def reading(self) -> HistogramReading:
        return HistogramReading(self._bounds, tuple(accumulate(self._counts)), self._sum_s)


@dataclass(slots=True)
class Counters:
    """`failures` is by (operation, code); a lock that timed out is in both `timeouts` and `failures`.

    `forced` are programs that the pauser resumed on its own, `restarts` are pausers after the first.
    """

    locks: int = 0
    unlocks: int = 0
    checkpoints: int = 0
    restores: int = 0
    timeouts: int = 0
    forced: int = 0
    restarts: int = 0
    failures: Counter[tuple[str, int]] = field(default_factory=Counter)
    lock_seconds: Durations = field(default_factory=lambda: Durations(CALL_BUCKETS))
    unlock_seconds: Durations = field(default_factory=lambda: Durations(CALL_BUCKETS))
    checkpoint_seconds: Durations = field(default_factory=lambda: Durations(MOVE_BUCKETS))
    restore_seconds: Durations = field(default_factory=lambda: Durations(MOVE_BUCKETS))
