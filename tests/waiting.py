"""Waiting for something that no event tells: looks again, ever more patiently, and says what did not come to be."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(ask: Callable[[], T | None], what: str = "it comes to be", within_s: float = 40) -> T:
    """The first answer that is not false."""
    deadline, pause_s = time.monotonic() + within_s, 0.002
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}; last: {answer!r}"
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.3, 0.2)
    return answer
