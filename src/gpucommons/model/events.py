"""An event, and its line in an event log: one JSON object, in DS01's format. And the alerts that are firing."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

# An event, and its line in an event log: one JSON object, in DS01's format. Both spellings of DS01's keys are read.
#
# Pure. A bad line becomes a reason, never an exception, so that it does not hide the next line.

SCHEMA_VERSION = "1"
_MAX_TYPE_LENGTH = 128

# The types of the agent's own events. DS01's log has others.
GPU_LOST, GPU_BACK, GPU_XID = "gpu.lost", "gpu.back", "gpu.xid"
PROGRAM_XID = "program.xid"
ALLOCATION_SEEN, ALLOCATION_GONE = "allocation.seen", "allocation.gone"
QUOTA_EXCEEDED, QUOTA_KEPT = "quota.exceeded", "quota.kept"
TURN_REVOKED = "turn.revoked"
LEASE_TRESPASSER, RESERVATION_RELEASED = "lease.trespasser", "reservation.released"
TRESPASSER_PAUSED, TRESPASSER_RESUMED = "lease.trespasser_paused", "lease.trespasser_resumed"
MPS_STARTED, MPS_STOPPED, MPS_FAILED = "mps.started", "mps.stopped", "mps.failed"
MPS_DIED, MPS_LOG = "mps.died", "mps.log"
PROGRAM_PARKED, PROGRAM_WOKEN = "program.parked", "program.woken"
PROGRAM_NOT_PARKED, PROGRAM_STRANDED = "program.not_parked", "program.stranded"
PROGRAM_WAITED = "program.waited"
IDLE_TYPES = ("idle.notified", "idle.reminded", "idle.acted", "idle.failed")
EVENT_TYPES = (
    GPU_LOST,
    GPU_BACK,
    GPU_XID,
    PROGRAM_XID,
    ALLOCATION_SEEN,
    ALLOCATION_GONE,
    QUOTA_EXCEEDED,
    QUOTA_KEPT,
    TURN_REVOKED,
    LEASE_TRESPASSER,
    TRESPASSER_PAUSED,
    TRESPASSER_RESUMED,
    RESERVATION_RELEASED,
    MPS_STARTED,
    MPS_STOPPED,
    MPS_FAILED,
    MPS_DIED,
    MPS_LOG,
    PROGRAM_PARKED,
    PROGRAM_WOKEN,
    PROGRAM_NOT_PARKED,
    PROGRAM_STRANDED,
    PROGRAM_WAITED,
    *IDLE_TYPES,
)


def read_type(text: str) -> str:
    """A type, or a group of types: `gpu` means `gpu.lost`, `gpu.xid` and so on. Raises ValueError with one line."""
    if text in EVENT_TYPES or any(type.startswith(f"{text}.") for type in EVENT_TYPES):
        return text
    raise ValueError(f"unknown type {text[:64]!r}: use {', '.join(EVENT_TYPES)}, or the word before the dot")


class BadLine(StrEnum):
    NOT_JSON = "not_json"
    NOT_AN_EVENT = "not_an_event"
    NO_TYPE = "no_type"
    NO_TIME = "no_time"
    TOO_LONG = "too_long"


class Event(NamedTuple):
    """Something that happened. `user` is empty where it concerns no single user; `id` is set by `Numbering`."""

    wall_s: float
    type: str
    user: str = ""
    source: str = ""
    details: Mapping[str, object] = {}
    id: str = ""


class Stamp(NamedTuple):
    """What an event is counted by."""

    type: str
    wall_s: float


# A bound method of one decoder: takes half the time of json.loads for each line of a long log.
_decode = json.JSONDecoder().raw_decode


def parse_stamp(line: bytes) -> Stamp | BadLine:
    """Type and time only, for counting."""
    value = _object(line)
    return value if isinstance(value, BadLine) else _stamp(value)


def parse_line(line: bytes) -> Event | BadLine:
    value = _object(line)
    if isinstance(value, BadLine):
        return value
    stamp = _stamp(value)
    if isinstance(stamp, BadLine):
        return stamp
    details = value.get("details")
    return Event(
        stamp.wall_s,
        stamp.type,
        _text(value.get("user")),
        _text(value.get("source")),
        details if isinstance(details, dict) else {},
    )


def _object(line: bytes) -> dict[str, object] | BadLine:
    text = line.decode("utf-8", "replace").strip()
    try:
        value, end = _decode(text)
    except (ValueError, RecursionError):
        return BadLine.NOT_JSON
    if end != len(text):
        return BadLine.NOT_JSON
    return value if isinstance(value, dict) else BadLine.NOT_AN_EVENT


def _stamp(value: Mapping[str, object]) -> Stamp | BadLine:
    type = value.get("event_type") or value.get("event")
    if not isinstance(type, str) or len(type) > _MAX_TYPE_LENGTH:
        return BadLine.NO_TYPE
    wall_s = _wall_s(value.get("timestamp") or value.get("ts"))
    return BadLine.NO_TIME if wall_s is None else Stamp(type, wall_s)


def format_line(event: Event) -> bytes:
    """One line with its newline, whatever characters the texts contain."""
    value: dict[str, object] = {
        "timestamp": iso_time(event.wall_s),
        "event_type": event.type,
        "schema_version": SCHEMA_VERSION,
    }
    if event.user:
        value["user"] = event.user
    if event.source:
        value["source"] = event.source
    if event.details:
        value["details"] = dict(event.details)
    return json.dumps(value).encode() + b"\n"


def iso_time(wall_s: float) -> str:
    """UTC, to the millisecond."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Numbering:
    """Gives each event of a log its id: the time, and its number among the events of that millisecond.

    A reader of the log file gives the same ids as the agent that wrote it.
    """

    def __init__(self) -> None:
        self._time = ""
        self._number = 0

    def __call__(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            time = iso_time(event.wall_s)
            self._number = self._number + 1 if time == self._time else 0
            self._time = time
            yield event._replace(id=f"{time}-{self._number:03}")


def _wall_s(value: object) -> float | None:
    """ISO 8601, in UTC unless it names a zone; or Unix time."""
    if isinstance(value, str):
        try:
            when = datetime.fromisoformat(value)
            return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e11 and math.isfinite(value):
        return float(value)
    return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


class EventsReading(NamedTuple):
    """The last 24 h of DS01's event log. `behind_bytes` is not read yet; `rotations_lost` counts rotations after
    which the unread end of the file was not found."""

    counts_24h: Mapping[str, int]
    lines: int = 0
    bad_lines: Mapping[str, int] = {}
    behind_bytes: int = 0
    rotations_lost: int = 0


class EventLogReading(NamedTuple):
    """The last events of our own event log, newest first."""

    events: tuple[Event, ...]


# The alerts that are firing, from Alertmanager.


class Alert(NamedTuple):
    """`state` is active or suppressed (silenced or inhibited). `fingerprint` is its identity."""

    fingerprint: str
    name: str
    severity: str
    state: str
    starts_wall_s: float | None
    summary: str = ""
    labels: Mapping[str, str] = {}


class AlertsReading(NamedTuple):
    alerts: tuple[Alert, ...]
