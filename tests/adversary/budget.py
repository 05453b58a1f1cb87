"""How long an attack goes on: a number of rounds in the tests, a time in `make torture`."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """`dice` is seeded: an attack with the same seed and rounds does the same."""

    dice: random.Random
    rounds: int | None = None
    seconds: float | None = None

    def __iter__(self) -> Iterator[int]:
        """Numbers of rounds until the budget is used up, at least one."""
        began_s, number = time.monotonic(), 0
        while number == 0 or not self._is_used_up(number, time.monotonic() - began_s):
            yield number
            number += 1

    def _is_used_up(self, rounds: int, elapsed_s: float) -> bool:
        if self.rounds is not None:
            return rounds >= self.rounds
        return self.seconds is not None and elapsed_s >= self.seconds
