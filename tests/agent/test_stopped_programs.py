"""A user stops a program that takes turns: by Ctrl-Z, a debugger or the freezer. The others lose next to nothing.

What they lose is judged by the account of the fake GPUs, in seconds of work; the bounds leave room for a busy machine.
"""

from collections.abc import Iterator

import pytest

from fakes.shared_gpu import MATMUL, SharedProgram
from running import command
from shared_node import SharedNode, shared_node
from stopping import WAYS, Stopper, by_signal
from waiting import until

# Together they lose little: what is lost is lost by the stop.
DENSE = MATMUL[8192]
USER = 20010
WATCH_S = 5.0
# On an idle machine 0.05 to 0.25 s of work were lost, and 3 % to a program that is stopped every second. A machine that
# stands still for a second spoils a window: one of these must show the due.
LOST_S = 0.5
LOST_RATIO = 0.05
WINDOWS = 4


@pytest.fixture(scope="module")
def node() -> Iterator[SharedNode]:
    with shared_node() as made:
        made.start_agent()
        yield made


@pytest.fixture(scope="module")
def three(node: SharedNode) -> list[SharedProgram]:
    """Two programs of a user and one of root: the owners take turns."""
    programs = [node.program(DENSE, uid=uid) for uid in (USER, USER, None)]
    node.wait_for(lambda: all(node.client(one) for one in programs) and node.way() == "turns", "they take turns")
    return programs


def work_of(node: SharedNode, programs: list[SharedProgram], seconds: float) -> float:
    """The work of these programs in the next seconds of the account, over the time that passed."""
    before = node.shared.works()
    node.shared.let_pass(seconds)
    rates = node.shared.rates_since(before)
    return sum(rates.of(one) for one in programs)


@pytest.mark.long
@pytest.mark.parametrize("way", list(WAYS))
def test_a_stopped_program_takes_no_turn_and_is_shown(node: SharedNode, three: list[SharedProgram], way: str) -> None:
    stopped: Stopper = WAYS[way]
    first, *others = three
    lost_s = []
    for _ in range(WINDOWS):
        node.wait_for(lambda: node.standing(first) in ("running", "waiting"), "it takes turns")
        usual = work_of(node, three, WATCH_S)
        with stopped(first.pid, node.shared.calm):
            lost_s.append(WATCH_S * (usual - work_of(node, others, WATCH_S)))
            row = until(lambda: (found := node.client(first)) and found["held_up"] and found, "it is shown as stopped")
            assert row["standing"] == "stopped"
            assert row["held_up"].startswith("stopped by its user: ")
            assert "stopped by its user" in node.scheduler("status")
        if min(lost_s) < LOST_S:
            break
    assert min(lost_s) < LOST_S, lost_s
    before = first.progress()
    node.wait_for(lambda: first.progress() > before, "it works again")


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_is_stopped_every_second_costs_little(
    node: SharedNode, three: list[SharedProgram], way: str
) -> None:
    stopped: Stopper = WAYS[way]
    first, *others = three
    node.wait_for(lambda: node.standing(first) in ("running", "waiting"), "it takes turns")
    seen = []
    for _ in range(WINDOWS):
        usual = work_of(node, three, WATCH_S)
        before = node.shared.works()
        for _ in range(5):
            with stopped(first.pid, node.shared.calm):
                node.shared.let_pass(1.0)
            node.shared.let_pass(1.0)
        rates = node.shared.rates_since(before)
        # Of all work, and that the others have at least what they have next to a program that is never stopped.
        lost = 1 - sum(rates.of(one) for one in three) / usual
        rest = sum(rates.of(one) for one in others) / usual
        seen.append((lost, rest))
        if lost < LOST_RATIO and rest > 2 / 3 * (1 - LOST_RATIO):
            return
    pytest.fail(f"lost, and had by the others: {seen}")


@pytest.mark.long
def test_a_call_that_hangs_frees_all_others(node: SharedNode, three: list[SharedProgram]) -> None:
    """They run together until it returns, and are not paused meanwhile."""
    first, *others = three
    node.shared.cuda.say(f"hang lock {first.pid}")
    try:
        node.wait_for(lambda: node.reason() == "call_hangs", "the call hangs")
        node.wait_for(lambda: node.standing(first) == "hanging", "it is shown")
        before = [one.program.locks for one in others]
        node.shared.let_pass(3.0)
        assert not any(one.locked for one in others)
        assert [one.program.locks for one in others] == before
        assert "the driver does not return from a call" in node.scheduler("status")
    finally:
        node.shared.cuda.unsay("hang")
    node.wait_for(lambda: node.way() == "turns" and node.standing(first) in ("running", "waiting"), "turns again")


@pytest.mark.long
def test_an_order_to_park_a_stopped_program_is_refused_with_the_reason(
    node: SharedNode, three: list[SharedProgram]
) -> None:
    first = three[0]
    with by_signal(first.pid, node.shared.calm):
        done = command("park", f"pid:{first.pid}", "--socket", str(node.socket))
    assert done.returncode != 0
    assert "stopped by its user" in done.stdout + done.stderr
