"""For how long a program has used neither its GPU nor the CPU, and when a parked one goes on. Pure.

A program that is paused by others' turns does not count as idle, and neither does one whose activity is not known.
A parked program sleeps in its first CUDA call, so that only the CPU time before that call shows that it goes on: a few
milliseconds. Programs that wait for their user use some CPU as well (heartbeats, polls); what a program used per second
while it was idle is its background, and only more than that counts.
"""

from dataclasses import dataclass, replace
from typing import Final

# CPU seconds per second below which a program counts as idle.
IDLE_CPU_RATIO: Final = 0.02
# CPU seconds, in one look, by which a parked program exceeds its background when it goes on.
WAKE_CPU_S: Final = 0.0015
# A program that was parked while it worked runs on until its next CUDA call.
_QUIET_S: Final = 2.0
_BACKGROUND_FACTOR: Final = 3.0


@dataclass(frozen=True, slots=True)
class Idleness:
    """`gpu_s` and `cpu_s` are since when the GPU and the CPU have been idle; None: they are not.

    `used_s` and `at_s` are the CPU time at the last look, `background` the CPU seconds per second while idle.
    """

    gpu_s: float | None = None
    cpu_s: float | None = None
    used_s: float | None = None
    at_s: float = 0.0
    background: float = 0.0

    def idle_s(self, now_s: float) -> float:
        if self.gpu_s is None or self.cpu_s is None:
            return 0.0
        return max(0.0, now_s - max(self.gpu_s, self.cpu_s))


def after_gpu(before: Idleness, idle: bool, as_of_s: float) -> Idleness:
    """A reading of the GPU: whether the program was free to run and did not use it."""
    if not idle:
        return Idleness()
    return before if before.gpu_s is not None else replace(before, gpu_s=as_of_s)


def after_cpu(before: Idleness, used_s: float | None, now_s: float) -> Idleness:
    """A look at the CPU time of a program whose GPU is idle; None: it could not be read."""
    if used_s is None:
        return replace(before, cpu_s=None, used_s=None)
    if before.used_s is None:
        return replace(before, cpu_s=now_s, used_s=used_s, at_s=now_s)
    passed_s = now_s - before.at_s
    if passed_s <= 0:
        return before
    # The sum is a little smaller after a thread has ended.
    rate = max(0.0, used_s - before.used_s) / passed_s
    idle = rate < IDLE_CPU_RATIO
    background = 0.9 * before.background + 0.1 * rate if idle else before.background
    return replace(before, cpu_s=before.cpu_s if idle else now_s, used_s=used_s, at_s=now_s, background=background)


@dataclass(frozen=True, slots=True)
class ParkedCpu:
    """The CPU use of a parked program. `quiet_since_s`: since when it has used no more than its background."""

    background: float
    used_s: float | None = None
    at_s: float = 0.0
    quiet_since_s: float | None = None


def after_look(before: ParkedCpu, used_s: float | None, now_s: float) -> tuple[ParkedCpu, bool]:
    """And whether the program goes on."""
    if used_s is None or before.used_s is None or used_s < before.used_s:
        return replace(before, used_s=used_s, at_s=now_s), False
    passed_s = max(0.0, now_s - before.at_s)
    allowed_s = WAKE_CPU_S + _BACKGROUND_FACTOR * before.background * passed_s
    if used_s - before.used_s < allowed_s:
        since_s = before.at_s if before.quiet_since_s is None else before.quiet_since_s
        return replace(before, used_s=used_s, at_s=now_s, quiet_since_s=since_s), False
    was_quiet = before.quiet_since_s is not None and before.at_s - before.quiet_since_s >= _QUIET_S
    return replace(before, used_s=used_s, at_s=now_s, quiet_since_s=None), was_quiet
