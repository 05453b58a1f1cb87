"""Looks at programs while nothing is asked of them: which are stopped, and which calls do not return.

The agent names the programs to look at (watch); it hears of each change. A call under way is looked at from
`FIRST_LOOK_S` on: it is given up when its process is found stopped, or when it has taken longer than it may. Its caller
then has its answer, and the call itself goes on in its thread until it returns.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import Code, Failure, failure
from gpucommons.pauser.protocol import LATE_S
from gpucommons.pauser.stopped import why_stopped

FIRST_LOOK_S: Final = 0.03
# How soon a program that its user stops is noticed. One that is continued is noticed sooner: it runs without a turn.
_LOOK_S: Final = 0.1
_LOOK_AT_STOPPED_S: Final = 0.02
MAX_WATCHED: Final = 4096
# Every thread of a process is looked at in one of so many looks: that takes longer.
_THOROUGH: Final = 10

# What keeps a program from going on, as a failure; None: nothing does.
HeldUp = Failure | None


@dataclass(slots=True, eq=False)
class _CallUnderWay:
    process: ProcessKey
    begun_s: float
    give_up_s: float
    give_up: Callable[[Failure], None]
    given_up: Failure | None = None


class Looks:
    """`changed` is called for each watched program that stops, whose call hangs, or that goes on: with the failure, or
    None. `is_held` says whether a program is still paused by a pause that is to end: it goes on when that has ended.

    `lets_run` says whether a process of a suspended job has to run now, and continues it if it is stopped.

    `stops` is false where the pauser itself stops programs: then that is not looked at.
    """

    def __init__(
        self,
        changed: Callable[[ProcessKey, HeldUp], None],
        is_held: Callable[[ProcessKey], bool],
        lets_run: Callable[[ProcessKey], bool] = lambda _: False,
        *,
        stops: bool,
    ) -> None:
        self._changed = changed
        self._is_held = is_held
        self._lets_run = lets_run
        self._stops = stops
        self._watched: dict[ProcessKey, HeldUp] = {}
        self._calls: set[_CallUnderWay] = set()
        self._lock = threading.Lock()
        self._work = threading.Event()
        self.looked_s = time.monotonic()

    def start(self) -> None:
        threading.Thread(target=self._run, name="looks", daemon=True).start()

    # -- what is looked at

    def watch(self, process: ProcessKey) -> bool:
        """False where there are too many."""
        with self._lock:
            if len(self._watched) >= MAX_WATCHED and process not in self._watched:
                return False
            self._watched.setdefault(process, None)
        self._work.set()
        return True

    def unwatch(self, process: ProcessKey) -> None:
        with self._lock:
            self._watched.pop(process, None)

    def unwatch_all(self) -> None:
        with self._lock:
            self._watched.clear()

    @contextmanager
    def call(self, process: ProcessKey, within_s: float, give_up: Callable[[Failure], None]) -> Iterator[None]:
        """Around a call that takes at most `within_s`."""
        now_s = time.monotonic()
        under_way = _CallUnderWay(process, now_s, now_s + within_s + LATE_S, give_up)
        with self._lock:
            self._calls.add(under_way)
        if not self._work.is_set():
            self._work.set()
        try:
            yield
        finally:
            with self._lock:
                self._calls.discard(under_way)

    def why_not(self, process: ProcessKey, *, every_thread: bool = True) -> Failure | None:
        """Why the process gets no call now."""
        if self._lets_run(process):
            return None
        why = why_stopped(process.pid, every_thread=every_thread) if self._stops else ""
        return failure(Code.STOPPED, why) if why else None

    def report(self, process: ProcessKey, obstacle: Failure) -> None:
        """A request found this: the agent hears of it before the answer, and later that the program goes on."""
        with self._lock:
            if process not in self._watched or self._watched[process] is not None:
                return
            self._watched[process] = obstacle
        self._changed(process, obstacle)

    # -- the thread

    def _run(self) -> None:
        looks, next_look_s = 0, 0.0
        while True:
            self.looked_s = time.monotonic()
            if not self._work.wait(2 * _LOOK_S):
                continue
            self._look_at_calls()
            is_due = time.monotonic() >= next_look_s
            if is_due:
                looks, next_look_s = looks + 1, time.monotonic() + _LOOK_S
            self._look_at_programs(all_of_them=is_due, every_thread=looks % _THOROUGH == 0)
            with self._lock:
                if not self._calls and not self._watched:
                    self._work.clear()
                    continue
                soon = self._calls or any(obstacle is not None for obstacle in self._watched.values())
            time.sleep(_LOOK_AT_STOPPED_S if soon else max(0.0, next_look_s - time.monotonic()))

    def _look_at_calls(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            late = [call for call in self._calls if call.given_up is None and now_s - call.begun_s >= FIRST_LOOK_S]
        for call in late:
            obstacle = self.why_not(call.process) or (failure(Code.HANGS) if now_s >= call.give_up_s else None)
            if obstacle is None:
                continue
            with self._lock:
                if call not in self._calls:
                    continue
                call.given_up = obstacle
            self.report(call.process, obstacle)
            call.give_up(obstacle)

    def _look_at_programs(self, *, all_of_them: bool, every_thread: bool) -> None:
        with self._lock:
            watched = [row for row in self._watched.items() if all_of_them or row[1] is not None]
            given_up = {call.process: call.given_up for call in self._calls if call.given_up is not None}
        for process, before in watched:
            now = self.why_not(process, every_thread=every_thread or before is not None) or given_up.get(process)
            if now is None and before is not None and self._is_held(process):
                continue
            if (before is None) == (now is None) and (before is None or now is None or before.code == now.code):
                continue
            with self._lock:
                if process not in self._watched:
                    continue
                self._watched[process] = now
            self._changed(process, now)
