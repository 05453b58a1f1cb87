"""The controller: the share of time to work so that the measured utilisation reaches its target. Pure."""

from dataclasses import dataclass, replace

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
