"""How much of the time to work so that the measured utilisation meets its target. Pure: values in, values out."""

from dataclasses import dataclass, replace

# What is measured lags by about a second and comes in steps of a percent: a higher gain would swing.
GAIN = 0.3
# Below this the driver still counts the GPU as busy for the whole of its sampling period.
SLICE_S = 0.1


@dataclass(frozen=True, slots=True)
class Control:
    """`duty` is the share of each slice in which to work; `measured` the last utilisation, None if unknown."""

    target: float
    duty: float
    measured: float | None = None


def begin(target: float) -> Control:
    """With nothing measured yet, the best guess is to work as much as is asked for."""
    return Control(target, target)


def step(control: Control, measured: float | None) -> Control:
    """A reading that failed changes nothing: better steady than a guess."""
    if measured is None:
        return replace(control, measured=None)
    duty = control.duty + GAIN * (control.target - measured)
    return Control(control.target, min(max(duty, 0.0), 1.0), measured)


def slice_of(control: Control) -> tuple[float, float]:
    """Seconds to work and seconds to rest in one slice."""
    work_s = control.duty * SLICE_S
    return work_s, SLICE_S - work_s
