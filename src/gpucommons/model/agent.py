"""The agent itself: its cost, and what it refused or dropped."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ScrapeReading:
    """The responses with the metrics of one dialect alone. `quantiles_s` are (quantile, seconds) of the last minute."""

    count: int
    body_bytes: int
    sum_s: float
    quantiles_s: tuple[tuple[float, float], ...]


NO_SCRAPES = ScrapeReading(0, 0, 0.0, tuple((quantile, math.nan) for quantile in (0.5, 0.9, 0.99)))


@dataclass(frozen=True, slots=True)
class AgentReading:
    version: str
    started_wall_s: float
    cpu_seconds: float | None
    rss_bytes: int | None
    open_descriptors: int | None
    threads: int | None
    duplicates_dropped: Mapping[str, int] = field(default_factory=dict)
    dialect_failures: Mapping[str, int] = field(default_factory=dict)
    connections_open: int = 0
    connections_refused: Mapping[str, int] = field(default_factory=dict)
    requests: Mapping[tuple[str, int], int] = field(default_factory=dict)
    web_config_reload_ok: bool | None = None
    scrapes: Mapping[str, ScrapeReading] = field(default_factory=dict)
