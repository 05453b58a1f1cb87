"""Utilisation samples of processes: which are plausible, and the newest of each process. Pure.

The driver keeps a buffer of time-stamped samples and returns those after a given time. Samples from the future, from
long ago, or above 100 % are dropped, and their time stamps are ignored.

On a GPU that several processes use, the driver has no sample of a process for a time in which it was idle. So a process
whose newest sample is older than that of another one, by more than the time between two samples, has been idle since.
"""

STALE_AFTER_US = 5_000_000
FUTURE_AFTER_US = 2_000_000
# Samples of a busy process are 0.2 to 0.8 s apart (H200, driver 580).
IDLE_AFTER_US = 1_500_000


# A plain tuple: there may be one for each process on each GPU, each second.
# time in microseconds; SM, memory, encoder and decoder time in percent
ProcessSample = tuple[int, int, int, int, int]


def reason_to_drop(sample: ProcessSample, now_us: int, stale_after_us: int) -> str | None:
    """Why this sample cannot be right, or None."""
    time_us, sm, memory, encoder, decoder = sample
    if time_us > now_us + FUTURE_AFTER_US:
        return "future"
    if time_us < now_us - stale_after_us:
        return "stale"
    if sm > 100 or memory > 100 or encoder > 100 or decoder > 100:
        return "above_100"
    return None


class UsageWindow:
    """The newest samples of the processes of one GPU, and the time from which to request more."""

    def __init__(self) -> None:
        self._newest: dict[int, ProcessSample] = {}
        # Equal samples of a pass are one object: most processes on a GPU are idle at the same time.
        self._shared: dict[ProcessSample, ProcessSample] = {}
        self._last_seen_us = 0
        self._asked_us = 0
        self._stale_after_us = STALE_AFTER_US

    def request_since(self, now_us: int) -> int:
        """The time after which to request samples. A clock that was set back clears the window."""
        self._shared.clear()
        if self._asked_us:
            # In the slow lane, where it is requested every 15 s, a sample stays the newest for longer.
            self._stale_after_us = max(STALE_AFTER_US, 2 * (now_us - self._asked_us))
        self._asked_us = now_us
        if self._last_seen_us > now_us + FUTURE_AFTER_US:
            self._last_seen_us = 0
            self._newest.clear()
        return max(self._last_seen_us, now_us - self._stale_after_us)

    def add(self, pid: int, sample: ProcessSample, now_us: int) -> str | None:
        """Add a sample, or return the reason why it was dropped."""
        reason = reason_to_drop(sample, now_us, self._stale_after_us)
        if reason is None:
            time_us = sample[0]
            known = self._newest.get(pid)
            if known is None or time_us >= known[0]:
                self._newest[pid] = self._shared.setdefault(sample, sample)
            if time_us > self._last_seen_us:
                self._last_seen_us = time_us
        return reason

    def current(self, now_us: int) -> dict[int, ProcessSample]:
        """The newest sample of each process, if it is fresh; zeros for one that has been idle since."""
        oldest_us = now_us - self._stale_after_us
        if any(sample[0] < oldest_us for sample in self._newest.values()):
            self._newest = {pid: sample for pid, sample in self._newest.items() if sample[0] >= oldest_us}
        idle_us = self._last_seen_us - IDLE_AFTER_US
        for pid, sample in self._newest.items():
            if sample[0] < idle_us and any(sample[1:]):
                self._newest[pid] = (sample[0], 0, 0, 0, 0)
        return self._newest

    def clear(self) -> None:
        self._newest.clear()
