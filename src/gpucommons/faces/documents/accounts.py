"""GPU-hours and energy over a period, by user or by another name. Pure.

Every number is one conversion of an exact integer sum, so that all faces print the same number for the same sum.
"""

from gpucommons.faces.documents.schema import INTEGER, NUMBER, TEXT, Schema, by_key, one_of, or_null, record
from gpucommons.faces.documents.values import Json
from gpucommons.model.accounts import NO_CHARGE, PERIODS, Amounts, By, Charge, PeriodAccounts, Prices, SlotTime
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.cost import cost_columns

_HOUR_NS = 3_600 * 10**9
_GIB_HOUR_KIB_S = 3_600 * 2**20
_KWH_UJ = 3_600_000 * 10**6
ROW: dict[str, Schema] = {
    "held_gpu_hours": NUMBER,
    "active_gpu_hours": NUMBER,
    "idle_gpu_hours": NUMBER,
    "unjudged_gpu_hours": NUMBER,
    "gpu_equivalent_hours": NUMBER,
    "memory_gib_hours": NUMBER,
    "energy_kwh": or_null(NUMBER),
    "sm_gpu_hours": NUMBER,
    "efficiency_ratio": or_null(NUMBER),
}
# Only where the price is set; null where it is not known.
COSTS: dict[str, Schema] = {
    "gpu_cost": or_null(NUMBER),
    "energy_cost": or_null(NUMBER),
    "cost": or_null(NUMBER),
    "unpriced_gpu_hours": NUMBER,
    "co2_g": or_null(NUMBER),
}
# Rows by GPU also say how long the slot was free.
_FREE: dict[str, Schema] = {"free_gpu_hours": NUMBER, "unknown_gpu_hours": NUMBER}


def row_schema(by: By) -> Schema:
    return {**record(**ROW, **COSTS, **(_FREE if by is By.GPU else {})), "required": list(ROW)}


def period_schema(by: By, key: str) -> Schema:
    """`currency` only where a price is set. `key` says what the names of the rows are."""
    required: dict[str, Schema] = {
        "by": one_of(by),
        "since_unix_s": INTEGER,
        "until_unix_s": INTEGER,
        f"{by}s": by_key(row_schema(by), key),
        "total": row_schema(by),
        "gap_hours": by_key(NUMBER, "reason"),
    }
    return {**record(**required, currency=TEXT), "required": list(required)}


PERIOD = period_schema(By.USER, "user; a pod or an owner without a user by its own name")
Row = dict[str, float | None]
SCHEMA = or_null(by_key(PERIOD, f"period: {', '.join(PERIODS)}"))


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
    return {
        "by": period.by.value,
        "since_unix_s": period.since_s,
        "until_unix_s": period.until_s,
        f"{period.by.value}s": rows(period),
        "total": total(period),
        "gap_hours": {reason: hours(ns) for reason, ns in period.gap_ns.items()},
        **currency(period.prices),
    }


def rows(period: PeriodAccounts) -> dict[str, Row]:
    """The greatest holder first, or the earliest day."""
    times = period.slot_time or {}
    by_day = period.by is By.DAY
    ordered = sorted(period.rows.items(), key=lambda row: (0 if by_day else -row[1].held_ns, row[0]))
    charges, prices = period.charges, period.prices
    return {name: row(amounts, charges.get(name, NO_CHARGE), prices, times.get(name)) for name, amounts in ordered}


def total(period: PeriodAccounts) -> Row:
    return row(period.total, period.total_charge, period.prices, period.total_time)


def currency(prices: Prices) -> dict[str, str]:
    """Where a price and its currency are set."""
    has_price = prices.per_gpu_hour or prices.per_kwh is not None
    return {"currency": prices.currency} if has_price and prices.currency else {}


def hours(ns: int) -> float:
    return round(ns / _HOUR_NS, 6)


def row(amounts: Amounts, charge: Charge, prices: Prices, time: SlotTime | None = None) -> Row:
    """`efficiency_ratio` is the part of the held time that was used.

    An owner that also used the share of a co-owner has more SM time than held time: it used all that it held, which
    is 1, and `sm_gpu_hours` has all of its use.
    """
    found: Row = {
        "held_gpu_hours": hours(amounts.held_ns),
        "active_gpu_hours": hours(amounts.active_ns),
        "idle_gpu_hours": hours(amounts.idle_ns),
        "unjudged_gpu_hours": hours(amounts.unjudged_ns),
        "gpu_equivalent_hours": hours(amounts.equivalent_ns),
        "memory_gib_hours": round(amounts.memory_kib_s / _GIB_HOUR_KIB_S, 6),
        # The ledger stores 0 for "not measured"; no GPU draws 0 W.
        "energy_kwh": round(amounts.energy_uj / _KWH_UJ, 6) if amounts.energy_uj else None,
        "sm_gpu_hours": hours(amounts.sm_ns),
        "efficiency_ratio": round(min(1.0, amounts.sm_ns / amounts.held_ns), 3) if amounts.held_ns else None,
    }
    if time is not None:
        found |= {"free_gpu_hours": hours(time.free_ns), "unknown_gpu_hours": hours(time.unknown_ns)}
    return found | cost_columns(amounts, charge, prices)
