"""Durations as people write and read them: `90s`, `30m`, `2h`, `1h30m`, `3d`. Pure."""

import re
from typing import Final

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
