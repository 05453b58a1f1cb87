"""Durations (`90s`, `1h30m`, `3d`) and periods (`30d`, `2026-11-01`, `2026-11`) as people write them. Pure.

The time zone is a parameter.
"""

import math
import re
from datetime import datetime, tzinfo
from typing import Final, NamedTuple

# Durations as people write and read them: `90s`, `30m`, `2h`, `1h30m`, `3d`. Pure.

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhdw])", re.ASCII)
_WHOLE: Final = re.compile(r"(?:\d{1,9}(?:\.\d{1,3})?[smhdw])+", re.ASCII)
_LONGEST_S: Final = 366 * 86_400


def parse_duration(text: str) -> float:
    """Seconds. Raises ValueError with one line."""
    compact = text.strip().replace(" ", "")
    if _WHOLE.fullmatch(compact) is None:
        raise ValueError(f"invalid duration {text!r}: use a number with s, m, h, d or w, such as 90s, 2h or 1h30m")
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(compact))
    if not 0 < seconds <= _LONGEST_S:
        raise ValueError(f"invalid duration {text!r}: use more than 0 and at most 366 days")
    return seconds


def spoken_age(seconds: float) -> str:
    """As `spoken_duration`, in whole seconds: a value that changes all the time needs no tenths."""
    return f"{seconds:.0f} s" if seconds < 100 else spoken_duration(seconds)


def spoken_duration(seconds: float) -> str:
    """At most two units: `40 s`, `3 min`, `2 h 10 min`, `4 d 3 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds else "0 s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


# Parses `30d`, `2026-11-01` and the month `2026-11` into periods. Pure; the time zone is a parameter.

_PERIOD_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_LENGTH = re.compile(r"(\d{1,6})([smhdw])")
_MONTH = re.compile(r"(\d{4})-(\d{2})")


_DEFAULT_SINCE = "30d"


class Period(NamedTuple):
    since_s: int
    until_s: int


def parse_period(since: str | None, of_month: str | None, now_s: float, zone: tzinfo | None) -> tuple[str, Period]:
    """The period as it was given, and what it is: a month, or from an age or date until now. Raises ValueError."""
    if since is not None and of_month is not None:
        raise ValueError("a start and a month exclude each other: give one of them")
    if of_month is not None:
        return of_month, month(of_month, now_s, zone)
    name = since or _DEFAULT_SINCE
    since_s = parse_since(name, now_s, zone)
    return name, Period(since_s, max(since_s, math.ceil(now_s)))


def parse_since(text: str, now_s: float, zone: tzinfo | None) -> int:
    """The Unix time that `text` names: an age or a date. Raises ValueError with one line."""
    if length := _LENGTH.fullmatch(text):
        return int(now_s) - int(length[1]) * _PERIOD_UNITS_S[length[2]]
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"invalid period '{text}': use 30d, 12h or a date") from None
    since_s = int((when if when.tzinfo else _localise(when, zone)).timestamp())
    if since_s > now_s:
        raise ValueError(f"'{text}' is in the future: use 30d, 12h or an earlier date")
    return since_s


def month(text: str, now_s: float, zone: tzinfo | None) -> Period:
    """A calendar month in local time. The current month ends now."""
    match = _MONTH.fullmatch(text)
    if not match or not 1 <= int(match[2]) <= 12 or int(match[1]) < 1970:
        raise ValueError(f"invalid month '{text}': use YYYY-MM, such as 2026-11")
    year, number = int(match[1]), int(match[2])
    first = _localise(datetime(year, number, 1), zone)
    after = _localise(datetime(year + number // 12, number % 12 + 1, 1), zone)
    since_s = int(first.timestamp())
    if since_s > now_s:
        raise ValueError(f"month '{text}' has not begun: use an earlier one")
    return Period(since_s, max(since_s, min(int(after.timestamp()), int(now_s))))


def last_months(count: int, now_s: float) -> list[str]:
    """In local time: the names of this month and of those before it, the earliest first."""
    now = datetime.fromtimestamp(now_s)
    end = 12 * now.year + now.month
    return [f"{number // 12}-{number % 12 + 1:02}" for number in range(end - count, end)]


def _localise(when: datetime, zone: tzinfo | None) -> datetime:
    """In the given zone; without one, in the machine's."""
    return when.replace(tzinfo=zone) if zone else when.astimezone()
