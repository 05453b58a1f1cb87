"""The last events, the firing alerts, and the messages to holders of idle GPUs, newest first. Pure."""

from collections.abc import Iterable, Iterator
from itertools import islice

from gpucommons.faces.documents.schema import (
    FLAG,
    NUMBER,
    NUMBER_OR_NULL,
    TEXT,
    Record,
    by_key,
    describe,
    one_of,
    or_null,
)
from gpucommons.faces.documents.values import Json, round_value
from gpucommons.model.events import Alert, Event
from gpucommons.model.idle import IdleMessage, IdleStep
from gpucommons.model.snapshot import Snapshot

# The last events, newest first, and the firing alerts. Pure.

SHOWN = 50
MOST = 1000
_EVENT = Record[Event](
    time_unix_s=(NUMBER, lambda event: round(event.wall_s, 3)),
    type=(TEXT, lambda event: event.type),
    user=(TEXT, lambda event: event.user),
    source=(TEXT, lambda event: event.source),
    details=(by_key(TEXT, "name"), lambda event: {name: str(value) for name, value in event.details.items()}),
)
_ALERT = Record[Alert](
    name=(TEXT, lambda alert: alert.name),
    severity=(TEXT, lambda alert: alert.severity),
    state=(TEXT, lambda alert: alert.state),
    since_unix_s=(NUMBER_OR_NULL, lambda alert: round_value(alert.starts_wall_s, 0)),
    summary=(TEXT, lambda alert: alert.summary),
    labels=(by_key(TEXT, "label"), lambda alert: dict(alert.labels)),
)
EVENTS_SCHEMA = or_null(by_key(_EVENT.schema, "event id"))
ALERTS = or_null(by_key(_ALERT.schema, "fingerprint"))


def events(
    snapshot: Snapshot,
    limit: int = SHOWN,
    since_s: float | None = None,
    type: str | None = None,
    user: str | None = None,
) -> Json:
    """Null where there is no event log."""
    log = snapshot.readings.event_log
    return None if log is None else events_document(islice(matching(log.events, since_s, type, user), limit))


def events_document(chosen: Iterable[Event]) -> dict[str, Json]:
    return {event.id: _EVENT.build(event) for event in chosen}


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
    return None if reading is None else {alert.fingerprint: _ALERT.build(alert) for alert in reading.alerts}


# The messages to holders of idle GPUs, newest first. Pure.

_MESSAGE = Record[IdleMessage](
    user=(TEXT, lambda message: message.user),
    time_unix_s=(NUMBER, lambda message: round(message.wall_s, 3)),
    step=(one_of(*IdleStep), lambda message: message.step.value),
    text=(TEXT, lambda message: message.text),
    over=(describe(FLAG, "whether the idle period that it is about has ended"), lambda message: message.over),
)
MESSAGES_SCHEMA = or_null(by_key(_MESSAGE.schema, "message id"))


def messages(snapshot: Snapshot, user: str | None = None) -> Json:
    """Null where no messages are made."""
    reading = snapshot.readings.idle
    if reading is None:
        return None
    return {message.id: _MESSAGE.build(message) for message in reading.messages if user is None or message.user == user}
