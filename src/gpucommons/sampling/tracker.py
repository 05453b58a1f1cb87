"""The state of one source as a pure state machine: outcomes in, SourceState and the next due time out.

Holds all rules about when a source is read, timed out and retried. The time is passed to each method.
"""

from dataclasses import dataclass, field, replace

from gpucommons.base.backoff import Backoff
from gpucommons.model.source_state import SourceState
from gpucommons.sampling.beat import next_beat, on_beat
from gpucommons.sources.source import Source, SourceAbsent, SourceError, SourceStarting

_LONG_DETAIL = 300


@dataclass(slots=True)
class SourceTracker:
    source: Source
    state: SourceState = field(init=False)
    value: object = None
    due_s: float = 0.0
    started_s: float | None = None
    _timed_out: bool = False
    # What is absent is tried again, less and less often: a driver may be installed while the agent runs.
    _absent_backoff: Backoff = field(default_factory=lambda: Backoff(5.0, 60.0, jitter=0.0))

    def __post_init__(self) -> None:
        source = self.source
        self.state = SourceState(
            source.name,
            essential=source.essential,
            detail="not read yet",
            stale_after_s=max(3 * source.cadence_s, source.cadence_s + self.deadline_s),
        )

    @property
    def deadline_s(self) -> float:
        return max(self.source.deadline_s, self.source.cadence_s)

    @property
    def in_flight(self) -> bool:
        return self.started_s is not None

    def is_due(self, now_s: float) -> bool:
        return not self.in_flight and on_beat(now_s, self.due_s, self.source.cadence_s)

    def start(self, now_s: float) -> None:
        self.started_s, self._timed_out = now_s, False
        self.due_s = next_beat(now_s, self.source.cadence_s)

    def check_deadline(self, now_s: float) -> bool:
        """Drop the reading of a source whose read takes too long. True if the deadline has just passed."""
        if self.started_s is None or self._timed_out or now_s - self.started_s < self.deadline_s:
            return False
        self._timed_out = True
        detail = f"no answer within {self.deadline_s:g} s; still waiting"
        self._fail("timeout", detail, now_s - self.started_s)
        return True

    def finish(self, outcome: object, now_s: float, wall_s: float) -> None:
        """Take the outcome of a read: a value, or the exception that it raised."""
        duration_s = now_s - (now_s if self.started_s is None else self.started_s)
        late, self.started_s = self._timed_out, None
        self._timed_out = False
        if isinstance(outcome, SourceAbsent):
            self._absent(outcome, duration_s, now_s)
        elif isinstance(outcome, SourceStarting):
            self.value = None
            self.state = replace(self.state, up=False, absent=False, duration_s=duration_s, detail=str(outcome))
        elif isinstance(outcome, SourceError):
            self._fail(outcome.reason, str(outcome), duration_s)
        elif isinstance(outcome, BaseException):
            self._fail(type(outcome).__name__, str(outcome) or type(outcome).__name__, duration_s)
        elif not isinstance(outcome, self.source.produces):
            self._fail("garbage", f"returned {type(outcome).__name__}", duration_s)
        elif late:
            # The value is as old as the read that hung: read again now.
            self.due_s = now_s
        else:
            self._succeed(outcome, duration_s, now_s, wall_s)

    def _succeed(self, value: object, duration_s: float, now_s: float, wall_s: float) -> None:
        self.value = value
        self._absent_backoff.reset()
        self.state = replace(
            self.state,
            up=True,
            absent=False,
            duration_s=duration_s,
            last_success_monotonic_s=now_s,
            last_success_wall_s=wall_s,
            detail="",
            remedy="",
        )

    def _absent(self, error: SourceAbsent, duration_s: float, now_s: float) -> None:
        self.value = None
        self.due_s = now_s + self._absent_backoff.next_s()
        self.state = replace(
            self.state, up=False, absent=True, duration_s=duration_s, detail=str(error), remedy=error.remedy
        )

    def _fail(self, reason: str, detail: str, duration_s: float) -> None:
        self.value = None
        failures = {**self.state.failures, reason: self.state.failures.get(reason, 0) + 1}
        self.state = replace(
            self.state,
            up=False,
            absent=False,
            duration_s=duration_s,
            failures=failures,
            detail=detail[:_LONG_DETAIL],
            remedy="",
        )
