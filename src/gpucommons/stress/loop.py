"""The control loop: work and rest in slices, measure, correct. Clock, GPU and meter are parameters.

The controller is pure: the share of time to work so that the measured utilisation reaches its target.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import pynvml

# The controller: the share of time to work so that the measured utilisation reaches its target. Pure.

# The measurement lags by about a second and has steps of a percent: a higher gain would oscillate.
GAIN = 0.3
# With shorter slices the driver counts the GPU as busy for its whole sampling period.
SLICE_S = 0.1


@dataclass(frozen=True, slots=True)
class UtilizationController:
    """`duty` is the share of each slice to work; `measured` is the last utilisation, None if unknown."""

    target: float
    duty: float
    measured: float | None = None


def begin(target: float) -> UtilizationController:
    """Before the first measurement the duty is the target."""
    return UtilizationController(target, target)


def step(control: UtilizationController, measured: float | None) -> UtilizationController:
    """A failed reading leaves the duty as it is."""
    if measured is None:
        return replace(control, measured=None)
    duty = control.duty + GAIN * (control.target - measured)
    return UtilizationController(control.target, min(max(duty, 0.0), 1.0), measured)


def slice_of(control: UtilizationController) -> tuple[float, float]:
    """Seconds to work and seconds to rest in one slice."""
    work_s = control.duty * SLICE_S
    return work_s, SLICE_S - work_s


# The utilisation of one GPU, from NVML.


class NoGpu(Exception):
    """One line: why there is no GPU to measure."""


@dataclass(frozen=True, slots=True)
class Meter:
    """`handle` is NVML's handle of the GPU."""

    handle: object
    name: str
    uuid: str

    def measure(self) -> float | None:
        try:
            return float(pynvml.nvmlDeviceGetUtilizationRates(self.handle).gpu) / 100
        except pynvml.NVMLError:
            return None


def open_meter(index: int) -> Meter:
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        if not 0 <= index < count:
            raise NoGpu(f"--device: no GPU {index}; this machine has {_range(count)}")
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return Meter(handle, str(pynvml.nvmlDeviceGetName(handle)), str(pynvml.nvmlDeviceGetUUID(handle)))
    except pynvml.NVMLError as error:
        raise NoGpu(f"the NVIDIA driver does not answer: {error}; run stress on a machine with a GPU") from error


def _range(count: int) -> str:
    return "none" if count == 0 else f"GPUs 0 to {count - 1}" if count > 1 else "only GPU 0"


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
