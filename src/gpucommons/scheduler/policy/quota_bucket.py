"""A core quota as a token bucket: when it is spent, and when it is refilled. Pure arithmetic on seconds."""

from typing import Final

from gpucommons.config.scheduler import SchedulerSettings

# Deadlines are floats: one that is this close counts as reached, or it could repeat for ever.
EPSILON_S: Final = 1e-6
# How much a client may save while it waits for other clients: enough to make up for their turns, not
# enough to hold the GPU for minutes once they leave.
_LONGEST_SAVING_S: Final = 30.0
# Shorter slices spread the share more evenly over a window; two keep switches rare and the error small.
_SLICES_PER_WINDOW: Final = 2
_TAIL_SMOOTHING: Final = 0.5


class QuotaBucket:
    """A core quota as a token bucket that keeps debt in full.

    The balance (seconds of GPU time) fills at `rate` and is spent by the bill of the turns. It swings evenly
    around zero: a turn ends at about -band and the next may begin at +band, so the share over a long time is
    the rate. The tail between DROP_LOCK and the release is predicted from earlier tails and billed in full: a
    client that drains slowly is dropped earlier, and does not get more.
    """

    __slots__ = (
        "_carryover_s",
        "_sample_interval_s",
        "_window_s",
        "balance_s",
        "borrowing",
        "rate",
        "settled_s",
        "tail_s",
        "throttled",
    )

    def __init__(self, limit_percent: int, settings: SchedulerSettings, now_s: float) -> None:
        self.rate = limit_percent / 100
        self._window_s = settings.compute_window_ms / 1000
        self._sample_interval_s = settings.quota_sample_interval_ms / 1000
        # What a whole window's quota may leave for the next, at a rate of 1.
        self._carryover_s = self._window_s * settings.quota_carryover_percent / 100
        self.balance_s = 0.0
        self.settled_s = now_s
        self.tail_s = 0.0
        self.throttled = False
        self.borrowing = False

    @property
    def band_s(self) -> float:
        slice_s = self.rate * self._window_s / _SLICES_PER_WINDOW
        return max(slice_s, self._sample_interval_s + self.tail_s) * (1.0 - self.rate) / 2

    def settle_running(self, now_s: float, spent_s: float) -> None:
        """Updates the balance of a client that runs. Borrowed time is free: no other client requested it."""
        if self.borrowing:
            self.settled_s = now_s
        else:
            self.settle_waiting(now_s, spent_s)

    def settle_waiting(self, now_s: float, spent_s: float) -> None:
        saved = self.balance_s + self.rate * (now_s - self.settled_s) - spent_s
        self.balance_s = min(saved, self.rate * _LONGEST_SAVING_S + self.band_s)
        self.settled_s = now_s

    def settle_idle(self, now_s: float) -> None:
        """Updates the balance of a client that requested nothing: it keeps little of the share that it did not use."""
        idle_s = now_s - self.settled_s
        keep = max(self.band_s, self.rate * self._carryover_s)
        if self.balance_s < keep:
            self.balance_s = min(keep, self.balance_s + self.rate * idle_s)
        elif idle_s > self._window_s:
            self.balance_s = keep
        self.settled_s = now_s

    def spent_after_s(self, running: int) -> float | None:
        """How long the turn may last from now until it is dropped; None: without limit, or while it borrows."""
        if self.borrowing:
            return None
        drain = 1.0 / running - self.rate
        if drain <= 0.0:
            return None
        return (self.balance_s + self.band_s) / drain - self.tail_s

    def refilled_s(self) -> float:
        """When the next turn may begin, if the client continues to wait."""
        return self.settled_s + max(0.0, self.band_s - self.balance_s) / self.rate

    def is_over(self) -> bool:
        """Whether a request must wait for a refill, however the last turn ended."""
        return self.balance_s <= -self.band_s + EPSILON_S

    def learn_tail(self, tail_s: float) -> None:
        """The first tail is taken as is, later ones are smoothed."""
        before_s = self.tail_s or tail_s
        self.tail_s = before_s + _TAIL_SMOOTHING * (tail_s - before_s)
