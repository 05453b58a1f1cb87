"""How active a client keeps the GPU when it runs alone, learnt from its own turns. Bad news counts at once."""

from typing import Final, NamedTuple

# A sample this far above what is known is a change, not noise: in ratio, and in points of activity.
_RISE_RATIO: Final = 1.1
_RISE_POINTS: Final = 0.02
# A fall has to last this long before it is believed: a job that stalls for a moment comes back.
_FALL_S: Final = 2.0
_SMOOTHING: Final = 0.3
_FIRST_FRESH_S: Final = 16.0
# Less activity than this is idleness.
IDLE: Final = 0.005


class DeviceActivity(NamedTuple):
    """Shares of time in which the SMs, the tensor pipes and the DRAM interface were active, 0 to 1."""

    sm: float
    tensor: float = 0.0
    dram: float = 0.0

    @property
    def is_idle(self) -> bool:
        return max(self) < IDLE


class SoloActivity:
    """One client's activity. `known` is None until it was measured alone; `version` counts the changes of it."""

    __slots__ = ("_doubted", "_low_since_s", "fresh_s", "known", "measured_s", "version")

    def __init__(self) -> None:
        self.known: DeviceActivity | None = None
        self.measured_s = float("-inf")
        self.version = 0
        # How long a measurement counts: longer with each one that confirms it.
        self.fresh_s = _FIRST_FRESH_S
        self._low_since_s: float | None = None
        self._doubted = False

    def check(self) -> None:
        """What is known is measured once more, and smoothed as usual."""
        self.measured_s = float("-inf")

    def doubt(self) -> None:
        """What is known may no longer hold: the next measurement is believed, whatever it says."""
        self.measured_s = float("-inf")
        self._doubted = True

    def learn(self, sample: DeviceActivity, now_s: float) -> None:
        """A measurement of a time in which this client ran alone, ended at `now_s`."""
        self.measured_s = now_s
        known = self.known
        if known is None or self._doubted or _exceeds(sample, known):
            self._change(sample)
        elif _exceeds(known, sample):
            # It is measured again soon.
            self.fresh_s = _FALL_S
            if self._low_since_s is None:
                self._low_since_s = now_s
            elif now_s - self._low_since_s >= _FALL_S:
                self._change(sample)
        else:
            self._low_since_s = None
            self.fresh_s = max(_FIRST_FRESH_S, 2 * self.fresh_s)
            self.known = DeviceActivity(
                *(old + _SMOOTHING * (new - old) for old, new in zip(known, sample, strict=True))
            )
        if self.known is not None and self.known.is_idle:
            # It requests the GPU: it will hardly stay idle.
            self.fresh_s = _FALL_S

    def _change(self, sample: DeviceActivity) -> None:
        self.known = sample
        self.version += 1
        self.fresh_s = _FIRST_FRESH_S
        self._low_since_s = None
        self._doubted = False


def _exceeds(one: DeviceActivity, other: DeviceActivity) -> bool:
    """Whether one of the activities is higher by more than noise."""
    return any(high > low * _RISE_RATIO + _RISE_POINTS for high, low in zip(one, other, strict=True))
