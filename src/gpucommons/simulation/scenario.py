"""What a scenario is: a name and simulated sources behind the interfaces of the real ones.

Everything simulated is a function of the seconds since the start and a fixed seed: the same run twice is
the same node twice. A whole day passes in ten minutes.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gpucommons.attribution.stage import ProcessWorld
from gpucommons.sources.source import Source

DAY_S = 600.0
_MORNING = 0.35


@dataclass(slots=True)
class SimulatedSource:
    """Stands in for one source: `make` draws its reading at so many seconds since the start."""

    name: str
    feeds: str
    produces: type
    make: Callable[[float], object]
    cadence_s: float
    essential: bool = False
    monotonic: Callable[[], float] = time.monotonic
    runs_on: Literal["thread", "loop"] = "loop"
    deadline_s: float = 2.0
    _started_s: float | None = None

    def read(self) -> object:
        now_s = self.monotonic()
        if self._started_s is None:
            self._started_s = now_s
        return self.make(now_s - self._started_s)


@dataclass(frozen=True, slots=True)
class Scenario:
    """`world` is where its processes and users are looked up; without one, nobody is looked up."""

    name: str
    summary: str
    sources: Callable[[float], list[Source]]
    world: ProcessWorld | None = None


def daylight(elapsed_s: float) -> float:
    """How busy people are, 0 (night) to 1 (afternoon). A run begins in the morning: there is life at once."""
    phase = (elapsed_s / DAY_S + _MORNING) % 1.0
    return 0.5 - 0.5 * math.cos(2 * math.pi * phase)


def daylight_seconds(elapsed_s: float) -> float:
    """The daylight added up since the start: for what is counted while people work."""
    turn = 2 * math.pi / DAY_S
    return elapsed_s / 2 - (math.sin(turn * elapsed_s + 2 * math.pi * _MORNING) - math.sin(2 * math.pi * _MORNING)) / (
        2 * turn
    )


def wobble(elapsed_s: float, period_s: float, offset: float = 0.0) -> float:
    """A smooth, repeatable unrest between -1 and 1."""
    return math.sin(2 * math.pi * elapsed_s / period_s + offset) * math.cos(elapsed_s / (1.7 * period_s) + 2 * offset)
