"""A load for a GPU: work and rest in slices, measure, correct. Clock, GPU and meter are parameters.

The controller is pure: the share of time to work so that the measured utilisation reaches its target. The work is
matrix products of torch or cupy.
"""

import importlib
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

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


# Work for a GPU through torch or cupy. Imports the library only when it is used, and never installs it.

_SIZE = 2048
# Matrix products to queue before waiting: enough to leave no gaps, few enough to stop soon.
_QUEUED = 4

INSTALL = {
    "torch": "pip install torch",
    "cupy": "pip install cupy-cuda12x",
}


class BackendMissing(Exception):
    """One line: which library is missing and how to install it."""


def choose(requested: str | None) -> str:
    names = [requested] if requested else list(INSTALL)
    for name in names:
        if importlib.util.find_spec(name) is not None:
            return name
    how = " or ".join(f"'{INSTALL[name]}'" for name in names)
    raise BackendMissing(f"--backend: {' or '.join(names)} is not installed; install it with {how}")


def worker_of(name: str) -> Worker:
    """A worker on the first GPU that CUDA shows. Raises BackendMissing if the library finds no GPU."""
    library: Any = importlib.import_module(name)
    return _torch(library) if name == "torch" else _cupy(library)


class _Worker:
    def __init__(self, launch: Callable[[], object], wait: Callable[[], object]) -> None:
        self._launch = launch
        self._wait = wait

    def work(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(_QUEUED):
                self._launch()
            self._wait()


def _torch(torch: Any) -> Worker:
    if not torch.cuda.is_available():
        raise BackendMissing(
            "torch finds no GPU: it may be a CPU build; install the CUDA build with 'pip install torch'"
        )
    left = torch.randn(_SIZE, _SIZE, device="cuda")
    right = torch.randn(_SIZE, _SIZE, device="cuda")
    out = torch.empty_like(left)
    return _Worker(lambda: torch.matmul(left, right, out=out), torch.cuda.synchronize)


def _cupy(cupy: Any) -> Worker:
    try:
        if cupy.cuda.runtime.getDeviceCount() < 1:
            raise BackendMissing("cupy finds no GPU; check the driver with nvidia-smi")
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendMissing(f"cupy finds no GPU: {error}; check the driver with nvidia-smi") from error
    left = cupy.random.rand(_SIZE, _SIZE, dtype=cupy.float32)
    right = cupy.random.rand(_SIZE, _SIZE, dtype=cupy.float32)
    out = cupy.empty_like(left)
    return _Worker(lambda: cupy.matmul(left, right, out=out), cupy.cuda.runtime.deviceSynchronize)
