"""The alerts that are firing, from Alertmanager."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Alert:
    """`state` is active or suppressed (silenced or inhibited). `fingerprint` is its identity."""

    fingerprint: str
    name: str
    severity: str
    state: str
    starts_wall_s: float | None
    summary: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


class AlertsReading(NamedTuple):
    alerts: tuple[Alert, ...]
