"""One line of an event log: both spellings, any damage, and our own lines read back as they were."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.model.events import BadLine, Event, Stamp, format_line, iso_time, parse_line, parse_stamp
from unhurried import unhurried


@pytest.mark.parametrize(
    "line",
    [
        b'{"timestamp": "2026-11-15T10:00:00Z", "event_type": "gpu.allocate", "schema_version": "1"}',
        b'{"ts": "2026-11-15T10:00:00Z", "event": "gpu.allocate"}',
        b'{"ts": "2026-11-15T10:00:00.000000+00:00", "event_type": "gpu.allocate"}\r',
        b'{"timestamp": "2026-11-15T11:00:00+01:00", "event": "gpu.allocate", "details": []}',
        b'{"timestamp": "2026-11-15T10:00:00", "event": "gpu.allocate", "user": null}',
        b'  {"timestamp": 1794736800, "event": "gpu.allocate", "unknown": [[1]]} ',
    ],
)
def test_spellings(line: bytes) -> None:
    event = parse_line(line)
    assert event == Event(1794736800.0, "gpu.allocate")
    assert parse_stamp(line) == Stamp("gpu.allocate", 1794736800.0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", BadLine.NOT_JSON),
        (b"\x00\xff\xfe", BadLine.NOT_JSON),
        (b'{"timestamp": "2026-11-15T10:00:00Z", "event_ty', BadLine.NOT_JSON),
        (b'{"ts": "2026-11-15T10:00:00Z", "event": "a"} trailing', BadLine.NOT_JSON),
        (b"[" * 100_000, BadLine.NOT_JSON),
        (b'{"ts": ' + b"9" * 5000 + b', "event": "a"}', BadLine.NOT_JSON),
        (b"[1, 2]", BadLine.NOT_AN_EVENT),
        (b"null", BadLine.NOT_AN_EVENT),
        (b'{"timestamp": "2026-11-15T10:00:00Z"}', BadLine.NO_TYPE),
        (b'{"timestamp": "2026-11-15T10:00:00Z", "event_type": 7}', BadLine.NO_TYPE),
        (b'{"ts": "2026-11-15T10:00:00Z", "event": "' + b"x" * 200 + b'"}', BadLine.NO_TYPE),
        (b'{"event_type": "gpu.allocate"}', BadLine.NO_TIME),
        (b'{"event_type": "gpu.allocate", "ts": "yesterday"}', BadLine.NO_TIME),
        (b'{"event_type": "gpu.allocate", "ts": NaN}', BadLine.NO_TIME),
        (b'{"event_type": "gpu.allocate", "ts": 1e300}', BadLine.NO_TIME),
        (b'{"event_type": "gpu.allocate", "ts": true}', BadLine.NO_TIME),
        (b'{"event_type": "gpu.allocate", "ts": {}}', BadLine.NO_TIME),
    ],
)
def test_damage_has_a_name(line: bytes, reason: BadLine) -> None:
    assert parse_line(line) is reason
    assert parse_stamp(line) is reason


@unhurried()
@given(st.binary())
def test_no_bytes_raise(line: bytes) -> None:
    parse_line(line)
    parse_stamp(line)


@unhurried(50)
@given(
    st.floats(0, 4e9),
    st.text(min_size=1, max_size=9),
    st.text(max_size=9),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers(), max_size=2),
)
def test_our_own_lines_are_one_line_each_and_read_back(
    wall_s: float, type: str, user: str, details: dict[str, object]
) -> None:
    line = format_line(Event(wall_s, type, user, "gpucommons", details))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    event = parse_line(line)
    assert isinstance(event, Event)
    assert (event.type, event.user, event.source) == (type, user, "gpucommons")
    assert abs(event.wall_s - wall_s) <= 0.001
    assert event.details == details
    assert json.loads(line)["timestamp"].endswith("Z")


def test_times_are_utc() -> None:
    assert iso_time(0.0) == "1970-01-01T00:00:00.000Z"
