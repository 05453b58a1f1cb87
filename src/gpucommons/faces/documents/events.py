"""The last events, newest first, and the firing alerts. Pure."""

from collections.abc import Iterable, Iterator
from itertools import islice

from gpucommons.faces.documents.schema import NUMBER, TEXT, by_key, or_null, record
from gpucommons.faces.documents.values import Json, rounded
from gpucommons.model.alerts import Alert
from gpucommons.model.events import Event
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


def events(snapshot: Snapshot, limit: int = SHOWN, type: str | None = None) -> Json:
    """Null where there is no event log."""
    log = snapshot.readings.event_log
    return None if log is None else events_document(islice(matching(log.events, type=type), limit))


def events_document(chosen: Iterable[Event]) -> dict[str, Json]:
    return {event.id: _event(event) for event in chosen}


def matching(
    events: Iterable[Event], since_s: float | None = None, type: str | None = None, user: str | None = None
) -> Iterator[Event]:
    """The selected events. `type` is a type or a group of types: `gpu` selects `gpu.lost`, `gpu.xid` and so on."""
    for event in events:
        if since_s is not None and event.wall_s < since_s:
            continue
        if type is not None and event.type != type and not event.type.startswith(f"{type}."):
            continue
        if user is not None and event.user != user:
            continue
        yield event


def alerts(snapshot: Snapshot) -> Json:
    """Null where no Alertmanager is configured or it does not answer."""
    reading = snapshot.readings.alerts
    return None if reading is None else {alert.fingerprint: _alert(alert) for alert in reading.alerts}


def _event(event: Event) -> Json:
    return {
        "time_unix_s": round(event.wall_s, 3),
        "type": event.type,
        "user": event.user,
        "source": event.source,
        "details": {name: str(value) for name, value in event.details.items()},
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
