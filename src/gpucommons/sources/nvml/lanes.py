"""Which calls run every second and which every 15 seconds, by their cost on this machine. Pure.

A call moves to the slow lane if the median of its last five durations exceeds the budget of the fast lane. It moves
back after five in a row below half of the budget, so that a call near the budget does not oscillate and a single
slow call has no effect. A call that the scheduler depends on stays in the fast lane at any cost.
"""

from enum import StrEnum

from gpucommons.model.gpu import LaneMove

FAST_BUDGET_S = 0.0025
FAST_EVERY_S = 1.0
SLOW_EVERY_S = 15.0

_WINDOW = 5
_MASK = (1 << _WINDOW) - 1
_MAJORITY = _WINDOW // 2 + 1


class Lane(StrEnum):
    FAST = "fast"
    SLOW = "slow"


def remember(history: int, hit: bool) -> int:
    """The last five results as bits, the newest lowest. The median exceeds a limit if three of them do."""
    return (history << 1 | hit) & _MASK


def is_costly(history: int) -> bool:
    return history.bit_count() >= _MAJORITY


def is_cheap_again(history: int) -> bool:
    return history == _MASK


class LaneTable:
    """The lane of each call. Kept for the life of the agent: a new session does not have to learn it again."""

    def __init__(self) -> None:
        self.moves: dict[LaneMove, int] = {}
        self._slow: set[tuple[str, str]] = set()

    def lane(self, uuid: str, call: str, home: Lane) -> Lane:
        return Lane.SLOW if (uuid, call) in self._slow else home

    def move(self, uuid: str, call: str, to: Lane) -> None:
        (self._slow.add if to is Lane.SLOW else self._slow.discard)((uuid, call))
        move = LaneMove(uuid, call, to.value)
        self.moves[move] = self.moves.get(move, 0) + 1

    def slow_calls(self) -> tuple[LaneMove, ...]:
        return tuple(LaneMove(uuid, call, Lane.SLOW.value) for uuid, call in sorted(self._slow))

    def forget(self) -> None:
        """Call when the driver has changed: its costs differ."""
        self._slow.clear()
