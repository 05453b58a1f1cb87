"""The recent revocations of each process, so that a client cannot end its record by connecting again. Pure."""

from collections.abc import Hashable
from typing import Final

# How long a revocation is remembered.
REMEMBERED_S: Final = 600.0
_MOST_PROCESSES: Final = 10_000


class Revocations:
    """By process, or by client where the process is not known."""

    def __init__(self) -> None:
        # The times of the revocations. In the order of the latest one: the first entry expires first.
        self._times: dict[Hashable, list[float]] = {}

    def add(self, key: Hashable, now: float) -> int:
        """Records a revocation; returns how many are remembered of this key."""
        recent = [*self._recent(key, now), now]
        self._times.pop(key, None)
        self._times[key] = recent
        while len(self._times) > _MOST_PROCESSES or self._times[next(iter(self._times))][-1] < now - REMEMBERED_S:
            del self._times[next(iter(self._times))]
        return len(recent)

    def count(self, key: Hashable, now: float) -> int:
        return len(self._recent(key, now))

    def _recent(self, key: Hashable, now: float) -> list[float]:
        return [time_s for time_s in self._times.get(key, ()) if time_s >= now - REMEMBERED_S]
