"""gpucommons_quota_*: each user's quota, and what the user holds of it."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.cost import quota_states

QUOTA = gauge("gpucommons_quota_gpu_equivalents", "Quota of a user in GPU-equivalents.", "user")
USED = gauge("gpucommons_quota_used_gpu_equivalents", "GPU-equivalents that a user with a quota holds.", "user")
EXCEEDED = gauge("gpucommons_quota_exceeded", "State of a user's quota: 1 if exceeded, 0 if not.", "user")

CATALOGUE = (QUOTA, USED, EXCEEDED)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    ledger = snapshot.readings.ledger
    if ledger is None:
        return
    states = quota_states(ledger.quotas, snapshot.readings.allocations)
    yield QUOTA.of(((state.user,), state.limit) for state in states)
    yield USED.of(((state.user,), state.used) for state in states if state.used is not None)
    yield EXCEEDED.of(((state.user,), int(state.exceeded)) for state in states if state.exceeded is not None)
