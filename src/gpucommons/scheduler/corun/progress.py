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
_MOST_ROUNDS: Final = 200
_CONVERGED: Final = 1e-4


def progress_together(device: DeviceActivity, solo: Sequence[DeviceActivity]) -> tuple[float, ...]:
    """The share of its speed alone that each client has, least squares with bounds 0 and MOST_PROGRESS."""
    total_sm = sum(activity.sm for activity in solo)
    if total_sm <= 0.0:
        return (1.0,) * len(solo)
    alike = min(MOST_PROGRESS, device.sm / total_sm)
    # The normal equations of the least squares; the small diagonal says that all are slowed down alike.
    metrics = range(len(device))
    gram = [[sum(one[m] * other[m] for m in metrics) for other in solo] for one in solo]
    target = [sum(one[m] * device[m] for m in metrics) for one in solo]
    weight = _ALIKE_WEIGHT * max(one.sm for one in solo) ** 2
    found = [alike] * len(solo)
    for _ in range(_MOST_ROUNDS):
        change = 0.0
        for client, row in enumerate(gram):
            others = sum(g * p for g, p in zip(row, found, strict=True)) - row[client] * found[client]
            best = (target[client] - others + weight * alike) / (row[client] + weight)
            bounded = min(MOST_PROGRESS, max(0.0, best))
            change = max(change, abs(bounded - found[client]))
            found[client] = bounded
        if change < _CONVERGED:
            break
    return tuple(found)
