"""One thread per source that may block. A hung read blocks only this thread.

It is a daemon thread, so a driver call that never returns does not keep the process from exiting. Reads run one after
the other.
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
        """Run `read` on the thread; the future resolves on the running event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()

        def job() -> None:
            try:
                outcome, error = read(), None
            except Exception as raised:
                outcome, error = None, raised
            # The loop may have been closed during the read.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, future, outcome, error)

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"source-{self._name}", daemon=True)
            self._thread.start()
        self._jobs.put(job)
        return future

    def close(self) -> None:
        """End the thread after the current read; does not wait for it."""
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
