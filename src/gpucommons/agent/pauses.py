"""Keeps Python's cycle collector from stopping the agent: no thread runs while it looks, whatever it waits for.

What is loaded at the start is never looked at again; of what came since, only the young, which takes a millisecond. All
of it is looked at when told, seldom. Changes the whole process: for `up` alone, never for a library.
"""

import asyncio
import gc
from typing import Final

_YOUNG: Final = 700
# A look at those that survived follows so many looks at the new ones: few enough to be a short one.
_LOOKS: Final = 2
_NEVER: Final = 1_000_000_000
_FULL_LOOK_S: Final = 600.0


def shorten_pauses() -> None:
    """Call once all is loaded and running."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _LOOKS, _NEVER)


async def look_at_all_at_times() -> None:
    """Cycles that grew old are freed here and nowhere else."""
    while True:
        await asyncio.sleep(_FULL_LOOK_S)
        gc.collect()
