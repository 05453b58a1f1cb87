"""The alerts that an Alertmanager holds now. One request now and then; what it answers is checked field by field."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from gpucommons.model.alerts import Alert, AlertsReading
from gpucommons.sources.source import SourceError

MOST_ALERTS = 200
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
        try:
            with urllib.request.urlopen(self._url, timeout=_TIMEOUT_S) as answer:
                body = answer.read(_LONGEST_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise SourceError("refused", f"Alertmanager answers with status {error.code}") from error
        except OSError as error:
            raise SourceError("unreachable", f"Alertmanager does not answer at {self._url}: {error}") from error
        if len(body) > _LONGEST_BYTES:
            raise SourceError("too_long", "Alertmanager answers more than can be shown")
        try:
            told = json.loads(body)
        except ValueError as error:
            raise SourceError("not_json", "Alertmanager answers something that is no JSON") from error
        return parse_alerts(told)


def parse_alerts(told: object) -> AlertsReading:
    """Pure. An alert that is not one is left out; the others are shown."""
    if not isinstance(told, list):
        raise SourceError("not_alerts", "Alertmanager answers something that is no list of alerts")
    alerts = (_alert(row) for row in told if isinstance(row, dict))
    found = sorted((alert for alert in alerts if alert is not None), key=lambda alert: -(alert.starts_wall_s or 0.0))
    return AlertsReading(tuple(found[:MOST_ALERTS]))


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
