"""The agent itself: its cost, and what it refused or dropped."""

from collections.abc import Mapping
from dataclasses import dataclass, field


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
