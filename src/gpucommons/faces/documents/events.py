"""What happened lately, newest first, and the alerts that fire. Pure."""

from gpucommons.faces.documents.schema import NUMBER, TEXT, by_key, or_null, record
from gpucommons.faces.documents.values import Json, rounded
from gpucommons.model.alerts import Alert
from gpucommons.model.events import JournalEntry
from gpucommons.model.snapshot import Snapshot

SHOWN = 50
MOST = 1000
SCHEMA = or_null(
    by_key(record(time_unix_s=NUMBER, type=TEXT, user=TEXT, source=TEXT, details=by_key(TEXT, "name")), "event id")
)
ALERTS = or_null(
    by_key(
        record(
            name=TEXT,
            severity=TEXT,
            state=TEXT,
            since_unix_s=or_null(NUMBER),
            summary=TEXT,
            labels=by_key(TEXT, "label"),
        ),
        "fingerprint",
    )
)


def events(snapshot: Snapshot, limit: int = SHOWN, type: str = "") -> Json:
    """Null where no events are followed."""
    event_log = snapshot.readings.event_log
    if event_log is None:
        return None
    chosen = [entry for entry in event_log.entries if type in ("", entry.type)]
    return {entry.id: _entry(entry) for entry in chosen[:limit]}


def alerts(snapshot: Snapshot) -> Json:
    """Null where no Alertmanager is configured or it does not answer."""
    reading = snapshot.readings.alerts
    return None if reading is None else {alert.fingerprint: _alert(alert) for alert in reading.alerts}


def _entry(entry: JournalEntry) -> Json:
    return {
        "time_unix_s": round(entry.wall_s, 3),
        "type": entry.type,
        "user": entry.user,
        "source": entry.source,
        "details": dict(entry.details),
    }


def _alert(alert: Alert) -> Json:
    return {
        "name": alert.name,
        "severity": alert.severity,
        "state": alert.state,
        "since_unix_s": rounded(alert.starts_wall_s, 0),
        "summary": alert.summary,
        "labels": dict(alert.labels),
    }
