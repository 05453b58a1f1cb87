"""Periods: ages, dates and calendar months."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from gpucommons.base.periods import Period, month, parse_period, parse_since

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "ago"),
    [("30d", timedelta(days=30)), ("12h", timedelta(hours=12)), ("90m", timedelta(minutes=90)), ("2w", timedelta(14))],
)
def test_since_an_age(text: str, ago: timedelta) -> None:
    assert parse_since(text, NOW.timestamp(), UTC) == (NOW - ago).timestamp()


def test_since_a_date() -> None:
    vienna = timezone(timedelta(hours=1))
    assert parse_since("2026-11-01", NOW.timestamp(), vienna) == datetime(2026, 10, 31, 23, tzinfo=UTC).timestamp()
    assert parse_since("2026-11-01T00:00:00Z", NOW.timestamp(), vienna) == datetime(2026, 11, 1, tzinfo=UTC).timestamp()


def test_months_are_local_and_know_summer_time() -> None:
    vienna = ZoneInfo("Europe/Vienna")
    march = month("2026-03", NOW.timestamp(), vienna)
    assert (march.until_s - march.since_s) / 3600 == 31 * 24 - 1
    december = month("2025-12", NOW.timestamp(), vienna)
    assert december == Period(
        int(datetime(2025, 11, 30, 23, tzinfo=UTC).timestamp()), int(datetime(2025, 12, 31, 23, tzinfo=UTC).timestamp())
    )
    assert month("2026-11", NOW.timestamp(), vienna).until_s == NOW.timestamp(), "the current month ends now"


@pytest.mark.parametrize("text", ["", "yesterday", "30", "-3d", "3.5h", "2026-13-01", "30 d"])
def test_an_invalid_period_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid period '.*': use 30d, 12h or a date"):
        parse_since(text, NOW.timestamp(), UTC)


@pytest.mark.parametrize("text", ["", "2026", "2026-00", "2026-13", "November", "2026-1"])
def test_an_invalid_month_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid month"):
        month(text, NOW.timestamp(), UTC)


def test_a_period_is_named_as_it_was_given() -> None:
    now_s = NOW.timestamp()
    assert parse_period(None, None, now_s, UTC) == ("30d", Period(int(now_s) - 30 * 86_400, int(now_s)))
    assert parse_period("2026-11-01", None, now_s, UTC)[0] == "2026-11-01"
    assert parse_period(None, "2026-10", now_s, UTC) == ("2026-10", month("2026-10", now_s, UTC))
    with pytest.raises(ValueError, match="'2027-01-01' is in the future"):
        parse_period("2027-01-01", None, now_s, UTC)
    with pytest.raises(ValueError, match="month '2027-01' has not begun"):
        parse_period(None, "2027-01", now_s, UTC)
    with pytest.raises(ValueError, match="exclude each other"):
        parse_period("30d", "2026-10", now_s, UTC)
