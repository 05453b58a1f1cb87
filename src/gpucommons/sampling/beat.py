"""Beats on a fixed grid of time, so that what has one cadence stays in step and nothing drifts.

Timers wake a little early at times; within the slack that counts as on the beat, not as one beat more.
"""

import math

_SLACK_RATIO = 0.05


def next_beat(now_s: float, period_s: float) -> float:
    return (math.floor(now_s / period_s + _SLACK_RATIO) + 1) * period_s


def on_beat(now_s: float, due_s: float, period_s: float) -> bool:
    return now_s >= due_s - _SLACK_RATIO * period_s
