"""Rules in which time runs faster: every duration is divided, so that half an hour passes in a test."""

import re

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?P<before>for: |interval: |offset |\[)(?P<number>\d+)(?P<unit>[smhd])\b")
# A rate takes at least two scrapes, whatever the factor.
_LEAST_MS = 2500


def time_lapse(rules: str, factor: float) -> str:
    def shorter(found: re.Match[str]) -> str:
        milliseconds = round(int(found["number"]) * _UNITS_S[found["unit"]] / factor * 1000)
        if found["before"] in ("[", "interval: ", "offset "):
            milliseconds = max(milliseconds, _LEAST_MS)
        return f"{found['before']}{milliseconds}ms"

    return _DURATION.sub(shorter, rules)
