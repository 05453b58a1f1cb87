"""The accounts: what the ledger billed in a period, by user, group, namespace, pod, job, day or GPU. Sums are exact."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gpucommons.ledger.query import PeriodUsage, read_period
from gpucommons.ledger.rollups import DAY_S
from gpucommons.model.accounts import (
    NO_CHARGE,
    NO_PRICES,
    PERIODS,
    AccountsReading,
    Amounts,
    By,
    Charge,
    HeldKey,
    OwnerKey,
    PeriodAccounts,
    Prices,
    SlotTime,
    sum_amounts,
)
from gpucommons.model.allocations import Account, Slot
from gpucommons.rules.cost import charge_of
from gpucommons.rules.identities import account_name, qualified_name

NONE = "(none)"
_DAYS = {"7d": 7, "30d": 30}


def accounts_of(period: PeriodUsage, by: By, user: str | None = None, prices: Prices = NO_PRICES) -> PeriodAccounts:
    """One row for each `by`. With `user`, only what is billed to that name: then no slot has free time.

    By day, the period must have been read by day.
    """
    found: dict[str, list[Amounts]] = {}
    charges: dict[str, Charge] = {}
    for name, slot, account, amounts in _named(period, by):
        if user is None or account_name(account) == user:
            found.setdefault(name, []).append(amounts)
            if prices.per_gpu_hour:
                charge = charge_of(slot, period.models.get(slot.gpu_uuid, ""), amounts, prices)
                charges[name] = charges.get(name, NO_CHARGE).plus(charge)
    times: dict[str, SlotTime] | None = None
    if by is By.GPU and user is None:
        times = {}
        for slot, time in period.slot_time.items():
            name = _slot_row(slot)
            times[name] = times.get(name, SlotTime()).plus(time)
            found.setdefault(name, [])
    rows = {name: sum_amounts(each) if each else Amounts() for name, each in found.items()}
    gaps: dict[str, int] = {}
    for gap in period.gaps:
        gaps[gap.reason] = gaps.get(gap.reason, 0) + gap.ns
    return PeriodAccounts(by, period.since_s, period.until_s, rows, times, gaps, charges, prices)


def read_accounts(path: Path, now_wall_s: float, prices: Prices = NO_PRICES) -> AccountsReading:
    """Empty while there is no ledger file; raises LedgerError where it cannot be read."""
    if not path.exists():
        return AccountsReading()
    midnight_s = datetime.fromtimestamp(now_wall_s).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    by_period, today = {}, {}
    for name in PERIODS:
        since_s = int(midnight_s if name == "today" else now_wall_s - _DAYS[name] * DAY_S)
        period = read_period(path, since_s, math.ceil(now_wall_s))
        by_period[name] = accounts_of(period, By.USER, None, prices)
        if name == "today":
            today = _held(period)
    return AccountsReading(by_period, today)


def _held(period: PeriodUsage) -> dict[HeldKey, int]:
    held: dict[HeldKey, int] = {}
    for (slot, account), amounts in period.usage.items():
        key = HeldKey(OwnerKey(account.kind, account.owner, account.namespace), account_name(account), slot.gpu_uuid)
        held[key] = held.get(key, 0) + amounts.held_ns
    return held


def _named(period: PeriodUsage, by: By) -> Iterator[tuple[str, Slot, Account, Amounts]]:
    """What was billed, with the name of its row."""
    if by is not By.DAY:
        for (slot, account), amounts in period.usage.items():
            yield _row_name(by, slot, account), slot, account, amounts
        return
    for day_s, usage in period.days.items():
        name = datetime.fromtimestamp(day_s, UTC).strftime("%Y-%m-%d")
        for (slot, account), amounts in usage.items():
            yield name, slot, account, amounts


def _row_name(by: By, slot: Slot, account: Account) -> str:
    match by:
        case By.USER:
            return account_name(account)
        case By.POD:
            return qualified_name(account.namespace, account.pod) or NONE
        case By.GPU:
            return _slot_row(slot)
        case _:
            return getattr(account, by.value) or NONE


def _slot_row(slot: Slot) -> str:
    """The slot's name and UUID: after a change of the MIG layout, another device has the same name."""
    return f"{slot.name} {slot.uuid}"
