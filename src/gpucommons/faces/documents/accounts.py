"""GPU-hours and energy over a period, by user or by another name. Pure.

Every number is one conversion of an exact integer sum, so that all faces print the same number for the same sum.
"""

from collections.abc import Mapping
from typing import NamedTuple

from gpucommons.faces.documents.schema import (
    ABSENT,
    INTEGER,
    NUMBER,
    NUMBER_OR_NULL,
    TEXT,
    OptionalField,
    Record,
    Schema,
    by_key,
    one_of,
    or_null,
)
from gpucommons.faces.documents.values import Json
from gpucommons.model.accounts import NO_CHARGE, PERIODS, Amounts, Charge, PeriodAccounts, Prices, SlotTime
from gpucommons.model.cost import cost_columns
from gpucommons.model.snapshot import Snapshot
from gpucommons.model.words import By

_HOUR_NS = 3_600 * 10**9
_GIB_HOUR_KIB_S = 3_600 * 2**20
_KWH_UJ = 3_600_000 * 10**6
Row = dict[str, Json]


class BilledRow(NamedTuple):
    """What a row or total shows. `time` is how long the slot was free, of rows by GPU."""

    amounts: Amounts
    costs: Mapping[str, float | None]
    time: SlotTime | None = None


def _cost(name: str, schema: Schema) -> OptionalField[BilledRow]:
    return schema, lambda billed: billed.costs.get(name, ABSENT)


def hours(ns: int) -> float:
    return round(ns / _HOUR_NS, 6)


def _energy_kwh(amounts: Amounts) -> float | None:
    """The ledger stores 0 for "not measured"; no GPU draws 0 W."""
    return round(amounts.energy_uj / _KWH_UJ, 6) if amounts.energy_uj else None


def _efficiency_ratio(amounts: Amounts) -> float | None:
    """The part of the held time that was used.

    An owner that also used the share of a co-owner has more SM time than held time: it used all that it held, which
    is 1, and `sm_gpu_hours` has all of its use.
    """
    return round(min(1.0, amounts.sm_ns / amounts.held_ns), 3) if amounts.held_ns else None


# Only where the price is set; null where it is not known.
_COSTS: dict[str, OptionalField[BilledRow]] = {
    "gpu_cost": _cost("gpu_cost", NUMBER_OR_NULL),
    "energy_cost": _cost("energy_cost", NUMBER_OR_NULL),
    "cost": _cost("cost", NUMBER_OR_NULL),
    "unpriced_gpu_hours": _cost("unpriced_gpu_hours", NUMBER),
    "co2_g": _cost("co2_g", NUMBER_OR_NULL),
}
ROW = Record[BilledRow](
    _COSTS,
    held_gpu_hours=(NUMBER, lambda billed: hours(billed.amounts.held_ns)),
    active_gpu_hours=(NUMBER, lambda billed: hours(billed.amounts.active_ns)),
    idle_gpu_hours=(NUMBER, lambda billed: hours(billed.amounts.idle_ns)),
    unjudged_gpu_hours=(NUMBER, lambda billed: hours(billed.amounts.unjudged_ns)),
    gpu_equivalent_hours=(NUMBER, lambda billed: hours(billed.amounts.equivalent_ns)),
    memory_gib_hours=(NUMBER, lambda billed: round(billed.amounts.memory_kib_s / _GIB_HOUR_KIB_S, 6)),
    energy_kwh=(NUMBER_OR_NULL, lambda billed: _energy_kwh(billed.amounts)),
    sm_gpu_hours=(NUMBER, lambda billed: hours(billed.amounts.sm_ns)),
    efficiency_ratio=(NUMBER_OR_NULL, lambda billed: _efficiency_ratio(billed.amounts)),
)
# Rows by GPU also have how long the slot was free.
_SLOT_ROW = Record[BilledRow](
    {
        "free_gpu_hours": (NUMBER, lambda billed: hours(billed.time.free_ns) if billed.time else ABSENT),
        "unknown_gpu_hours": (NUMBER, lambda billed: hours(billed.time.unknown_ns) if billed.time else ABSENT),
        **_COSTS,
    },
    **ROW.fields,
)


def _row_record(by: By) -> Record[BilledRow]:
    return _SLOT_ROW if by is By.GPU else ROW


def period_record(by: By, key: str) -> Record[PeriodAccounts]:
    """`currency` only where a price is set. `key` says what the names of the rows are."""
    return Record[PeriodAccounts](
        {"currency": (TEXT, lambda period: currency(period.prices) or ABSENT)},
        by=(one_of(by), lambda period: period.by.value),
        since_unix_s=(INTEGER, lambda period: period.since_s),
        until_unix_s=(INTEGER, lambda period: period.until_s),
        **{f"{by}s": (by_key(_row_record(by).schema, key), rows)},
        total=(_row_record(by).schema, total),
        gap_hours=(
            by_key(NUMBER, "reason"),
            lambda period: {reason: hours(ns) for reason, ns in period.gap_ns.items()},
        ),
    )


def accounts(snapshot: Snapshot, only_period: str | None = None) -> Json:
    """Null where no ledger is kept."""
    reading = snapshot.readings.accounts
    if reading is None:
        return None
    return {
        period: period_document(reading.by_period[period])
        for period in PERIODS
        if period in reading.by_period and only_period in (None, period)
    }


def period_document(period: PeriodAccounts) -> Json:
    """The rows are under `users`, `groups`, `namespaces`, `pods`, `jobs`, `days` or `gpus`."""
    return PERIOD_RECORDS[period.by].build(period)


def rows(period: PeriodAccounts) -> dict[str, Row]:
    """The greatest holder first, or the earliest day."""
    times = period.slot_time or {}
    by_day = period.by is By.DAY
    ordered = sorted(period.rows.items(), key=lambda row: (0 if by_day else -row[1].held_ns, row[0]))
    charges, prices = period.charges, period.prices
    return {
        name: _SLOT_ROW.build(_bill(amounts, charges.get(name, NO_CHARGE), prices, times.get(name)))
        for name, amounts in ordered
    }


def total(period: PeriodAccounts) -> Row:
    return _SLOT_ROW.build(_bill(period.total, period.total_charge, period.prices, period.total_time))


def total_of(amounts: Amounts, charge: Charge, prices: Prices) -> Row:
    return ROW.build(_bill(amounts, charge, prices))


def _bill(amounts: Amounts, charge: Charge, prices: Prices, time: SlotTime | None = None) -> BilledRow:
    return BilledRow(amounts, cost_columns(amounts, charge, prices), time)


def currency(prices: Prices) -> str:
    """Empty where no price or no currency is set."""
    has_price = prices.per_gpu_hour or prices.per_kwh is not None
    return prices.currency if has_price else ""


PERIOD_RECORDS = {
    by: period_record(by, "user; a pod or an owner without a user by its own name" if by is By.USER else str(by))
    for by in By
}
PERIOD = PERIOD_RECORDS[By.USER].schema
SCHEMA = or_null(by_key(PERIOD, f"period: {', '.join(PERIODS)}"))
