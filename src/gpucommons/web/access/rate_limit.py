"""A token bucket: one request per `interval_s`, and up to `burst` at once. Pure: the caller passes the time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RateLimit:
    interval_s: float
    burst: int


class TokenBucket:
    def __init__(self, limit: RateLimit, now_s: float) -> None:
        self._limit = limit
        self._tokens = float(limit.burst)
        self._filled_s = now_s

    def take(self, now_s: float) -> bool:
        """Whether one more request may pass now."""
        elapsed_s = max(0.0, now_s - self._filled_s)
        self._tokens = min(float(self._limit.burst), self._tokens + elapsed_s / self._limit.interval_s)
        self._filled_s = now_s
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
