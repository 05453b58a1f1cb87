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
    """Shares of time: all together, and each client alone. `gain` is the progress in total over that of turns,
    `progress` what the clients have in total while they run together."""

    together: float
    alone: tuple[float, ...]
    gain: float
    progress: float = 0.0

    @property
    def is_turns(self) -> bool:
        return self.together == 0.0

    @property
    def is_together(self) -> bool:
        return self.together >= 1.0 - 1e-9

    @property
    def is_mixed(self) -> bool:
        return not (self.is_turns or self.is_together)

    @property
    def gain_over_slicing(self) -> float | None:
        """Over the driver's time-slicing, which runs all together at all times."""
        return self.gain / self.progress if self.progress > 0.0 else None


def turns(fair: Sequence[float], progress: float = 0.0) -> TimeDivision:
    return TimeDivision(0.0, tuple(fair), 1.0, progress)


def divide(progress: Sequence[float], fair: Sequence[float], margin: float = MARGIN) -> TimeDivision:
    """The best division in which no client falls below its fair share; turns where together gains too little."""
    total = sum(progress)
    enough = [share - _FAIR_SLACK for share in fair]
    together = _most_together(progress, enough)
    gain = together * total + (1.0 - together)
    if gain < 1.0 + margin:
        return turns(fair, total)
    alone = tuple(max(0.0, share - part * together) for share, part in zip(enough, progress, strict=True))
    return TimeDivision(together, alone, gain, total)


def _most_together(progress: Sequence[float], enough: Sequence[float]) -> float:
    pairs = list(zip(enough, progress, strict=True))

    def excess(together: float) -> float:
        return together + sum(max(0.0, share - part * together) for share, part in pairs) - 1.0

    if excess(1.0) <= 0.0:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) <= 0.0 else (low, middle)
    return low
