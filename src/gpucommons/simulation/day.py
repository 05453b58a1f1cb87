"""The day of the simulation, which takes ten minutes: when people are active, and how values vary.

Every simulated value is a function of the seconds since the start and a fixed seed: two runs are identical.
"""

import math
from typing import Final

DAY_S: Final = 600.0
_MORNING: Final = 0.35


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
