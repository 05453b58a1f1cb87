"""Samples of each GPU's throttle mask over the last hour, for counts within a window. Pure.

Kept for the life of the agent: a new session with the driver does not clear it.
"""

from gpucommons.model.gpu import CLOCK_SAMPLE_EVERY_S, RECENT_S, ClockSample

_MOST_SAMPLES = round(RECENT_S / CLOCK_SAMPLE_EVERY_S)


class ClockHistory:
    def __init__(self) -> None:
        self._samples: dict[str, tuple[ClockSample, ...]] = {}
        self._due_s: dict[str, float] = {}

    def see(self, uuid: str, now_s: float, wall_s: float, mask: float | None) -> tuple[ClockSample, ...]:
        """The samples up to now, including this mask if a sample is due. `now_s` is monotonic."""
        samples = self._samples.get(uuid, ())
        if mask is None or now_s < self._due_s.get(uuid, now_s):
            return samples
        self._due_s[uuid] = now_s + CLOCK_SAMPLE_EVERY_S
        samples = self._samples[uuid] = (*samples[-_MOST_SAMPLES + 1 :], ClockSample(wall_s, int(mask)))
        return samples
