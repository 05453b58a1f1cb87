"""When to try again: soon at first, then ever less often. Pure; each method is told the time."""

from dataclasses import dataclass


@dataclass(slots=True)
class RetrySchedule:
    first_s: float
    most_s: float
    _delay_s: float = 0.0
    _due_s: float | None = None

    def postpone(self, now_s: float) -> float:
        """It failed again: the next try is this many seconds away."""
        self._delay_s = min(2 * self._delay_s, self.most_s) if self._delay_s else self.first_s
        self._due_s = now_s + self._delay_s
        return self._delay_s

    def is_due(self, now_s: float) -> bool:
        return self._due_s is None or now_s >= self._due_s

    @property
    def waiting(self) -> bool:
        return self._due_s is not None

    def reset(self) -> None:
        self._delay_s, self._due_s = 0.0, None
