"""The GPU's time divided between running together and turns alone, from the progress that each client makes together.

With x the share of time together, a client of progress p has x * p from it and the rest of its fair share alone. The
largest x for which the shares alone fit into the remaining time is the division with the most progress in total.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Running together must gain this much over turns: less is noise, and turns are fairer.
MARGIN: Final = 0.03
# Measurements are noisy: a client this close to its fair share has it.
_FAIR_SLACK: Final = 0.01
_HALVINGS: Final = 40


@dataclass(frozen=True, slots=True)
class TimeDivision:
    """Shares of time: all together, and each client alone. `gain` is the progress in total over that of turns."""

    together: float
    alone: tuple[float, ...]
    gain: float

    @property
    def is_turns(self) -> bool:
        return self.together == 0.0


def turns(count: int) -> TimeDivision:
    return TimeDivision(0.0, (1.0 / count,) * count, 1.0)


def divide(progress: Sequence[float], margin: float = MARGIN) -> TimeDivision:
    """The best division in which no client falls below its fair share; turns where together gains too little."""
    fair = 1.0 / len(progress) - _FAIR_SLACK
    together = _most_together(progress, fair)
    gain = together * sum(progress) + (1.0 - together)
    if gain < 1.0 + margin:
        return turns(len(progress))
    return TimeDivision(together, tuple(max(0.0, fair - part * together) for part in progress), gain)


def _most_together(progress: Sequence[float], fair: float) -> float:
    def excess(together: float) -> float:
        return together + sum(max(0.0, fair - part * together) for part in progress) - 1.0

    if excess(1.0) <= 0.0:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) <= 0.0 else (low, middle)
    return low
