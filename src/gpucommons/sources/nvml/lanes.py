"""Which calls run each second and which each quarter of a minute, by what they cost here. Pure.

A call whose median of the last five takes longer than the fast lane's budget moves to the slow lane. It
comes back when five in a row there took less than half of the budget: a call that hovers around the budget
does not swing, and one hiccup moves nothing. What somebody decides by stays in the fast lane whatever it costs.
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
    """The last five verdicts as five bits, the newest lowest. The median is over a bound if three are."""
    return (history << 1 | hit) & _MASK


def is_costly(history: int) -> bool:
    return history.bit_count() >= _MAJORITY


def is_cheap_again(history: int) -> bool:
    return history == _MASK


class LaneTable:
    """Who was moved where, for as long as the agent runs: a new session need not learn it again."""

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
        """Another driver: its costs are its own."""
        self._slow.clear()
