"""What was billed: its money and CO2, and the users above their quota. Pure.

The only place where a price meets an amount.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from gpucommons.model.accounts import BILLION, Amounts, Charge, HoldingQuota, Prices
from gpucommons.model.allocations import AllocationReading, Slot

# Which users exceed their quota of GPU-equivalents. Pure.

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


# The money and the CO2 of what was billed: the only place where a price meets an amount. Pure.
#
# A GPU-hour is an hour for which a slot was held, used or not; a MIG device counts by its part of the GPU. The prices
# are those of today, whatever the period. Values are exact until they are converted, once, for a row or a total.

# An hour has as many nanoseconds as a kilowatt-hour has microjoules.
_UNIT = 3_600 * 10**9


def price_of(model: str, prices: Prices) -> int | None:
    """The price of an hour of a GPU of this model; None where no pattern matches. Upper and lower case are equal."""
    name = model.lower()
    return next((price for pattern, price in prices.per_gpu_hour if fnmatchcase(name, pattern.lower())), None)


def charge_of(slot: Slot, model: str, amounts: Amounts, prices: Prices) -> Charge:
    """What was held of one slot. `model` is empty where the ledger does not know the GPU's model."""
    price = None if slot.slices is None else price_of(model, prices)
    if price is None:
        return Charge(unpriced_ns=amounts.held_ns)
    return Charge(price * amounts.equivalent_ns, amounts.held_ns)


def cost_columns(amounts: Amounts, charge: Charge, prices: Prices) -> dict[str, float | None]:
    """The columns of one row or total whose price is set. None is not known; `cost` is the sum of the known parts."""
    columns: dict[str, float | None] = {}
    parts: list[int | None] = []
    # The ledger stores 0 for "not measured"; no GPU draws 0 W.
    energy_uj = amounts.energy_uj or None
    if prices.per_gpu_hour:
        parts.append(None if charge.unpriced_ns and not charge.priced_ns else charge.amount)
        columns["gpu_cost"] = _convert(parts[-1])
    if prices.per_kwh is not None:
        parts.append(None if energy_uj is None else energy_uj * prices.per_kwh)
        columns["energy_cost"] = _convert(parts[-1])
    if parts:
        known_parts = [part for part in parts if part is not None]
        columns["cost"] = _convert(sum(known_parts)) if known_parts else None
    if prices.per_gpu_hour:
        columns["unpriced_gpu_hours"] = round(charge.unpriced_ns / _UNIT, 6)
    if prices.co2_g_per_kwh is not None:
        columns["co2_g"] = _convert(None if energy_uj is None else energy_uj * prices.co2_g_per_kwh)
    return columns


def _convert(amount: int | None) -> float | None:
    """From a price per hour times nanoseconds, or a price per kilowatt-hour times microjoules."""
    return None if amount is None else round(amount / (_UNIT * BILLION), 6)
