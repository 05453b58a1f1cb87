"""Keeps the pauses of Python's garbage collector short: while it runs, every thread of the agent waits.

Objects that exist after the start are never examined again. Of newer objects only the young generations are examined,
which takes about a millisecond. A full collection runs every ten minutes, and when the process has grown: its pause
grows with the garbage, so it must not wait until there is much. This changes the whole process: only `up` may call it.
"""

import asyncio
import gc
from typing import Final

from gpucommons.sources.agent import own_rss_bytes

_YOUNG_THRESHOLD: Final = 700
# Low, so that the middle generation stays small and its collection short.
_MIDDLE_THRESHOLD: Final = 2
_NEVER: Final = 1_000_000_000
_GENERATIONS: Final = 3
_FULL_COLLECTION_EVERY_S: Final = 600.0
_CHECK_EVERY_S: Final = 1.0
# A full collection of this much garbage takes tens of milliseconds.
_GROWTH_BYTES: Final = 16 * 1024 * 1024


def shorten_pauses() -> None:
    """Call once everything is loaded and running."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_THRESHOLD, _MIDDLE_THRESHOLD, _NEVER)


async def collect_garbage() -> None:
    """The only full collections: they free cycles that have become old."""
    loop = asyncio.get_running_loop()
    last_s, last_bytes = loop.time(), own_rss_bytes()
    while True:
        await asyncio.sleep(_CHECK_EVERY_S)
        if loop.time() - last_s < _FULL_COLLECTION_EVERY_S and not _has_grown(last_bytes):
            continue
        for generation in range(_GENERATIONS):
            gc.collect(generation)
            # Scrapes and hand-offs go on between two generations.
            await asyncio.sleep(0)
        last_s, last_bytes = loop.time(), own_rss_bytes()


def _has_grown(last_bytes: int | None) -> bool:
    now_bytes = own_rss_bytes()
    return last_bytes is not None and now_bytes is not None and now_bytes - last_bytes > _GROWTH_BYTES
