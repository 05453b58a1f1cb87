"""How fast each client is while several run together, estimated from the device's activity. Pure arithmetic.

The activities are three equations (SM, tensor, DRAM) for as many unknowns as there are clients. Where they do not say
more, clients are taken to be slowed down alike.
"""

from collections.abc import Sequence
from typing import Final

from gpucommons.scheduler.corun.activity import DeviceActivity

# No client is faster together than alone, but measurements are noisy.
MOST_PROGRESS: Final = 1.1
# How much the assumption that all are slowed down alike counts against the equations.
_ALIKE_WEIGHT: Final = 0.0005
_LEAST_ACTIVITY: Final = 0.1
_MOST_ROUNDS: Final = 200
_CONVERGED: Final = 1e-4


def misfit(device: DeviceActivity, solo: Sequence[DeviceActivity], progress: Sequence[float]) -> float:
    """How far the device's activity is from the sum of what the clients do at this progress, as a share of it. It is
    small if each does what it did alone."""
    sums = [sum(part * one[m] for part, one in zip(progress, solo, strict=True)) for m in range(len(device))]
    return max(abs(value - found) / max(value, _LEAST_ACTIVITY) for value, found in zip(device, sums, strict=True))


def progress_together(device: DeviceActivity, solo: Sequence[DeviceActivity]) -> tuple[float, ...]:
    """The share of its speed alone that each client has, least squares with bounds 0 and MOST_PROGRESS."""
    total_sm = sum(activity.sm for activity in solo)
    if total_sm <= 0.0:
        return (1.0,) * len(solo)
    alike = min(MOST_PROGRESS, device.sm / total_sm)
    # Coordinate descent on the normal equations. The weight says that all are slowed down alike.
    weight = _ALIKE_WEIGHT * max(one.sm for one in solo) ** 2
    found = [alike] * len(solo)
    left = [device[m] - sum(alike * one[m] for one in solo) for m in range(len(device))]
    for _ in range(_MOST_ROUNDS):
        change = 0.0
        for client, one in enumerate(solo):
            own = sum(value * value for value in one)
            slope = sum(value * rest for value, rest in zip(one, left, strict=True))
            best = (slope + own * found[client] + weight * alike) / (own + weight)
            step = min(MOST_PROGRESS, max(0.0, best)) - found[client]
            found[client] += step
            left = [rest - step * value for rest, value in zip(left, one, strict=True)]
            change = max(change, abs(step))
        if change < _CONVERGED:
            break
    return tuple(found)
