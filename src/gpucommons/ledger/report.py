"""The report: what was billed in a period, by user, group, namespace, pod, job or GPU. Pure.

Every number is rounded once, here. Totals are the sums of the rows as they are shown, and each row's parts
sum to its whole, so that whoever adds up a printed report or an exported one gets the figures in it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from enum import StrEnum

from gpucommons.ledger.query import PeriodUsage
from gpucommons.model.accounts import Amounts, SlotTime
from gpucommons.model.usage import Account, Slot

# A ten-thousandth of an hour is a third of a second.
_STEP = Decimal("0.0001")
_RATIO_STEP = Decimal("0.001")
_HOUR_NS = Decimal(3_600 * 10**9)
_GIB_HOUR_KIB_S = Decimal(3_600 * 2**20)
_KWH_UJ = Decimal(3_600_000 * 10**6)
NONE = "(none)"


class By(StrEnum):
    USER = "user"
    GROUP = "group"
    NAMESPACE = "namespace"
    POD = "pod"
    JOB = "job"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class ReportRow:
    """held = active + wasted + unjudged. `free_hours` and `unknown_hours` are of GPUs only.

    `efficiency` is the SM time used over the time held; above 1 for who used more than was billed, because
    a co-owner of the slot did not. None where nothing was held.
    """

    name: str
    held_hours: Decimal
    active_hours: Decimal
    wasted_hours: Decimal
    unjudged_hours: Decimal
    equivalent_hours: Decimal
    memory_gib_hours: Decimal
    energy_kwh: Decimal
    sm_hours: Decimal
    free_hours: Decimal | None = None
    unknown_hours: Decimal | None = None

    @property
    def efficiency(self) -> Decimal | None:
        return (self.sm_hours / self.held_hours).quantize(_RATIO_STEP, ROUND_HALF_EVEN) if self.held_hours else None


@dataclass(frozen=True, slots=True)
class Report:
    by: By
    since_s: int
    until_s: int
    rows: tuple[ReportRow, ...]
    total: ReportRow
    gap_hours: dict[str, Decimal]


def report(period: PeriodUsage, by: By, user: str | None = None) -> Report:
    """One row for each `by`, the greatest holder first; with `user`, of that user's usage alone."""
    sums: dict[str, Amounts] = {}
    for (slot, account), amounts in period.usage.items():
        if user is None or account.user == user:
            name = _name(by, slot, account)
            sums[name] = sums.get(name, Amounts()).plus(amounts)
    times: dict[str, SlotTime] = {}
    if by is By.GPU:
        for slot, time in period.slot_time.items():
            times[_gpu_name(slot)] = times.get(_gpu_name(slot), SlotTime()).plus(time)
    names = sums if user is not None or by is not By.GPU else {**dict.fromkeys(times, Amounts()), **sums}
    rows = sorted(
        (_row(name, amounts, times.get(name)) for name, amounts in names.items()),
        key=lambda row: (-row.held_hours, row.name),
    )
    gaps: dict[str, Decimal] = {}
    for gap in period.gaps:
        gaps[gap.reason] = gaps.get(gap.reason, Decimal(0)) + _rounded(gap.ns, _HOUR_NS)
    return Report(by, period.since_s, period.until_s, tuple(rows), _total(rows), gaps)


def _name(by: By, slot: Slot, account: Account) -> str:
    return _gpu_name(slot) if by is By.GPU else getattr(account, by.value) or NONE


def _gpu_name(slot: Slot) -> str:
    return f"{slot.name} {slot.uuid}"


def _row(name: str, amounts: Amounts, time: SlotTime | None) -> ReportRow:
    active, wasted = _rounded(amounts.active_ns, _HOUR_NS), _rounded(amounts.idle_ns, _HOUR_NS)
    unjudged = _rounded(amounts.held_ns - amounts.active_ns - amounts.idle_ns, _HOUR_NS)
    return ReportRow(
        name,
        active + wasted + unjudged,
        active,
        wasted,
        unjudged,
        _rounded(amounts.equivalent_ns, _HOUR_NS),
        _rounded(amounts.memory_kib_s, _GIB_HOUR_KIB_S),
        _rounded(amounts.energy_uj, _KWH_UJ),
        _rounded(amounts.sm_ns, _HOUR_NS),
        None if time is None else _rounded(time.free_ns, _HOUR_NS),
        None if time is None else _rounded(time.unknown_ns, _HOUR_NS),
    )


def _total(rows: Iterable[ReportRow]) -> ReportRow:
    rows = list(rows)

    def added(values: Iterable[Decimal | None]) -> Decimal | None:
        known = [value for value in values if value is not None]
        return sum(known, Decimal(0).quantize(_STEP)) if known or not rows else None

    def whole(values: Iterable[Decimal]) -> Decimal:
        return sum(values, Decimal(0).quantize(_STEP))

    return ReportRow(
        "total",
        whole(row.held_hours for row in rows),
        whole(row.active_hours for row in rows),
        whole(row.wasted_hours for row in rows),
        whole(row.unjudged_hours for row in rows),
        whole(row.equivalent_hours for row in rows),
        whole(row.memory_gib_hours for row in rows),
        whole(row.energy_kwh for row in rows),
        whole(row.sm_hours for row in rows),
        added(row.free_hours for row in rows),
        added(row.unknown_hours for row in rows),
    )


def _rounded(amount: int, unit: Decimal) -> Decimal:
    return (Decimal(amount) / unit).quantize(_STEP, ROUND_HALF_EVEN)
