"""How often each dialect was served alone, how many bytes that were, and how long it took. Pure: no clock of its own.

Quantiles are of the last minute and of the last 1024 responses at most.
"""

from collections import defaultdict, deque
from collections.abc import Mapping

from gpucommons.model.agent import NO_SCRAPES, ScrapeReading

_WINDOW_S = 60.0
_MAX_KEPT = 1024


class ScrapeMeter:
    def __init__(self) -> None:
        self._count = 0
        self._body_bytes = 0
        self._sum_s = 0.0
        self._recent: deque[tuple[float, float]] = deque(maxlen=_MAX_KEPT)

    def record(self, now_s: float, took_s: float, body_bytes: int) -> None:
        self._count += 1
        self._body_bytes += body_bytes
        self._sum_s += took_s
        self._recent.append((now_s, took_s))

    def reading(self, now_s: float) -> ScrapeReading:
        took_s = sorted(took_s for at_s, took_s in self._recent if now_s - at_s <= _WINDOW_S)
        quantiles = tuple(
            (quantile, took_s[min(int(quantile * len(took_s)), len(took_s) - 1)] if took_s else nothing)
            for quantile, nothing in NO_SCRAPES.quantiles_s
        )
        return ScrapeReading(self._count, self._body_bytes, self._sum_s, quantiles)


class ScrapeMeters:
    """One meter for each dialect that was served."""

    def __init__(self) -> None:
        self._meters: defaultdict[str, ScrapeMeter] = defaultdict(ScrapeMeter)

    def record(self, dialect: str, now_s: float, took_s: float, body_bytes: int) -> None:
        self._meters[dialect].record(now_s, took_s, body_bytes)

    def readings(self, now_s: float) -> Mapping[str, ScrapeReading]:
        return {dialect: meter.reading(now_s) for dialect, meter in self._meters.items()}
