"""Waits for a condition that has no event, with growing pauses; a timeout names the condition."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(ask: Callable[[], T | None], what: str = "the condition holds", within_s: float = 40) -> T:
    """The first result that is true."""
    deadline, pause_s = time.monotonic() + within_s, 0.002
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}; last: {answer!r}"
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.3, 0.2)
    return answer
