"""For how long a program has used neither its GPU nor the CPU, and when a parked one goes on. Pure.

A program that is paused by others' turns does not count as idle, and neither does one whose activity is not known.
A parked program sleeps in its first CUDA call, so that only the CPU time before that call shows that it goes on: from
0.2 ms to a few milliseconds. Programs that wait for their user use some CPU as well (heartbeats, polls); what a program
used per second while it was idle is its background, and only more than that counts. It is also known which threads
did this: a thread that slept all the time while the program was idle, and a thread that is new, show its use by far
less. So the answer of a server is noticed, which takes 1.4 ms of a thread of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

# CPU seconds per second below which a program counts as idle.
IDLE_CPU_RATIO: Final = 0.02
# CPU seconds, in one look, by which a parked program exceeds its background when it goes on.
WAKE_CPU_S: Final = 0.0015
# CPU seconds, in one look, of a thread that slept while the program was idle.
_WAKE_THREAD_S: Final = 0.0001
# After so many looks it is known which threads sleep.
_KNOWN_LOOKS: Final = 3
# A program that was parked while it worked runs on until its next CUDA call.
_QUIET_S: Final = 2.0
_BACKGROUND_FACTOR: Final = 3.0


# The CPU seconds of each thread by its id, or of the whole process where the kernel does not count threads.
ThreadTimes = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class IdleThreads:
    """What the threads of a program do while it is idle: those that use the CPU at times, and whether threads come and
    go."""

    restless: frozenset[int] = frozenset()
    renewed: bool = False

    def after(self, before: ThreadTimes, now: ThreadTimes) -> "IdleThreads":
        active = {thread for thread, used_s in now.items() if used_s > before.get(thread, 0.0)}
        return IdleThreads(self.restless | active, self.renewed or before.keys() != now.keys())

    def show_use(self, before: ThreadTimes, now: ThreadTimes) -> bool:
        """Whether a thread worked that slept while the program was idle, or did not exist."""
        return any(
            used_s - before.get(thread, 0.0) >= _WAKE_THREAD_S
            for thread, used_s in now.items()
            if thread not in self.restless and (thread in before or not self.renewed)
        )


@dataclass(frozen=True, slots=True)
class Idleness:
    """`gpu_s` and `cpu_s` are since when the GPU and the CPU have been idle; None: they are not.

    `threads` and `at_s` are the CPU times at the last look, `background` the CPU seconds per second while idle. `looks`
    counts those since `cpu_s`, of which `idle_threads` is known.
    """

    gpu_s: float | None = None
    cpu_s: float | None = None
    threads: ThreadTimes | None = None
    at_s: float = 0.0
    background: float = 0.0
    looks: int = 0
    idle_threads: IdleThreads = IdleThreads()

    def idle_s(self, now_s: float) -> float:
        if self.gpu_s is None or self.cpu_s is None:
            return 0.0
        return max(0.0, now_s - max(self.gpu_s, self.cpu_s))

    @property
    def known_threads(self) -> IdleThreads | None:
        """None until it has been looked at often enough."""
        return self.idle_threads if self.cpu_s is not None and self.looks >= _KNOWN_LOOKS else None


def after_gpu(before: Idleness, idle: bool, as_of_s: float) -> Idleness:
    """A reading of the GPU: whether the program was free to run and did not use it."""
    if not idle:
        return Idleness()
    return before if before.gpu_s is not None else replace(before, gpu_s=as_of_s)


def after_cpu(before: Idleness, threads: ThreadTimes | None, now_s: float) -> Idleness:
    """A look at the CPU times of a program whose GPU is idle; None: they could not be read."""
    if threads is None:
        return replace(before, cpu_s=None, threads=None, looks=0, idle_threads=IdleThreads())
    if before.threads is None:
        return replace(before, cpu_s=now_s, threads=threads, at_s=now_s)
    passed_s = now_s - before.at_s
    if passed_s <= 0:
        return before
    rate = _grown_s(before.threads, threads) / passed_s
    if rate >= IDLE_CPU_RATIO:
        return replace(before, cpu_s=now_s, threads=threads, at_s=now_s, looks=0, idle_threads=IdleThreads())
    return replace(
        before,
        threads=threads,
        at_s=now_s,
        background=0.9 * before.background + 0.1 * rate,
        looks=before.looks + 1,
        idle_threads=before.idle_threads.after(before.threads, threads),
    )


def _grown_s(before: ThreadTimes, now: ThreadTimes) -> float:
    """By how much the sum has grown. It is smaller after a thread has ended."""
    return max(0.0, sum(now.values()) - sum(before.values()))


@dataclass(frozen=True, slots=True)
class ParkedCpu:
    """The CPU use of a parked program. `quiet_since_s`: since when it has used no more than its background.
    `idle_threads` is None where it was not looked at for long enough before."""

    background: float
    threads: ThreadTimes | None = None
    at_s: float = 0.0
    quiet_since_s: float | None = None
    idle_threads: IdleThreads | None = None


def after_look(before: ParkedCpu, threads: ThreadTimes | None, now_s: float) -> tuple[ParkedCpu, bool]:
    """Returns the new state, and whether the program goes on."""
    if threads is None or before.threads is None:
        return replace(before, threads=threads, at_s=now_s), False
    passed_s = max(0.0, now_s - before.at_s)
    allowed_s = WAKE_CPU_S + _BACKGROUND_FACTOR * before.background * passed_s
    shows_use = before.idle_threads is not None and before.idle_threads.show_use(before.threads, threads)
    if not shows_use and _grown_s(before.threads, threads) < allowed_s:
        since_s = before.at_s if before.quiet_since_s is None else before.quiet_since_s
        return replace(before, threads=threads, at_s=now_s, quiet_since_s=since_s), False
    was_quiet = before.quiet_since_s is not None and before.at_s - before.quiet_since_s >= _QUIET_S
    return replace(before, threads=threads, at_s=now_s, quiet_since_s=None), was_quiet
