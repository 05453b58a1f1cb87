"""What each user held and used today and over the last days: the ledger summed up for the page."""

from datetime import datetime
from pathlib import Path

from gpucommons.ledger.query import PeriodUsage, read_period
from gpucommons.model.accounts import PERIODS, AccountsReading, Amounts, PeriodAccounts, StatementRow

_DAYS = {"7d": 7, "30d": 30}
_DAY_S = 86_400
_NS = 1e9


def read_statements(path: Path, now_wall_s: float) -> AccountsReading:
    """Empty while there is no ledger yet; raises LedgerError where there is one that cannot be read."""
    if not path.exists():
        return AccountsReading({}, {})
    midnight_s = datetime.fromtimestamp(now_wall_s).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    statements, today = {}, {}
    for name in PERIODS:
        since_s = int(midnight_s if name == "today" else now_wall_s - _DAYS[name] * _DAY_S)
        period = read_period(path, since_s, int(now_wall_s) + 60)
        statements[name] = statement(period)
        if name == "today":
            today = _by_owner(period)
    return AccountsReading(statements, today)


def statement(period: PeriodUsage) -> PeriodAccounts:
    """By user; what has none is told under its owner's name."""
    sums: dict[str, Amounts] = {}
    for (_, account), amounts in period.usage.items():
        user = account.user or account.owner
        sums[user] = sums.get(user, Amounts()).plus(amounts)
    rows = (
        StatementRow(
            user,
            amounts.held_ns / _NS,
            amounts.active_ns / _NS,
            amounts.idle_ns / _NS,
            amounts.energy_uj / 1e6 if amounts.energy_uj else None,
        )
        for user, amounts in sums.items()
    )
    return PeriodAccounts(float(period.since_s), tuple(sorted(rows, key=lambda row: (-row.held_gpu_s, row.user))))


def _by_owner(period: PeriodUsage) -> dict[str, float]:
    held: dict[str, float] = {}
    for (_, account), amounts in period.usage.items():
        key = f"{account.kind}/{account.id}"
        held[key] = held.get(key, 0.0) + amounts.held_ns / _NS
    return held
