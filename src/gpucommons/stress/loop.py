"""The control loop: work and rest in slices, measure, correct. WorkClock, GPU and meter are parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpucommons.stress.control import UtilizationController, begin, slice_of, step

MEASURE_EVERY_S = 1.0


class Worker(Protocol):
    def work(self, seconds: float) -> None:
        """Keep the GPU busy for about this long, and return when it is idle again."""


class WorkClock(Protocol):
    def now_s(self) -> float: ...
    def rest(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Summary:
    """`mean` is the utilisation of the second half, when the loop has settled; None if it was not measured."""

    elapsed_s: float
    mean: float | None


def stress(
    target: float,
    duration_s: float,
    worker: Worker,
    measure: Callable[[], float | None],
    clock: WorkClock,
    show: Callable[[float, UtilizationController], None],
) -> Summary:
    control = begin(target)
    begun = clock.now_s()
    measure_at = begun + MEASURE_EVERY_S
    settled: list[float] = []
    while (elapsed := clock.now_s() - begun) < duration_s:
        work_s, rest_s = slice_of(control)
        if work_s > 0:
            worker.work(work_s)
        if rest_s > 0:
            clock.rest(rest_s)
        if clock.now_s() >= measure_at:
            measure_at += MEASURE_EVERY_S
            control = step(control, measure())
            if control.measured is not None and elapsed >= duration_s / 2:
                settled.append(control.measured)
            show(elapsed, control)
    return Summary(clock.now_s() - begun, sum(settled) / len(settled) if settled else None)
