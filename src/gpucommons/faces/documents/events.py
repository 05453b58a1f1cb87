"""Recent events, newest first, and the alerts that fire. Pure."""

from gpucommons.faces.documents.schema import NUMBER, NUMBER_OR_NULL, TEXT, Record, by_key, or_null
from gpucommons.faces.documents.values import Json, rounded
from gpucommons.model.alerts import Alert
from gpucommons.model.events import JournalEntry
from gpucommons.model.snapshot import Snapshot

SHOWN = 50
MOST = 1000
_EVENT = Record[JournalEntry](
    time_unix_s=(NUMBER, lambda entry: round(entry.wall_s, 3)),
    type=(TEXT, lambda entry: entry.type),
    user=(TEXT, lambda entry: entry.user),
    source=(TEXT, lambda entry: entry.source),
    details=(by_key(TEXT, "name"), lambda entry: dict(entry.details)),
)
_ALERT = Record[Alert](
    name=(TEXT, lambda alert: alert.name),
    severity=(TEXT, lambda alert: alert.severity),
    state=(TEXT, lambda alert: alert.state),
    since_unix_s=(NUMBER_OR_NULL, lambda alert: rounded(alert.starts_wall_s, 0)),
    summary=(TEXT, lambda alert: alert.summary),
    labels=(by_key(TEXT, "label"), lambda alert: dict(alert.labels)),
)
SCHEMA = or_null(by_key(_EVENT.schema, "event id"))
ALERTS = or_null(by_key(_ALERT.schema, "fingerprint"))


def events(snapshot: Snapshot, limit: int = SHOWN, type: str = "") -> Json:
    """Null where the agent follows no events."""
    journal = snapshot.readings.journal
    if journal is None:
        return None
    chosen = [entry for entry in journal.entries if type in ("", entry.type)]
    return {entry.id: _EVENT.build(entry) for entry in chosen[:limit]}


def alerts(snapshot: Snapshot) -> Json:
    """Null where no Alertmanager is configured or it does not answer."""
    reading = snapshot.readings.alerts
    return None if reading is None else {alert.fingerprint: _ALERT.build(alert) for alert in reading.alerts}
