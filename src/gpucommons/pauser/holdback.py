"""Holds programs back while another one works: for programs of class latency, and for those of class background.

A request to a server takes 5 to 100 ms, too short for a message to the agent and back. So the agent only names the
programs: a *guard* is one whose work others wait for, and each guard has a group of *yielding* programs. This thread
looks at the CPU time of the guards; while one of them works, the programs that yield to it are locked.

Work is seen in the CPU clock of the whole process (clock_gettime of its pid): one call of a microsecond, which counts
all threads up to now. Reading /proc/PID/schedstat of each thread costs fifty times as much. A program that launches
kernels or waits for them uses the CPU; one that waits for requests does not. A lock itself waits for what the other
program has submitted, 1 to 30 ms.

A guard has an allowance: the share of the time for which others may be held back for it, given by the agent. It is
kept as a bucket of `BUCKET_S` seconds. No pause lasts longer than `LONGEST_S` at once, also where the agent hangs. All
pauses are those of pauses.py: recorded before they begin, ended by whatever ends others.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.calls import CallThreads

# Work is noticed within this time and a little more.
POLL_S: Final = 0.004
# It works if it used the CPU for this part of the time between two looks, and still does for a moment afterwards: a
# program that waits for the GPU may sleep.
_WORK_RATIO: Final = 0.25
LINGER_S: Final = 0.02
# The longest pause in one piece, and how long others then run at least.
LONGEST_S: Final = 2.0
_REST_S: Final = 0.2
# The size of the bucket, and what must be in it before a pause begins.
BUCKET_S: Final = 2.0
_LEAST_S: Final = 0.1
_IDLE_S: Final = 0.2
_MAX_THREADS: Final = 64
MAX_NAMED: Final = 1024

# The guard; whether others are held back for it from now on; if not, for how long they were.
Report = Callable[[ProcessKey, bool, float], None]


def cpu_time_s(pid: int) -> float | None:
    """What all threads of a process have used of the CPU until now; None where it has ended."""
    try:
        # The kernel's name for the CPU clock of a process: the inverted pid, then CPUCLOCK_SCHED.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


@dataclass(slots=True)
class _Guard:
    process: ProcessKey
    share: float
    cpu_s: float | None = None
    looked_s: float = 0.0
    worked_s: float = float("-inf")
    bucket_s: float = BUCKET_S
    # Since when others are held back for it; None: they are not.
    holds_since_s: float | None = None
    rests_until_s: float = float("-inf")

    def look(self, cpu_s: float | None, now_s: float) -> None:
        before_s, elapsed_s = self.cpu_s, now_s - self.looked_s
        if cpu_s is not None and before_s is not None and cpu_s - before_s >= _WORK_RATIO * elapsed_s > 0.0:
            self.worked_s = now_s
        self.cpu_s, self.looked_s = cpu_s, now_s
        spent_s = elapsed_s if self.holds_since_s is not None else 0.0
        self.bucket_s = min(BUCKET_S, self.bucket_s + self.share * elapsed_s - spent_s)

    def holds(self, now_s: float) -> bool:
        """Whether others are to be held back for it now."""
        since_s = self.holds_since_s
        if since_s is not None and now_s - since_s >= LONGEST_S:
            self.rests_until_s = now_s + _REST_S
        if now_s - self.worked_s >= LINGER_S or now_s < self.rests_until_s:
            return False
        return self.bucket_s >= _LEAST_S if since_s is None else self.bucket_s > 0.0


@dataclass(slots=True)
class _Yielding:
    process: ProcessKey
    under_way: bool = False
    held: bool = False
    again_s: float = 0.0


@dataclass(slots=True)
class _Group:
    guards: dict[ProcessKey, _Guard] = field(default_factory=dict)
    yielding: dict[ProcessKey, _Yielding] = field(default_factory=dict)


class HoldBack:
    """`hold` pauses a program, or returns after how long to try again; `let_go` ends that. Both may take long: they are
    called on threads of their own."""

    def __init__(
        self,
        hold: Callable[[ProcessKey], float | None],
        let_go: Callable[[ProcessKey], None],
        report: Report,
        cpu_time_s: Callable[[int], float | None] = cpu_time_s,
    ) -> None:
        self._cpu_time_s = cpu_time_s
        self._hold = hold
        self._let_go = let_go
        self._report = report
        self._groups: dict[str, _Group] = {}
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._calls = CallThreads("hold", _MAX_THREADS)
        self.looked_s = time.monotonic()

    def start(self) -> None:
        threading.Thread(target=self._run, name="holdback", daemon=True).start()

    # -- what the agent names

    def guard(self, process: ProcessKey, group: str, share: float) -> bool:
        """Programs that yield in this group are held back while it works. False where there are too many."""
        with self._lock:
            guards = self._groups.setdefault(group, _Group()).guards
            if process in guards:
                guards[process].share = share
            elif len(guards) >= MAX_NAMED:
                return False
            else:
                guards[process] = _Guard(process, share, looked_s=time.monotonic())
        self._work.set()
        return True

    def yield_to(self, process: ProcessKey, group: str) -> bool:
        """It is held back while a guard of this group works."""
        with self._lock:
            yielding = self._groups.setdefault(group, _Group()).yielding
            if process not in yielding and len(yielding) >= MAX_NAMED:
                return False
            yielding.setdefault(process, _Yielding(process))
        self._work.set()
        return True

    def leave(self, process: ProcessKey) -> None:
        """It neither guards nor yields any more."""
        with self._lock:
            for name, group in list(self._groups.items()):
                group.guards.pop(process, None)
                program = group.yielding.pop(process, None)
                if program is not None:
                    self._end(program)
                if not group.guards and not group.yielding:
                    del self._groups[name]

    def clear(self) -> None:
        with self._lock:
            self._groups.clear()

    # -- the thread

    def _run(self) -> None:
        while True:
            self.looked_s = time.monotonic()
            with self._lock:
                idle = not any(group.guards and group.yielding for group in self._groups.values())
                if idle:
                    self._work.clear()
                    self._end_all()
            if idle:
                self._work.wait(_IDLE_S)
                continue
            time.sleep(POLL_S)
            self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        reports = []
        with self._lock:
            for group in self._groups.values():
                if not group.yielding:
                    continue
                holding = False
                for guard in group.guards.values():
                    guard.look(self._cpu_time_s(guard.process.pid), now_s)
                    holds = guard.holds(now_s)
                    holding = holding or holds
                    if holds and guard.holds_since_s is None:
                        guard.holds_since_s = now_s
                        reports.append((guard.process, True, 0.0))
                    elif not holds and guard.holds_since_s is not None:
                        reports.append((guard.process, False, now_s - guard.holds_since_s))
                        guard.holds_since_s = None
                for program in group.yielding.values():
                    if holding:
                        self._begin(program, now_s)
                    else:
                        self._end(program)
        for row in reports:
            self._report(*row)

    def _begin(self, program: _Yielding, now_s: float) -> None:
        if program.held or program.under_way or now_s < program.again_s:
            return
        program.held = program.under_way = True

        def hold() -> None:
            again_s = self._hold(program.process)
            with self._lock:
                program.under_way = False
                if again_s is not None:
                    program.held, program.again_s = False, time.monotonic() + again_s

        if not self._calls.submit(hold):
            program.held = program.under_way = False

    def _end(self, program: _Yielding) -> None:
        if program.held:
            program.held = False
            self._calls.submit(lambda: self._let_go(program.process))

    def _end_all(self) -> None:
        for group in self._groups.values():
            for guard in group.guards.values():
                guard.holds_since_s = None
            for program in group.yielding.values():
                self._end(program)
