"""Programs that cannot be paused: after three failures in a row a program is left alone for a minute. No I/O."""

from dataclasses import dataclass, field
from typing import Final

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser.backend import Code

LIMIT: Final = 3
LEFT_ALONE_S: Final = 60.0
# Failures that say nothing about the program: it has ended, or the pauser is at fault.
_NOT_ITS_OWN: Final = frozenset(
    {Code.GONE, Code.RECORD, Code.UNAVAILABLE, Code.NOT_PAUSED, Code.BUSY, Code.RESTING, Code.LEFT_ALONE}
)


@dataclass(slots=True)
class Refusals:
    limit: int = LIMIT
    left_alone_s: float = LEFT_ALONE_S
    # Failures in a row, and until when they count.
    _failures: dict[ProcessKey, tuple[int, float]] = field(default_factory=dict)
    _until_s: dict[ProcessKey, float] = field(default_factory=dict)

    def paused(self, process: ProcessKey) -> None:
        self._failures.pop(process, None)

    def failed(self, process: ProcessKey, code: int, now_s: float) -> None:
        self._prune(now_s)
        if code in _NOT_ITS_OWN:
            return
        count = self._failures.pop(process, (0, 0.0))[0] + 1
        if count < self.limit:
            self._failures[process] = (count, now_s + self.left_alone_s)
        else:
            self._until_s[process] = now_s + self.left_alone_s

    def remaining_s(self, process: ProcessKey, now_s: float) -> float:
        """How long the program is still left alone; 0 where it may be paused."""
        return max(0.0, self._until_s.get(process, 0.0) - now_s)

    def _prune(self, now_s: float) -> None:
        """Programs end without notice: what is older than a minute is forgotten."""
        self._failures = {process: row for process, row in self._failures.items() if row[1] > now_s}
        self._until_s = {process: until_s for process, until_s in self._until_s.items() if until_s > now_s}
