"""Waits for a condition that has no event, with growing pauses; a timeout names the condition. And what a busy machine
adds to such a wait."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

T = TypeVar("T")

# The scheduler measures programs about once a minute. Where a busy machine spoils a measurement, the next one decides.
WITHIN_S: Final = 150.0

_NAP_S: Final = 0.01
_WORK_S: Final = 0.002


def until(ask: Callable[[], T | None], what: str = "the condition holds", within_s: float = WITHIN_S) -> T:
    """The first result that is true."""
    deadline, pause_s = time.monotonic() + within_s, 0.002
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}; last: {answer!r}"
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.3, 0.2)
    return answer


def until_removed(cgroup: Path) -> None:
    """Removes the cgroup once its last process has ended."""

    def is_removed() -> bool:
        try:
            cgroup.rmdir()
        except OSError:
            return False
        return True

    until(is_removed, f"{cgroup} is empty")


class LoadMeter:
    """What a busy machine adds to a wait: a thread naps and works for some milliseconds, again and again, and sees by
    how much that takes longer than on an idle machine."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self._worked_s = 0.0
        self._lost_s = 0.0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._begun_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun_s

    def delay_s(self, cpu_s: float) -> float:
        """By how much work of so much CPU time was delayed, in pieces of 2 ms with a nap before each."""
        return cpu_s * self._lost_s / self._worked_s if self._worked_s else 0.0

    def _measure(self) -> None:
        while not self._ends.is_set():
            begun_s, used_s = time.monotonic(), time.thread_time()
            time.sleep(_NAP_S)
            while time.thread_time() - used_s < _WORK_S:
                pass
            used_s = time.thread_time() - used_s
            self._worked_s += used_s
            self._lost_s += max(0.0, time.monotonic() - begun_s - _NAP_S - used_s)
