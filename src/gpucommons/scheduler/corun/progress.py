"""How fast each client is while several run together, estimated from the device's activity. Pure arithmetic.

The activities are three equations (SM, tensor, DRAM) for as many unknowns as there are clients. Where they do not say
more, clients are taken to be slowed down alike.
"""

from collections.abc import Sequence
from typing import Final

from gpucommons.model.gpu import DeviceActivity

# No client is faster together than alone, but measurements are noisy.
MAX_PROGRESS: Final = 1.1
# How much the assumption that all are slowed down alike counts against the equations.
_ALIKE_WEIGHT: Final = 0.0005
_MAX_ROUNDS: Final = 200
_CONVERGED: Final = 1e-4


def progress_together(device: DeviceActivity, alone: Sequence[DeviceActivity]) -> tuple[float, ...]:
    """The share of its speed alone that each client has, least squares with bounds 0 and MAX_PROGRESS."""
    total_sm = sum(activity.sm for activity in alone)
    if total_sm <= 0.0:
        return (1.0,) * len(alone)
    alike = min(MAX_PROGRESS, device.sm / total_sm)
    # Coordinate descent on the normal equations. The weight says that all are slowed down alike.
    weight = _ALIKE_WEIGHT * max(activity.sm for activity in alone) ** 2
    progress = [alike] * len(alone)
    works = [activity.work for activity in alone]
    left = [total - sum(alike * work[m] for work in works) for m, total in enumerate(device.work)]
    for _ in range(_MAX_ROUNDS):
        change = 0.0
        for client, work in enumerate(works):
            own = sum(value * value for value in work)
            slope = sum(value * rest for value, rest in zip(work, left, strict=True))
            best = (slope + own * progress[client] + weight * alike) / (own + weight)
            step = min(MAX_PROGRESS, max(0.0, best)) - progress[client]
            progress[client] += step
            left = [rest - step * value for rest, value in zip(left, work, strict=True)]
            change = max(change, abs(step))
        if change < _CONVERGED:
            break
    return tuple(progress)
