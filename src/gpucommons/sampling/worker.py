"""A thread of its own for a source that may block. A hung read holds this thread and nothing else.

The thread is a daemon, so a driver call that never returns cannot keep the process from ending. Never
runs two reads at once: a new one waits until the last has come back.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable


class ReadThread:
    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, read: Callable[[], object]) -> "asyncio.Future[object]":
        """Run `read` on the thread; the future resolves on the event loop that is running now."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()

        def job() -> None:
            try:
                outcome, error = read(), None
            except Exception as raised:
                outcome, error = None, raised
            # The loop may have closed while we read: then nobody is left to tell.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, future, outcome, error)

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"source-{self._name}", daemon=True)
            self._thread.start()
        self._jobs.put(job)
        return future

    def close(self) -> None:
        """Let the thread end after the read in hand; does not wait for it."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _resolve(future: "asyncio.Future[object]", outcome: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(outcome)
    else:
        future.set_exception(error)
