"""GPU-hours and energy by user, over today and the last days. Pure."""

from gpucommons.faces.documents.schema import NUMBER, NUMBER_OR_NULL, Record, by_key, or_null, record
from gpucommons.faces.documents.values import Json, total
from gpucommons.model.accounts import PERIODS, Statement, StatementRow
from gpucommons.model.snapshot import Snapshot

_ROW = Record[StatementRow](
    held_gpu_hours=(NUMBER, lambda row: round(row.held_gpu_s / 3600, 3)),
    active_gpu_hours=(NUMBER, lambda row: round(row.active_gpu_s / 3600, 3)),
    idle_gpu_hours=(NUMBER, lambda row: round(row.idle_gpu_s / 3600, 3)),
    energy_kwh=(NUMBER_OR_NULL, lambda row: None if row.energy_joules is None else round(row.energy_joules / 3.6e6, 4)),
)
SCHEMA = or_null(
    by_key(
        record(since_unix_s=NUMBER, users=by_key(_ROW.schema, "user"), total=_ROW.schema),
        f"period: {', '.join(PERIODS)}",
    )
)


def accounts(snapshot: Snapshot, only_period: str | None = None) -> Json:
    """Null where no ledger is kept."""
    reading = snapshot.readings.statement
    if reading is None:
        return None
    return {
        period: _statement(reading.by_period[period])
        for period in PERIODS
        if period in reading.by_period and only_period in (None, period)
    }


def _statement(statement: Statement) -> Json:
    rows = statement.rows
    whole_node = StatementRow(
        "",
        sum(row.held_gpu_s for row in rows),
        sum(row.active_gpu_s for row in rows),
        sum(row.idle_gpu_s for row in rows),
        total(row.energy_joules for row in rows),
    )
    return {
        "since_unix_s": statement.since_wall_s,
        "users": {row.user: _ROW.build(row) for row in rows},
        "total": _ROW.build(whole_node),
    }
