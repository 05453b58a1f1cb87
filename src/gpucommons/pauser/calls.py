"""The threads that make the driver's calls: each call has one to itself, so that a call that hangs holds up no other.

A thread that is free takes the next call; where none is free, another is started. A call that hangs keeps its thread
until it returns. Calls that resume have threads of their own: however many calls hang, programs are resumed.
"""

import queue
import threading
import traceback
from collections.abc import Callable
from typing import Final

MAX_PAUSING: Final = 256
MAX_RESUMING: Final = 128

Call = Callable[[], None]


class CallThreads:
    """Used by one thread."""

    def __init__(self, name: str, max_threads: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._threads = 0
        # Threads wake faster by it than by queue.Queue: every turn waits for that.
        self._queue: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._under_way = 0
        self._lock = threading.Lock()

    def submit(self, call: Call) -> bool:
        """Whether a thread takes the call at once; False where as many as allowed are inside calls."""
        with self._lock:
            if self._under_way >= self._threads and not self._start():
                return False
            self._under_way += 1
        self._queue.put(call)
        return True

    def _start(self) -> bool:
        if self._threads >= self._max_threads:
            return False
        try:
            threading.Thread(target=self._run, name=f"{self._name} {self._threads}", daemon=True).start()
        except RuntimeError:
            return False
        self._threads += 1
        return True

    def _run(self) -> None:
        while True:
            call = self._queue.get()
            try:
                call()
            except Exception:
                # The thread goes on: the next call must not wait for one that is gone.
                traceback.print_exc()
            with self._lock:
                self._under_way -= 1
