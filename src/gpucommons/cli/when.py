"""Points in time as people write them: `now`, `in 2h`, `9:00`, `tomorrow 9:00`, `monday 14:00`, a date. Pure."""

import re
from datetime import datetime, timedelta
from typing import Final

from gpucommons.base.periods import parse_duration

_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{2})", re.ASCII)


def parse_when(text: str, now: datetime) -> datetime:
    """In the zone of `now`. A time of day without a day is the next one. Raises ValueError with one line."""
    words = text.lower().split()
    if words == ["now"]:
        return now
    if len(words) >= 2 and words[0] == "in":
        return now + timedelta(seconds=parse_duration("".join(words[1:])))
    if len(words) == 1 and (time := _time_of_day(words[0])):
        today = _at(now, time)
        return today if today > now else _at(now + timedelta(days=1), time)
    if len(words) == 2 and (time := _time_of_day(words[1])) and (days := _days(words[0], now)) is not None:
        found = _at(now + timedelta(days=days), time)
        is_past_weekday = found <= now and words[0] not in ("today", "tomorrow")
        return _at(now + timedelta(days=7), time) if is_past_weekday else found
    return _date(text, now)


def _time_of_day(text: str) -> tuple[int, int] | None:
    found = _CLOCK.fullmatch(text)
    if found is None or int(found[1]) > 23 or int(found[2]) > 59:
        return None
    return int(found[1]), int(found[2])


def _days(word: str, now: datetime) -> int | None:
    if word in ("today", "tomorrow"):
        return int(word == "tomorrow")
    matches = [number for number, name in enumerate(_WEEKDAYS) if len(word) >= 3 and name.startswith(word)]
    return (matches[0] - now.weekday()) % 7 if matches else None


def _at(day: datetime, time: tuple[int, int]) -> datetime:
    """At this time of day by the clock on the wall, also on a day on which the clocks are changed."""
    naive = day.replace(hour=time[0], minute=time[1], second=0, microsecond=0, tzinfo=None)
    return naive.astimezone()


def _date(text: str, now: datetime) -> datetime:
    day, _, clock = text.strip().replace("T", " ").partition(" ")
    hours, colon, rest = clock.partition(":")
    padded = f"{day} {hours.zfill(2)}{colon}{rest}" if clock else day
    try:
        found = datetime.fromisoformat(padded)
    except ValueError:
        raise ValueError(
            f"invalid time {text!r}: use now, 'in 2h', 9:00, 'tomorrow 9:00', 'monday 14:00' or '2026-11-20 9:00'"
        ) from None
    return found if found.tzinfo else found.astimezone()
