"""Keeps the pauses of Python's garbage collector short: while it runs, every thread of the agent waits.

Objects that exist after the start are never examined again. Of newer objects only the young generations are examined,
which takes about a millisecond; a full collection runs every ten minutes. This changes the whole process: only `up` may
call it.
"""

import asyncio
import gc
from typing import Final

_YOUNG_THRESHOLD: Final = 700
# Low, so that the middle generation stays small and its collection short.
_MIDDLE_THRESHOLD: Final = 2
_NEVER: Final = 1_000_000_000
_FULL_COLLECTION_EVERY_S: Final = 600.0


def shorten_pauses() -> None:
    """Call once everything is loaded and running."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_THRESHOLD, _MIDDLE_THRESHOLD, _NEVER)


async def collect_garbage_periodically() -> None:
    """The only full collections: they free cycles that have become old."""
    while True:
        await asyncio.sleep(_FULL_COLLECTION_EVERY_S)
        gc.collect()
