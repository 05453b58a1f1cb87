"""Programs that cannot be paused: after three failures in a row a program is left alone for a minute. No I/O."""

from dataclasses import dataclass, field
from typing import Final

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import Code, Failure

LIMIT: Final = 3
LEFT_ALONE_S: Final = 60.0
# Failures that say nothing about the program: it has ended or is stopped, or the pauser is at fault.
_NOT_ITS_OWN: Final = frozenset(
    {
        Code.GONE,
        Code.RECORD,
        Code.UNAVAILABLE,
        Code.NOT_PAUSED,
        Code.BUSY,
        Code.RESTING,
        Code.LEFT_ALONE,
        Code.STOPPED,
    }
)


@dataclass(slots=True)
class Refusals:
    limit: int = LIMIT
    left_alone_s: float = LEFT_ALONE_S
    # Failures in a row, and until when they count.
    _failures: dict[ProcessKey, tuple[int, float]] = field(default_factory=dict)
    # Until when a program is left alone, and why its last attempt failed.
    _left: dict[ProcessKey, tuple[float, str]] = field(default_factory=dict)

    def paused(self, process: ProcessKey) -> None:
        self._failures.pop(process, None)

    def failed(self, process: ProcessKey, failure: Failure, now_s: float) -> None:
        self._prune(now_s)
        if failure.code in _NOT_ITS_OWN:
            return
        count = self._failures.pop(process, (0, 0.0))[0] + 1
        if count < self.limit:
            self._failures[process] = (count, now_s + self.left_alone_s)
        else:
            self._left[process] = now_s + self.left_alone_s, failure.meaning

    def remaining_s(self, process: ProcessKey, now_s: float) -> float:
        """How long the program is still left alone; 0 where it may be paused."""
        return max(0.0, self._left.get(process, (0.0, ""))[0] - now_s)

    def reason(self, process: ProcessKey) -> str:
        """Why its last attempt failed; empty where it may be paused."""
        return self._left.get(process, (0.0, ""))[1]

    def _prune(self, now_s: float) -> None:
        """Programs end without notice: what is older than a minute is forgotten."""
        self._failures = {process: row for process, row in self._failures.items() if row[1] > now_s}
        self._left = {process: row for process, row in self._left.items() if row[0] > now_s}
