"""Which users exceed their quota of GPU-equivalents. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from gpucommons.model.accounts import HoldingQuota
from gpucommons.model.allocations import AllocationReading

# Thirds of a GPU do not sum to 1 in binary.
_SLACK = 1e-6


class QuotaState(NamedTuple):
    """`used` is None while it is not fully known what the user holds."""

    user: str
    limit: float
    used: float | None

    @property
    def exceeded(self) -> bool | None:
        return None if self.used is None else self.used > self.limit + _SLACK


def quota_states(quotas: Mapping[str, HoldingQuota], reading: AllocationReading | None) -> list[QuotaState]:
    if reading is None or not reading.complete:
        return [QuotaState(user, quota.gpu_equivalents, None) for user, quota in quotas.items()]
    used: dict[str, float | None] = dict.fromkeys(quotas, 0.0)
    for allocation in reading.allocations:
        user, equivalents = allocation.account.user, allocation.equivalents
        before = used.get(user)
        if before is not None and allocation.share:
            used[user] = None if equivalents is None else before + equivalents
    return [QuotaState(user, quota.gpu_equivalents, used[user]) for user, quota in quotas.items()]
