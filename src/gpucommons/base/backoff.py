"""How long to wait before the next try: doubling, with jitter, so that a fleet does not knock in step."""

import random
from collections.abc import Callable


class Backoff:
    """Each wait lies between half of a doubling limit and the whole of it."""

    def __init__(
        self,
        first_s: float = 1.0,
        most_s: float = 30.0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._uniform = uniform
        self._limit_s = first_s

    def next_s(self) -> float:
        limit_s = self._limit_s
        self._limit_s = min(2 * limit_s, self._most_s)
        return self._uniform(limit_s / 2, limit_s)

    def reset(self) -> None:
        """It worked: the next failure is a first one again."""
        self._limit_s = self._first_s
