"""What was billed: its money and CO2, the users above their quota, and hints to use GPUs better. Pure.

The only place where a price meets an amount.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
        columns["gpu_cost"] = _converted(parts[-1])
    if prices.per_kwh is not None:
        parts.append(None if energy_uj is None else energy_uj * prices.per_kwh)
        columns["energy_cost"] = _converted(parts[-1])
    if parts:
        known = [part for part in parts if part is not None]
        columns["cost"] = _converted(sum(known)) if known else None
    if prices.per_gpu_hour:
        columns["unpriced_gpu_hours"] = round(charge.unpriced_ns / _UNIT, 6)
    if prices.co2_g_per_kwh is not None:
        columns["co2_g"] = _converted(None if energy_uj is None else energy_uj * prices.co2_g_per_kwh)
    return columns


def _converted(amount: int | None) -> float | None:
    """From a price per hour times nanoseconds, or a price per kilowatt-hour times microjoules."""
    return None if amount is None else round(amount / (_UNIT * BILLION), 6)


# What would have made a job use its GPUs better: at most two hints, each with its reason. Pure.
#
# A hint is given only where the figures show a cause. A short job gets none: its start is most of it.

MAX_HINTS = 2
_SHORTEST_S = 60.0
_MOSTLY = 0.5
_GIB = 2**30
# A job that used less than this part of the memory that it asked for kept the GPU from smaller requests.
_LITTLE_MEMORY = 0.5
_WORTH_BYTES = 4 * _GIB


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """`judged_s` are the GPU-seconds of which it is known whether the GPU was used; `idle_ratio` is the idle part of
    them. The causes are parts of the idle time. Memory is that of one GPU. None is not known.
    """

    judged_s: float
    slots_held: int
    slots_used: int
    idle_ratio: float | None = None
    idle_cpu_ratio: float | None = None
    idle_disk_ratio: float | None = None
    peak_bytes: int | None = None
    asked_bytes: int | None = None


def job_hints(job: JobOutcome) -> tuple[str, ...]:
    """The gravest first."""
    if job.judged_s < _SHORTEST_S:
        return ()
    return tuple(_hints(job))[:MAX_HINTS]


def _hints(job: JobOutcome) -> Iterator[str]:
    if not job.slots_used:
        held = "the GPU was" if job.slots_held == 1 else f"{job.slots_held} GPUs were"
        yield f"{held} held and never used: does the program find CUDA?"
    elif job.slots_used < job.slots_held:
        yield f"asked {job.slots_held} GPUs, used {job.slots_used}: ask for fewer, or let the program use all of them"
    yield from _of_idle_time(job)
    peak, asked = job.peak_bytes, job.asked_bytes
    if peak and asked and peak < _LITTLE_MEMORY * asked and asked - peak >= _WORTH_BYTES:
        yield (
            f"asked {asked / _GIB:.0f} GiB, used {peak / _GIB:.1f}: a smaller --memory fits on more GPUs and waits less"
        )


def _of_idle_time(job: JobOutcome) -> Iterator[str]:
    idle, cpu, disk = job.idle_ratio, job.idle_cpu_ratio, job.idle_disk_ratio
    if idle is None or idle < _MOSTLY:
        return
    if cpu is not None and cpu >= _MOSTLY:
        yield f"GPU idle {idle:.0%}: the program kept a CPU core busy {cpu:.0%} of that time: more loader workers?"
    elif disk is not None and disk >= _MOSTLY:
        yield f"GPU idle {idle:.0%}: the program waited for a disk {disk:.0%} of that time: a faster disk?"
