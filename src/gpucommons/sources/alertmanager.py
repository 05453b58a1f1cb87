"""The alerts of an Alertmanager. Every field of its answer is checked."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from gpucommons.base.http_client import get_json
from gpucommons.model.events import Alert, AlertsReading
from gpucommons.sources.source import SourceError

MAX_ALERTS = 200
_LONGEST_BYTES = 4 * 2**20
_LONGEST_TEXT = 500
_TIMEOUT_S = 5.0


class AlertmanagerSource:
    name = "alertmanager"
    feeds = "alerts"
    produces = AlertsReading
    essential = False
    runs_on: Literal["thread", "loop"] = "thread"

    def __init__(self, url: str, cadence_s: float = 15.0) -> None:
        self._url = f"{url.rstrip('/')}/api/v2/alerts"
        self.cadence_s = cadence_s
        self.deadline_s = 2 * _TIMEOUT_S

    def read(self) -> AlertsReading:
        return parse_alerts(
            asyncio.run(
                get_json(self._url, "Alertmanager", SourceError, timeout_s=_TIMEOUT_S, max_bytes=_LONGEST_BYTES)
            )
        )


def parse_alerts(answer: object) -> AlertsReading:
    """Pure. A row that is not an alert is left out."""
    if not isinstance(answer, list):
        raise SourceError("not_alerts", "Alertmanager sent an answer that is not a list of alerts")
    alerts = (_alert(row) for row in answer if isinstance(row, dict))
    found = sorted((alert for alert in alerts if alert is not None), key=lambda alert: -(alert.starts_wall_s or 0.0))
    return AlertsReading(tuple(found[:MAX_ALERTS]))


def _alert(row: Mapping[str, object]) -> Alert | None:
    labels, annotations, status = _texts(row.get("labels")), _texts(row.get("annotations")), row.get("status")
    name = labels.pop("alertname", "")
    fingerprint = row.get("fingerprint")
    if not name or not isinstance(fingerprint, str):
        return None
    state = status.get("state") if isinstance(status, dict) else None
    return Alert(
        fingerprint=fingerprint,
        name=name,
        severity=labels.pop("severity", ""),
        state=state if isinstance(state, str) else "active",
        starts_wall_s=_wall_s(row.get("startsAt")),
        summary=annotations.get("summary") or annotations.get("description", ""),
        labels=labels,
    )


def _texts(found: object) -> dict[str, str]:
    if not isinstance(found, dict):
        return {}
    return {str(name): value[:_LONGEST_TEXT] for name, value in found.items() if isinstance(value, str)}


def _wall_s(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError:
        return None
