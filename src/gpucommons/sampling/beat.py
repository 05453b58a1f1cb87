"""Ticks on a fixed grid of time, so that sources with the same cadence stay in step and nothing drifts.

Timers sometimes fire slightly early; within the slack that counts as on time, not as an additional tick.
"""

import math

_SLACK_RATIO = 0.05


def next_beat(now_s: float, period_s: float) -> float:
    return (math.floor(now_s / period_s + _SLACK_RATIO) + 1) * period_s


def on_beat(now_s: float, due_s: float, period_s: float) -> bool:
    return now_s >= due_s - _SLACK_RATIO * period_s
