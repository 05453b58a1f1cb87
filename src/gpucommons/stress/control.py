"""How much of the time to work so that the measured utilisation meets its target. Pure: values in, values out."""

from dataclasses import dataclass, replace

# What is measured lags by about a second and comes in steps of a percent: a higher gain would swing.
GAIN = 0.3
# Below this the driver still counts the GPU as busy for the whole of its sampling period.
SLICE_S = 0.1


@dataclass(frozen=True, slots=True)
class UtilizationController:
    """`duty` is the share of each slice in which to work; `measured` the last utilisation, None if unknown."""

    target: float
    duty: float
    measured: float | None = None


def begin(target: float) -> UtilizationController:
    """With nothing measured yet, the best guess is to work as much as is asked for."""
    return UtilizationController(target, target)


def step(control: UtilizationController, measured: float | None) -> UtilizationController:
    """A reading that failed changes nothing: better steady than a guess."""
    if measured is None:
        return replace(control, measured=None)
    duty = control.duty + GAIN * (control.target - measured)
    return UtilizationController(control.target, min(max(duty, 0.0), 1.0), measured)


def slice_of(control: UtilizationController) -> tuple[float, float]:
    """Seconds to work and seconds to rest in one slice."""
    work_s = control.duty * SLICE_S
    return work_s, SLICE_S - work_s
