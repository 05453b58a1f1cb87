"""Quotas, exemptions and the switch for plain programs, under a whole agent. Each check has a GPU of its own."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fakes.shared_gpu import MATMUL, SharedProgram
from shared_node import SharedNode, shared_node
from waiting import until

pytestmark = pytest.mark.long

HEAVY = MATMUL[4096]
# Users that every Debian system has.
GAMES, MAIL, BACKUP = 5, 8, 34
SECTIONS = """
[sharing_quotas]
quarter = { user = "games", core = 25 }
exempt = { user = "backup", share = false }
"""
MEASURED_S = 5.0
QUARTER, BY_PID, BY_USER, EXEMPT, SWITCHED = range(5)


@dataclass
class Limited:
    """A node, and its programs in the order of their GPUs."""

    node: SharedNode
    programs: list[SharedProgram]


@pytest.fixture(scope="module")
def limited() -> Iterator[Limited]:
    places = [(QUARTER, GAMES), (BY_PID, 0), (BY_USER, MAIL), (EXEMPT, BACKUP), (EXEMPT, 0), (EXEMPT, 0)]
    with shared_node(5) as node:
        programs = [node.program(HEAVY, gpu=gpu, uid=uid) for gpu, uid in [*places, *2 * [(SWITCHED, 0)]]]
        yield Limited(node.start_agent(sections=SECTIONS), programs)


def test_a_quota_is_a_share_of_the_time(limited: Limited) -> None:
    """By a rule, by set-limit for a pid, and by set-limit for a user; of a program that is alone on its GPU."""
    node, (quarter, by_pid, by_user, *_) = limited.node, limited.programs
    node.wait_for(lambda: node.standing(by_pid) and node.standing(by_user), "they take part")
    for target in (f"pid:{by_pid.pid}", "user:mail"):
        assert "1 connected client updated" in node.scheduler("set-limit", target, "--core", "40")
    until(lambda: all(one.program.locks > 1 for one in (quarter, by_pid, by_user)), "their quotas are in force")
    due = pytest.approx([0.25, 0.4, 0.4], abs=0.04)
    node.wait_for_rates(lambda rates: [rates.of(program) for program in (quarter, by_pid, by_user)] == due, MEASURED_S)
    row = node.client(quarter)
    assert row is not None
    assert (row["core_quota_percent"], row["name"]) == (25, f"games · program (pid {quarter.pid})")


def test_an_exempt_program_is_never_paused(limited: Limited) -> None:
    node, (exempt, *others) = limited.node, limited.programs[3:6]
    assert until(lambda: node.left_alone().get(exempt.pid)) == "sharing_quotas.exempt has share = false"
    assert "left alone\n" in node.scheduler("status")
    until(lambda: all(other.program.locks for other in others), "the others are paused in turn")
    assert exempt.program.locks == 0


def test_off_resumes_everything_at_once_and_on_begins_again(limited: Limited) -> None:
    node, programs = limited.node, limited.programs[6:]
    until(lambda: any(program.locked for program in programs), "programs are paused")
    assert "the scheduler is off" in node.scheduler("off")
    until(lambda: not any(program.locked for program in limited.programs), "all run", within_s=5)
    locks = [program.program.locks for program in limited.programs]
    # A reading of the programs, at least.
    node.shared.let_pass(1.5)
    assert [program.program.locks for program in limited.programs] == locks
    assert "the scheduler is on" in node.scheduler("on")
    until(lambda: all(program.program.locks > before for program, before in zip(programs, locks[6:], strict=True)))


def test_own_leaves_the_programs_of_others_alone() -> None:
    with shared_node(1) as node:
        theirs, ours = node.program(HEAVY, uid=MAIL), [node.program(HEAVY) for _ in range(2)]
        node.start_agent("--scheduler", environment={"GPUCOMMONS_SCHEDULER_SHARE_PROGRAMS": "own"})
        sentence = until(lambda: node.left_alone().get(theirs.pid))
        assert sentence.startswith(f'it runs as uid {MAIL}, and share_programs = "own" ')
        until(lambda: all(program.program.locks for program in ours), "our own are paused in turn")
        assert theirs.program.locks == 0
