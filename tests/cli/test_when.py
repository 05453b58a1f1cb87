"""Points in time as people write them."""

import time
from datetime import datetime

import pytest

from gpucommons.cli.leases import parse_when

# A Monday.
NOW = datetime(2026, 11, 16, 10, 30).astimezone()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "2026-11-16 10:30"),
        ("in 2h", "2026-11-16 12:30"),
        ("in 1 h 30m", "2026-11-16 12:00"),
        ("11:00", "2026-11-16 11:00"),
        ("9:00", "2026-11-17 09:00"),
        ("today 9:00", "2026-11-16 09:00"),
        ("tomorrow 9:00", "2026-11-17 09:00"),
        ("Monday 14:00", "2026-11-16 14:00"),
        ("mon 9:00", "2026-11-23 09:00"),
        ("monday 9:00", "2026-11-23 09:00"),
        ("friday 8:05", "2026-11-20 08:05"),
        ("2026-11-20 9:00", "2026-11-20 09:00"),
        ("2026-11-20T09:00", "2026-11-20 09:00"),
        ("2026-11-20", "2026-11-20 00:00"),
    ],
)
def test_written(text: str, expected: str) -> None:
    assert parse_when(text, NOW).strftime("%Y-%m-%d %H:%M") == expected


@pytest.mark.parametrize("text", ["", "soon", "25:00", "tomorrow", "someday 9:00", "2026-13-01 9:00", "in a while"])
def test_not_a_time(text: str) -> None:
    with pytest.raises(ValueError, match="invalid"):
        parse_when(text, NOW)


@pytest.mark.parametrize(
    ("zone", "text"), [("UTC", "0001-01-01"), ("America/New_York", "9999-12-31 23:59"), ("Asia/Tokyo", "0001-01-01")]
)
def test_the_ends_of_the_calendar_are_refused(zone: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        with pytest.raises(ValueError, match="out of range; use a date of the next weeks"):
            parse_when(text, datetime(2026, 11, 16).astimezone())
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_date_with_a_zone_keeps_it() -> None:
    assert parse_when("2026-11-20T09:00+00:00", NOW).utcoffset() is not None
