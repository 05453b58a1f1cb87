"""Lanes: queues of calls, usually one per GPU. The calls of a lane wait for each other, and for nothing else.

A lane has two threads: one for what may take long (lock, checkpoint, restore), one for unlocking, so that a lock that
waits for a deep queue, or hangs, never keeps another program of that GPU paused.
"""

import queue
import threading
from collections.abc import Callable
from typing import Final

MOST_LANES: Final = 64
MOST_WAITING: Final = 64

Call = Callable[[], None]


class _Worker:
    def __init__(self, name: str) -> None:
        # Its threads wake faster than those of queue.Queue: every turn waits for that.
        self._queue: queue.SimpleQueue[Call] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, call: Call) -> bool:
        if self._queue.qsize() >= MOST_WAITING:
            return False
        self._queue.put(call)
        return True

    def _run(self) -> None:
        while True:
            self._queue.get()()


class Lanes:
    """Used by one thread."""

    def __init__(self) -> None:
        self._workers: dict[tuple[str, bool], _Worker] = {}

    def submit(self, lane: str, *, resumes: bool, call: Call) -> bool:
        """Whether the call was queued; False where the lane, or the number of lanes, is full."""
        worker = self._workers.get((lane, resumes))
        if worker is None:
            if len(self._workers) >= 2 * MOST_LANES:
                return False
            try:
                worker = self._workers[lane, resumes] = _Worker(f"{'resume' if resumes else 'pause'} {lane}")
            except RuntimeError:
                return False
        return worker.submit(call)
