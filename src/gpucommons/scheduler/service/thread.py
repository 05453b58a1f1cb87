"""The scheduler in a thread of its own, so that no scrape, page or sample of the agent holds up a hand-off.

What it shows is one attribute; what it is told is handed over to its loop. Nothing else crosses between the threads.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

import uvloop

from gpucommons.model.sharing import SharingReading
from gpucommons.scheduler.policy.devices import GpuFacts
from gpucommons.scheduler.policy.quotas import QuotaRule, QuotaValues
from gpucommons.scheduler.policy.settings import PolicySettings
from gpucommons.scheduler.service.control_socket import ControlSocket
from gpucommons.scheduler.service.server import SchedulerServer

# How long another thread of ours may compute before the scheduler gets its turn, three times in a hand-off: Python's
# own default is fifty times that, and every hand-off during a scrape would feel it.
_SWITCH_INTERVAL_S: Final = 0.0001


class SchedulerThread:
    """Start and stop it from the agent's loop; tell it things from any thread."""

    def __init__(self, settings: PolicySettings, rules: Sequence[QuotaRule] = ()) -> None:
        self._settings = settings
        self._rules = tuple(rules)
        self._server: SchedulerServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        """Raises ListenError if a socket cannot be served; then no thread is left."""
        sys.setswitchinterval(min(_SWITCH_INTERVAL_S, sys.getswitchinterval()))
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="scheduler", daemon=True)
        self._thread.start()
        try:
            await asyncio.wrap_future(started)
        except Exception:
            await self.stop()
            raise

    async def stop(self) -> None:
        thread = self._thread
        if thread is not None:
            self._tell(self._stop.set)
            await asyncio.to_thread(thread.join)

    @property
    def reading(self) -> SharingReading | None:
        """The latest reading; None before the start."""
        return None if self._server is None else self._server.reading

    def update_gpus(self, facts: Sequence[GpuFacts]) -> None:
        self._to_server(lambda server: server.update_gpus(facts))

    def set_annotations(self, annotations: Mapping[tuple[str, str], QuotaValues]) -> None:
        self._to_server(lambda server: server.set_annotations(annotations))

    def set_rules(self, rules: Sequence[QuotaRule]) -> None:
        self._to_server(lambda server: server.set_rules(rules))

    def _to_server(self, news: Callable[[SchedulerServer], None]) -> None:
        server = self._server
        if server is not None:
            self._tell(lambda: news(server))

    def _tell(self, call: Callable[[], object]) -> None:
        """Runs it on the scheduler's loop, unless that has ended."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it is closed, perhaps since a moment: asking before would be too early
                loop.call_soon_threadsafe(call)

    def _run(self, started: "Future[None]") -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            self._loop = runner.get_loop()
            runner.run(self._serve(started))

    async def _serve(self, started: "Future[None]") -> None:
        server = SchedulerServer(self._settings, self._rules)
        control = ControlSocket(server)
        try:
            await server.start()
            await control.start()
        except Exception as error:
            await server.stop()
            started.set_exception(error)
            return
        self._server = server
        started.set_result(None)
        await self._stop.wait()
        await control.stop()
        await server.stop()
