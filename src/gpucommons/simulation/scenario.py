"""A scenario: a name and simulated sources in place of the real ones.

Every simulated value is a function of the seconds since the start and a fixed seed: two runs are identical. A day takes
ten minutes.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from gpucommons.owners.attribution_stage import ProcessSources
from gpucommons.sources.source import Source

DAY_S = 600.0
_MORNING = 0.35


def simulated_source(
    name: str,
    feeds: str,
    produces: type,
    make: Callable[[float], object],
    cadence_s: float,
    monotonic: Callable[[], float],
    essential: bool = False,
) -> Source:
    """A source whose reading `make` computes from the seconds since the first read."""
    started_s: float | None = None

    def read() -> object:
        nonlocal started_s
        now_s = monotonic()
        started_s = now_s if started_s is None else started_s
        return make(now_s - started_s)

    return Source(name, feeds, produces, read, cadence_s, essential=essential, runs_on="loop")


class Scenario(NamedTuple):
    """`sources` makes its sources for a cadence and a clock. Without a `world` there is no attribution."""

    name: str
    summary: str
    sources: Callable[[float, Callable[[], float]], list[Source]]
    world: ProcessSources | None = None


def daylight(elapsed_s: float) -> float:
    """The activity of people, 0 (night) to 1 (afternoon). A run starts in the morning."""
    phase = (elapsed_s / DAY_S + _MORNING) % 1.0
    return 0.5 - 0.5 * math.cos(2 * math.pi * phase)


def daylight_seconds(elapsed_s: float) -> float:
    """The integral of `daylight` since the start, for counters that grow while people work."""
    turn = 2 * math.pi / DAY_S
    return elapsed_s / 2 - (math.sin(turn * elapsed_s + 2 * math.pi * _MORNING) - math.sin(2 * math.pi * _MORNING)) / (
        2 * turn
    )


def wobble(elapsed_s: float, period_s: float, offset: float = 0.0) -> float:
    """A smooth, repeatable variation between -1 and 1."""
    return math.sin(2 * math.pi * elapsed_s / period_s + offset) * math.cos(elapsed_s / (1.7 * period_s) + 2 * offset)
