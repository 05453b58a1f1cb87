"""What the agent counts of its pauser, and which programs it leaves alone because they cannot be paused."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from gpucommons.model.process_identity import ProcessKey
from gpucommons.model.sharing import PAUSE_BUCKETS, Histogram, PauserReading
from gpucommons.pauser.backend import Code, Failure

# What the agent counts of its pauser.


@dataclass(slots=True)
class Counters:
    """`failures` is by (operation, code); a lock that timed out is in both `timeouts` and `failures`.

    `hold_backs` are times in which programs were held back for another one, `held_back_s` how long they lasted in all.

    `forced` are programs that the pauser resumed on its own, `restarts` are pausers after the first. `longest_pause_s`
    is of the pauses for turns that have ended. A pause ends when that is known: not when the pauser is lost. A lock
    that was not answered counts as a pause from when it was asked for.
    """

    locks: int = 0
    unlocks: int = 0
    timeouts: int = 0
    forced: int = 0
    restarts: int = 0
    longest_pause_s: float = 0.0
    hold_backs: int = 0
    held_back_s: float = 0.0
    failures: Counter[tuple[str, int]] = field(default_factory=Counter)
    lock_seconds: Histogram = field(default_factory=lambda: Histogram(PAUSE_BUCKETS))
    unlock_seconds: Histogram = field(default_factory=lambda: Histogram(PAUSE_BUCKETS))
    _asked_s: dict[ProcessKey, float] = field(default_factory=dict)
    _paused_since_s: dict[ProcessKey, float] = field(default_factory=dict)

    def record_request(self, process: ProcessKey, now_s: float) -> None:
        """Its lock is asked for: it may be paused from now on."""
        self._asked_s[process] = now_s

    def record_no_lock(self, process: ProcessKey, *, may_be_paused: bool) -> None:
        """Its lock failed, or was not answered."""
        asked_s = self._asked_s.pop(process, None)
        if may_be_paused and asked_s is not None:
            self._paused_since_s.setdefault(process, asked_s)

    def record_pause(self, process: ProcessKey, now_s: float) -> None:
        self._asked_s.pop(process, None)
        self._paused_since_s[process] = now_s

    def record_resume(self, process: ProcessKey, now_s: float) -> None:
        since_s = self._paused_since_s.pop(process, self._asked_s.pop(process, None))
        if since_s is not None:
            self.longest_pause_s = max(self.longest_pause_s, now_s - since_s)

    def not_for_a_turn(self, process: ProcessKey) -> None:
        """It is parked, or paused for as long as a lease lasts."""
        self._asked_s.pop(process, None)
        self._paused_since_s.pop(process, None)

    def record_all_resumed(self, now_s: float) -> None:
        for process in [*self._paused_since_s, *self._asked_s]:
            self.record_resume(process, now_s)

    @property
    def paused_now(self) -> int:
        """Those that may be are counted, too."""
        return len(self._paused_since_s.keys() | self._asked_s.keys())

    def reading(self, available: bool, now_s: float) -> PauserReading:
        """A pause that goes on counts as long as it has lasted."""
        failures: Counter[tuple[str, str]] = Counter()
        for (operation, code), count in self.failures.items():
            failures[operation, _reason(code)] += count
        return PauserReading(
            available,
            self.locks,
            self.unlocks,
            self.timeouts,
            self.forced,
            self.restarts,
            failures,
            max([self.longest_pause_s, *(now_s - since_s for since_s in self._paused_since_s.values())]),
            self.lock_seconds.reading(),
            self.unlock_seconds.reading(),
            self.hold_backs,
            self.held_back_s,
        )


def _reason(code: int) -> str:
    """One word for metrics; what the driver may report besides is its number."""
    try:
        return Code(code).name.lower()
    except ValueError:
        return f"cuda_{code}"


# Programs that cannot be paused: after three failures in a row a program is left alone for a minute. No I/O.

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

    def forget_failures(self, process: ProcessKey) -> None:
        self._failures.pop(process, None)

    def record_failure(self, process: ProcessKey, failure: Failure, now_s: float) -> None:
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
