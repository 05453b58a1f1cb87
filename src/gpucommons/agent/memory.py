"""The agent's own memory: short pauses of the garbage collector, and large objects given back to the kernel.

While the collector runs, every thread waits, and a hand-off with them.
"""

import asyncio
import ctypes
import gc
from enum import Enum
from typing import Final, NamedTuple

from gpucommons.model.snapshot import Snapshot
from gpucommons.sources.agent import own_rss_bytes

# Keeps the pauses of Python's garbage collector short and away from hand-offs: while it runs, every thread waits.
#
# The young generations are examined as objects are made, which takes about a millisecond. Old objects are examined when
# the process has grown, at a moment at which no client is about to get its turn. What survives is not examined again: a
# pause depends on what is new, not on the size of the process. Every ten minutes, at such a moment, everything is
# examined. This changes the whole process: only `up` may call it.

_YOUNG_THRESHOLD: Final = 700
# Low, so that the middle generation stays small and its collection short.
_MIDDLE_THRESHOLD: Final = 2
_NEVER: Final = 1_000_000_000
_GENERATIONS: Final = 3
# A collection of this much garbage takes less than ten milliseconds.
_GROWTH_BYTES: Final = 8 * 1024 * 1024
_EVERYTHING_EVERY_S: Final = 600.0
# A collection waits for a calm moment until the growth or the time is this many times as large.
_PATIENCE: Final = 6
# The next hand-off is at least this far away in a calm moment: longer than a reading's age and a collection together.
_CALM_S: Final = 2.0


class Examine(Enum):
    NOTHING = "nothing"
    NEW = "new"
    EVERYTHING = "everything"


class Progress(NamedTuple):
    """What has changed since the last collections; None where the size of the process is unknown."""

    grown_bytes: int | None
    everything_s: float


def to_examine(progress: Progress, calm: bool) -> Examine:
    patience = 1 if calm else _PATIENCE
    if progress.everything_s >= _EVERYTHING_EVERY_S * patience:
        return Examine.EVERYTHING
    grown = progress.grown_bytes
    return Examine.NEW if grown is not None and grown > _GROWTH_BYTES * patience else Examine.NOTHING


def is_calm(snapshot: Snapshot) -> bool:
    """No client waits for a turn, or the turns in its way last for a while."""
    sharing = snapshot.readings.sharing
    if sharing is None:
        return True
    return all(
        not (gpu.request_queue or gpu.wait_queue) or (gpu.quantum_left_s is not None and gpu.quantum_left_s >= _CALM_S)
        for gpu in sharing.gpus
    )


def shorten_pauses() -> None:
    """Call once everything is loaded and running."""
    # The collector was off while modules were loaded: what they dropped is among what is frozen.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_THRESHOLD, _MIDDLE_THRESHOLD, _NEVER)


class GarbageCollection:
    """The only collections of old objects: they free cycles that have become old. Call it on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._everything_s = self._loop.time()
        self._last_bytes = own_rss_bytes()
        self._collecting: asyncio.Task[None] | None = None

    def observe(self, snapshot: Snapshot) -> None:
        """Called with every snapshot, which has the size of the process."""
        if self._collecting is not None:
            return
        progress = Progress(self._growth(snapshot), self._loop.time() - self._everything_s)
        examine = to_examine(progress, is_calm(snapshot))
        if examine is not Examine.NOTHING:
            self._collecting = self._loop.create_task(self._collect(examine), name="garbage")

    def stop(self) -> None:
        if self._collecting is not None:
            self._collecting.cancel()

    async def _collect(self, examine: Examine) -> None:
        if examine is Examine.EVERYTHING:
            gc.unfreeze()
            self._everything_s = self._loop.time()
        for generation in range(_GENERATIONS):
            gc.collect(generation)
            # Scrapes and hand-offs go on between two generations.
            await asyncio.sleep(0)
        gc.freeze()
        self._last_bytes = own_rss_bytes()
        self._collecting = None

    def _growth(self, snapshot: Snapshot) -> int | None:
        agent = snapshot.readings.agent
        now_bytes = None if agent is None else agent.rss_bytes
        return None if self._last_bytes is None or now_bytes is None else now_bytes - self._last_bytes


# Makes glibc's malloc return the memory of large objects to the kernel once they are freed.
#
# By default it keeps large blocks for reuse once some have been freed, and gives each thread a heap of its own. Between
# the blocks that stay, much of that memory is then neither used nor returned: 13 of 194 MB with 32,000 processes on
# GPUs. This changes the whole process: only `up` may call it.

# The parameters of mallopt(3).
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
# A body of /metrics with some thousand series has about this size. The kernel clears the pages of each such block.
_LARGE_BYTES: Final = 1024 * 1024


def return_freed_memory() -> None:
    """Call before the first thread starts. Another C library's malloc stays as it is."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    # A fixed threshold ends glibc's own adjustment. One heap is enough: Python's lock lets one thread run at a time.
    mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)
    mallopt(_M_ARENA_MAX, 1)
