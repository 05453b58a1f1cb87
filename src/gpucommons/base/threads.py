"""Work off the event loop: on a daemon thread, or in an event loop of its own.

A thread of its own keeps what it serves from being delayed by the agent's work, and the agent from being delayed by
it.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

import uvloop

# Blocking work off the event loop, on a daemon thread, which does not delay the exit of the process.

T = TypeVar("T")
log = logging.getLogger(__name__)


class ThreadsExhausted(OSError):
    """The process may start no further thread now. One line."""


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Not on the loop's thread pool: at exit the interpreter waits for the threads of a pool.

    Raises ThreadsExhausted.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        settle: Callable[[], None]
        try:
            settle = partial(_fulfil, done, work())
        except Exception as error:
            settle = partial(_fail, done, error)
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle)

    try:
        threading.Thread(target=run, name="web-blocking", daemon=True).start()
    except RuntimeError:
        raise ThreadsExhausted("no thread can be started: the limit of tasks is reached (TasksMax)") from None
    return await done


def _fulfil(done: asyncio.Future[T], result: T) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[T], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)


# A thread that carries out what it is given, one after another.


class WorkerThread:
    """Call it from any thread. It starts with the first work, and is a daemon: work that hangs delays no exit.

    An exception ends its work only, and is logged.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._works: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    @property
    def native_id(self) -> int:
        """0 before the first work."""
        return 0 if self._thread is None else self._thread.native_id or 0

    @property
    def waiting(self) -> int:
        """How many works have not begun."""
        return self._works.qsize()

    def submit(self, work: Callable[[], object]) -> None:
        self._works.put(work)
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def close(self, within_s: float = 0.0) -> bool:
        """Ends after the work that was submitted. Returns whether it has, in this time."""
        self._works.put(None)
        if self._thread is None:
            return True
        if within_s:
            self._thread.join(within_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            try:
                work()
            except Exception:
                log.exception("%s: an unexpected error; it goes on", self._name)


# An event loop in a thread of its own, so that what it serves is not delayed by the agent's work, nor delays it.


class LoopThread:
    """Call `start` and `stop` from the agent's loop, `call` from any thread.

    `close` ends the service, on the thread's loop.
    """

    def __init__(self, name: str, close: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._close = close
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread: threading.Thread | None = None

    async def start(self, opened: Callable[[], Awaitable[None]]) -> None:
        """`opened` starts the service on the thread's loop. Its exception is raised here."""
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(opened, started), name=self._name, daemon=True)
        self._thread.start()
        try:
            await asyncio.wrap_future(started)
        except Exception:
            await self.stop()
            raise

    async def stop(self) -> None:
        thread = self._thread
        if thread is not None:
            self.call(self._stop.set)
            await asyncio.to_thread(thread.join)

    def call(self, function: Callable[[], object]) -> None:
        """Runs the function on the thread's loop, unless that is closed."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # The loop may be closed at any moment: a check before the call would race.
                loop.call_soon_threadsafe(function)

    def _run(self, opened: Callable[[], Awaitable[None]], started: "Future[None]") -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            self._loop = runner.get_loop()
            runner.run(self._serve(opened, started))

    async def _serve(self, opened: Callable[[], Awaitable[None]], started: "Future[None]") -> None:
        try:
            await opened()
        except Exception as error:
            started.set_exception(error)
            return
        started.set_result(None)
        await self._stop.wait()
        await self._close()
