"""When programs are held back, by a clock of the test: which work counts, for how long, and which calls are made."""

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from gpucommons.model.process_identity import ProcessKey
from gpucommons.pauser import holdback
from gpucommons.pauser.holdback import BUCKET_S, LINGER_S, LONGEST_S, POLL_S, HoldBack
from waiting import until

GROUP = "gpu0/latency"
GUARD, OTHER, THIRD = ProcessKey(1, 1), ProcessKey(2, 1), ProcessKey(3, 1)
PROGRAM, SECOND = ProcessKey(11, 1), ProcessKey(12, 1)
# For differences of the clock.
NEARLY_S = 2 * POLL_S


class Held:
    """`calls` are those that hold a program and let it go, `reports` when which guard began (with None) and ended, with
    the seconds."""

    def __init__(self) -> None:
        self.now_s = time.monotonic()
        self.calls: list[tuple[str, ProcessKey]] = []
        self.reports: list[tuple[float, ProcessKey, float | None]] = []
        self.again_s: float | None = None
        self.may_return = threading.Event()
        self.may_return.set()
        # A process that has worked for hours.
        self._cpu_s: dict[int, float] = {}
        self.back = HoldBack(self._hold, self._let_go, self._report, lambda pid: self._cpu_s.get(pid))

    def _hold(self, process: ProcessKey) -> float | None:
        self.calls.append(("hold", process))
        assert self.may_return.wait(30)
        return self.again_s

    def _let_go(self, process: ProcessKey) -> None:
        self.calls.append(("let go", process))

    def _report(self, guard: ProcessKey, begins: bool, seconds: float) -> None:
        self.reports.append((self.now_s, guard, None if begins else seconds))

    def look(self, *works: ProcessKey, after_s: float = POLL_S, cores: float = 1.0) -> None:
        self.now_s += after_s
        for process in (GUARD, OTHER, THIRD):
            before_s = self._cpu_s.get(process.pid, 9999.0)
            self._cpu_s[process.pid] = before_s + (cores * after_s if process in works else 0.0)
        self.back.look(self.now_s)

    def look_for(self, seconds: float, *works: ProcessKey) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.look(*works)

    def ends(self, guard: ProcessKey) -> None:
        del self._cpu_s[guard.pid]
        self.now_s += POLL_S
        self.back.look(self.now_s)

    def settled(self) -> list[tuple[str, ProcessKey]]:
        """The calls, when all have returned."""
        until(lambda: not self.back._calls._under_way, "the calls have returned")
        return self.calls


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    made.back.guard(GUARD, GROUP, 1.0)
    made.back.yield_to(PROGRAM, GROUP)
    made.look()
    yield made
    made.may_return.set()


@pytest.mark.parametrize(("cores", "is_work"), [(0.2, False), (0.3, True), (8.0, True)])
def test_a_quarter_of_a_core_is_work(held: Held, cores: float, is_work: bool) -> None:
    held.look(GUARD, cores=cores)
    assert bool(held.reports) is is_work
    assert bool(held.settled()) is is_work


def test_what_a_process_did_before_the_first_look_is_not_work(held: Held) -> None:
    """And one that has ended does not work."""
    held.back.guard(OTHER, GROUP, 1.0)
    held.look()
    held.ends(GUARD)
    assert held.settled() == []


def test_a_program_is_held_once_and_let_go_a_moment_after_the_work(held: Held) -> None:
    held.look_for(0.1, GUARD)
    assert held.settled() == [("hold", PROGRAM)]
    held.look_for(LINGER_S / 2)
    assert held.settled() == [("hold", PROGRAM)]
    held.look_for(0.1)
    assert held.settled() == [("hold", PROGRAM), ("let go", PROGRAM)]
    (began_s, _, nothing), (ended_s, guard, seconds) = held.reports
    assert nothing is None
    assert guard == GUARD
    assert seconds == pytest.approx(ended_s - began_s)
    assert seconds == pytest.approx(0.1 + LINGER_S, abs=NEARLY_S)
    held.look_for(0.1, GUARD)
    assert held.settled() == [("hold", PROGRAM), ("let go", PROGRAM), ("hold", PROGRAM)]


def test_after_the_longest_pause_others_run_for_a_moment(held: Held) -> None:
    held.look_for(3 * LONGEST_S, GUARD)
    began = [at_s for at_s, _, seconds in held.reports if seconds is None]
    ended = [at_s for at_s, _, seconds in held.reports if seconds is not None]
    assert len(ended) == 2
    for begin_s, end_s, next_s in zip(began[:2], ended, began[1:], strict=True):
        assert end_s - begin_s == pytest.approx(LONGEST_S, abs=NEARLY_S)
        assert next_s - end_s == pytest.approx(holdback._REST_S, abs=NEARLY_S)


def test_a_guard_without_a_share_has_what_is_in_its_bucket(held: Held) -> None:
    held.back.guard(GUARD, GROUP, 0.0)
    held.look_for(10.0, GUARD)
    assert sum(seconds or 0.0 for _, _, seconds in held.reports) == pytest.approx(BUCKET_S, abs=holdback._LEAST_S)
    # Its share may change: then it has more.
    number = len(held.reports)
    held.back.guard(GUARD, GROUP, 0.5)
    held.look_for(1.0, GUARD)
    assert len(held.reports) > number


def test_no_pause_begins_that_would_end_at_once(held: Held) -> None:
    held.back.guard(GUARD, GROUP, 0.2)
    held.look_for(30.0, GUARD)
    assert min(seconds for _, _, seconds in held.reports if seconds is not None) >= holdback._LEAST_S


def test_one_that_is_named_again_goes_on(held: Held) -> None:
    held.look_for(0.1, GUARD)
    held.back.guard(GUARD, GROUP, 1.0)
    held.back.yield_to(PROGRAM, GROUP)
    held.look_for(0.1, GUARD)
    assert len(held.reports) == 1
    assert held.settled() == [("hold", PROGRAM)]


@pytest.mark.parametrize("works", [GUARD, OTHER])
def test_one_guard_of_several_that_works_is_enough(held: Held, works: ProcessKey) -> None:
    held.back.guard(OTHER, GROUP, 1.0)
    held.look()
    held.look_for(0.1, works)
    assert held.settled() == [("hold", PROGRAM)]
    assert [guard for _, guard, _ in held.reports] == [works]


def test_a_guard_to_which_nothing_yields_holds_nothing_back(held: Held) -> None:
    held.back.guard(OTHER, "gpu1/latency", 1.0)
    held.look()
    held.look_for(0.1, OTHER)
    assert held.reports == []


def test_programs_of_a_group_are_bounded(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdback, "MAX_NAMED", 2)
    assert held.back.guard(OTHER, GROUP, 1.0)
    assert not held.back.guard(THIRD, GROUP, 1.0)
    assert held.back.guard(OTHER, GROUP, 1.0)
    assert held.back.yield_to(SECOND, GROUP)
    assert not held.back.yield_to(THIRD, GROUP)
    assert held.back.yield_to(SECOND, GROUP)
    held.look()
    held.look_for(0.1, THIRD)
    assert held.settled() == []
    held.look_for(0.1, OTHER)
    assert sorted(held.settled()) == [("hold", PROGRAM), ("hold", SECOND)]


def test_a_program_that_leaves_is_let_go_and_the_others_stay(held: Held) -> None:
    held.back.yield_to(SECOND, GROUP)
    held.look_for(0.1, GUARD)
    held.settled()
    held.back.leave(PROGRAM)
    assert held.settled()[2:] == [("let go", PROGRAM)]
    held.look_for(0.1, GUARD)
    assert held.settled()[3:] == []
    held.back.leave(GUARD)
    held.look()
    assert held.settled()[3:] == [("let go", SECOND)]
    # It still yields to those that come.
    held.back.guard(OTHER, GROUP, 1.0)
    held.look()
    held.look(OTHER)
    assert held.settled()[4:] == [("hold", SECOND)]
    held.back.leave(SECOND)
    assert held.settled()[5:] == [("let go", SECOND)]
    held.back.yield_to(PROGRAM, GROUP)
    held.look(OTHER)
    assert held.settled()[6:] == [("hold", PROGRAM)]
    held.back.leave(PROGRAM)
    held.back.leave(OTHER)
    held.back.leave(THIRD)
    assert held.back._groups == {}


def test_one_that_could_not_be_held_is_tried_again_when_its_time_has_come(held: Held) -> None:
    held.again_s = 60.0
    held.look(GUARD)
    assert held.settled() == [("hold", PROGRAM)]
    held.look_for(1.0, GUARD)
    assert held.settled() == [("hold", PROGRAM)]
    # It was not held.
    held.look_for(1.0)
    assert held.settled() == [("hold", PROGRAM)]
    held.look(after_s=60.0)
    held.look(GUARD)
    assert held.settled() == [("hold", PROGRAM)] * 2


def test_no_program_has_two_calls_at_once(held: Held) -> None:
    """The guard pauses and works again while the driver holds the program."""
    held.may_return.clear()
    held.look_for(0.1, GUARD)
    held.look_for(0.1)
    held.look_for(0.1, GUARD)
    until(lambda: ("let go", PROGRAM) in held.calls, "it is let go")
    held.may_return.set()
    assert held.settled() == [("hold", PROGRAM), ("let go", PROGRAM)]
    held.look(GUARD)
    assert held.settled() == [("hold", PROGRAM), ("let go", PROGRAM), ("hold", PROGRAM)]


def test_where_all_threads_are_inside_calls_a_program_is_held_by_the_first_that_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holdback, "_MAX_THREADS", 1)
    held = Held()
    held.back.guard(GUARD, GROUP, 1.0)
    for program in (PROGRAM, SECOND):
        held.back.yield_to(program, GROUP)
    held.look()
    held.may_return.clear()
    held.look_for(0.1, GUARD)
    held.may_return.set()
    assert held.settled() == [("hold", PROGRAM)]
    held.look(GUARD)
    assert held.settled() == [("hold", PROGRAM), ("hold", SECOND)]


def test_programs_stay_held_from_look_to_look_until_no_guard_is_left() -> None:
    """By the thread that looks."""
    calls: queue.Queue[str] = queue.Queue()
    looks = threading.Semaphore(0)

    def cpu_time_s(pid: int) -> float:
        looks.release()
        return time.monotonic()

    def hold(process: ProcessKey) -> None:
        calls.put("hold")

    back = HoldBack(hold, lambda _: calls.put("let go"), lambda *_: None, cpu_time_s)
    back.start()
    back.guard(GUARD, GROUP, 1.0)
    back.yield_to(PROGRAM, GROUP)
    assert calls.get(timeout=30) == "hold"
    for _ in range(5):
        assert looks.acquire(timeout=30)
    assert calls.empty()
    back.leave(GUARD)
    assert calls.get(timeout=30) == "let go"
    back.guard(GUARD, GROUP, 1.0)
    assert calls.get(timeout=30) == "hold"
    back.leave(PROGRAM)
    assert calls.get(timeout=30) == "let go"


def test_a_program_whose_guard_leaves_as_it_is_held_is_let_go() -> None:
    calls: queue.Queue[str] = queue.Queue()

    def report(guard: ProcessKey, begins: bool, seconds: float) -> None:
        """No look follows: nothing is left to look at."""
        back.leave(guard)

    back = HoldBack(lambda _: calls.put("hold"), lambda _: calls.put("let go"), report, lambda _: time.monotonic())
    back.start()
    back.guard(GUARD, GROUP, 1.0)
    back.yield_to(PROGRAM, GROUP)
    assert {calls.get(timeout=30), calls.get(timeout=30)} == {"hold", "let go"}


HOLDING = """
import signal, time
from gpucommons.pauser.holdback import HoldBack
signal.alarm(60)
HoldBack(lambda _: None, lambda _: None, lambda *_: None).start()
"""


def test_it_keeps_no_program_from_its_end() -> None:
    subprocess.run([sys.executable, "-c", HOLDING], check=True)
