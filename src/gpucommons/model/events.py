"""An event and its line: one JSON object, as DS01's event log has them. Both spellings of its keys are read.

Pure. A bad line is a reason, never an exception: one must not silence the next.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

SCHEMA_VERSION = "1"
_LONGEST_TYPE = 128


class BadLine(StrEnum):
    NOT_JSON = "not_json"
    NOT_AN_EVENT = "not_an_event"
    NO_TYPE = "no_type"
    NO_TIME = "no_time"
    TOO_LONG = "too_long"


@dataclass(frozen=True, slots=True)
class Event:
    wall_s: float
    type: str
    user: str = ""
    source: str = ""
    details: Mapping[str, object] = field(default_factory=dict)


class Stamp(NamedTuple):
    """What an event is counted by."""

    type: str
    wall_s: float


# The decoder's own function: a line of a long log takes half the time that json.loads takes.
_decode = json.JSONDecoder().raw_decode


def parse_stamp(line: bytes) -> Stamp | BadLine:
    """Type and time alone, for who only counts."""
    told = _object(line)
    return told if isinstance(told, BadLine) else _stamp(told)


def parse_line(line: bytes) -> Event | BadLine:
    told = _object(line)
    if isinstance(told, BadLine):
        return told
    stamp = _stamp(told)
    if isinstance(stamp, BadLine):
        return stamp
    details = told.get("details")
    return Event(
        stamp.wall_s,
        stamp.type,
        _text(told.get("user")),
        _text(told.get("source")),
        details if isinstance(details, dict) else {},
    )


def _object(line: bytes) -> dict[str, object] | BadLine:
    text = line.decode("utf-8", "replace").strip()
    try:
        told, end = _decode(text)
    except (ValueError, RecursionError):
        return BadLine.NOT_JSON
    if end != len(text):
        return BadLine.NOT_JSON
    return told if isinstance(told, dict) else BadLine.NOT_AN_EVENT


def _stamp(told: Mapping[str, object]) -> Stamp | BadLine:
    type = told.get("event_type") or told.get("event")
    if not isinstance(type, str) or len(type) > _LONGEST_TYPE:
        return BadLine.NO_TYPE
    wall_s = _wall_s(told.get("timestamp") or told.get("ts"))
    return BadLine.NO_TIME if wall_s is None else Stamp(type, wall_s)


def format_line(event: Event) -> bytes:
    """One line with its end. Whatever the texts hold, it is one line."""
    told: dict[str, object] = {
        "timestamp": iso_time(event.wall_s),
        "event_type": event.type,
        "schema_version": SCHEMA_VERSION,
    }
    if event.user:
        told["user"] = event.user
    if event.source:
        told["source"] = event.source
    if event.details:
        told["details"] = dict(event.details)
    return json.dumps(told).encode() + b"\n"


def iso_time(wall_s: float) -> str:
    """UTC, to the millisecond."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _wall_s(value: object) -> float | None:
    """ISO 8601, UTC where it names no zone; or Unix time."""
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


@dataclass(frozen=True, slots=True)
class EventsReading:
    """The last 24 h of an event log. `behind_bytes` is what is not read yet, `rotations_lost` counts
    rotations whose unread rest was nowhere to be found."""

    counts_24h: Mapping[str, int]
    lines: int = 0
    bad_lines: Mapping[str, int] = field(default_factory=dict)
    behind_bytes: int = 0
    rotations_lost: int = 0


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """`id` is unique among the entries that are kept. An empty `user` means that it concerns nobody in particular."""

    id: str
    wall_s: float
    type: str
    user: str = ""
    source: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JournalReading:
    entries: tuple[JournalEntry, ...]
