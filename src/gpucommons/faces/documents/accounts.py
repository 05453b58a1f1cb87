"""GPU-hours and energy by user, over today and the last days. Pure."""

from gpucommons.faces.documents.schema import NUMBER, by_key, or_null, record
from gpucommons.faces.documents.values import Json, total
from gpucommons.model.accounts import PERIODS, PeriodAccounts, StatementRow
from gpucommons.model.snapshot import Snapshot

_ROW = record(
    held_gpu_hours=NUMBER,
    active_gpu_hours=NUMBER,
    idle_gpu_hours=NUMBER,
    energy_kwh=or_null(NUMBER),
)
SCHEMA = or_null(
    by_key(record(since_unix_s=NUMBER, users=by_key(_ROW, "user"), total=_ROW), f"period: {', '.join(PERIODS)}")
)


def accounts(snapshot: Snapshot, only_period: str | None = None) -> Json:
    """Null where no ledger is kept."""
    reading = snapshot.readings.accounts
    if reading is None:
        return None
    return {
        period: _statement(reading.by_period[period])
        for period in PERIODS
        if period in reading.by_period and only_period in (None, period)
    }


def _statement(statement: PeriodAccounts) -> Json:
    rows = statement.rows
    everybody = StatementRow(
        "",
        sum(row.held_gpu_s for row in rows),
        sum(row.active_gpu_s for row in rows),
        sum(row.idle_gpu_s for row in rows),
        total(row.energy_joules for row in rows),
    )
    return {
        "since_unix_s": statement.since_wall_s,
        "users": {row.user: _row(row) for row in rows},
        "total": _row(everybody),
    }


def _row(row: StatementRow) -> Json:
    return {
        "held_gpu_hours": round(row.held_gpu_s / 3600, 3),
        "active_gpu_hours": round(row.active_gpu_s / 3600, 3),
        "idle_gpu_hours": round(row.idle_gpu_s / 3600, 3),
        "energy_kwh": None if row.energy_joules is None else round(row.energy_joules / 3.6e6, 4),
    }
