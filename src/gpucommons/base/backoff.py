"""How long to wait before the next try: doubling up to a limit."""

import random


class Backoff:
    """Each wait is up to `jitter` of it shorter, at random, so that the nodes of a fleet do not retry in step."""

    def __init__(self, first_s: float = 1.0, max_s: float = 30.0, jitter: float = 0.5) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._jitter = jitter
        self._limit_s = first_s

    def next_s(self) -> float:
        limit_s = self._limit_s
        self._limit_s = min(2 * limit_s, self._max_s)
        return limit_s * (1 - self._jitter * random.random())

    def reset(self) -> None:
        """Call after a success: the next wait is the first again."""
        self._limit_s = self._first_s


class RetrySchedule:
    """When the next try is due, for callers that pass the time in. No jitter."""

    def __init__(self, first_s: float, max_s: float) -> None:
        self._backoff = Backoff(first_s, max_s, jitter=0.0)
        self._due_s: float | None = None

    @property
    def waiting(self) -> bool:
        return self._due_s is not None

    def is_due(self, now_s: float) -> bool:
        return self._due_s is None or now_s >= self._due_s

    def postpone(self, now_s: float) -> float:
        """Call after a failure. Returns the seconds until the next try."""
        delay_s = self._backoff.next_s()
        self._due_s = now_s + delay_s
        return delay_s

    def reset(self) -> None:
        self._due_s = None
        self._backoff.reset()
