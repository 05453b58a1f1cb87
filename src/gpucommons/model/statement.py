"""What each user held and used over the last periods, as the ledger sums it up. Seconds and joules, never rounded."""

from dataclasses import dataclass
from typing import NamedTuple

PERIODS = ("today", "7d", "30d")


class StatementRow(NamedTuple):
    """One user. held = active + idle + what could not be judged; the energy is None where none was measured."""

    user: str
    held_gpu_s: float
    active_gpu_s: float
    idle_gpu_s: float
    energy_joules: float | None = None


@dataclass(frozen=True, slots=True)
class Statement:
    since_wall_s: float
    rows: tuple[StatementRow, ...]


@dataclass(frozen=True, slots=True)
class StatementReading:
    """By period, one of PERIODS; `owner_gpu_s_today` is by kind/id of the owner, for those who are there now."""

    by_period: dict[str, Statement]
    owner_gpu_s_today: dict[str, float]
