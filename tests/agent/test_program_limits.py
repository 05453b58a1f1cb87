"""Quotas, exemptions and the switch for plain programs, under a whole agent. Each check has a GPU of its own."""

from collections.abc import Iterator

import pytest

from fakes.shared_gpu import MATMUL
from shared_node import SharedNode, shared_node
from waiting import until

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


@pytest.fixture(scope="module")
def node() -> Iterator[SharedNode]:
    with shared_node(5) as made:
        yield made.start_agent(sections=SECTIONS)


def test_a_quota_is_a_share_of_the_time(node: SharedNode) -> None:
    """By a rule, by set-limit for a pid, and by set-limit for a user; of a program that is alone on its GPU."""
    quarter = node.program(HEAVY, gpu=QUARTER, uid=GAMES)
    by_pid = node.program(HEAVY, gpu=BY_PID)
    by_user = node.program(HEAVY, gpu=BY_USER, uid=MAIL)
    for program in (quarter, by_pid, by_user):
        node.wait_for(lambda program=program: node.standing(program), "it takes part")  # type: ignore[misc]
    for target in (f"pid:{by_pid.pid}", "user:mail"):
        assert "1 connected client updated" in node.scheduler("set-limit", target, "--core", "40")
    for program in (quarter, by_pid, by_user):
        until(lambda program=program: program.program.locks > 1, "its quota is in force")  # type: ignore[misc]
    before = node.shared.works()
    node.shared.let_pass(MEASURED_S)
    rates = node.shared.rates_since(before)
    assert rates.of(quarter) == pytest.approx(0.25, abs=0.03)
    assert rates.of(by_pid) == pytest.approx(0.4, abs=0.04)
    assert rates.of(by_user) == pytest.approx(0.4, abs=0.04)
    row = node.client(quarter)
    assert row is not None
    assert (row["core_quota_percent"], row["name"]) == (25, f"games · program (pid {quarter.pid})")
    for program in (quarter, by_pid, by_user):
        program.end()


def test_an_exempt_program_is_never_paused(node: SharedNode) -> None:
    exempt, others = node.program(HEAVY, gpu=EXEMPT, uid=BACKUP), [node.program(HEAVY, gpu=EXEMPT) for _ in range(2)]
    assert until(lambda: node.left_alone().get(exempt.pid)) == "sharing_quotas.exempt has share = false"
    assert "left alone\n" in node.scheduler("status")
    until(lambda: all(other.program.locks for other in others), "the others are paused in turn")
    assert exempt.program.locks == 0


def test_off_resumes_everything_at_once_and_on_begins_again(node: SharedNode) -> None:
    programs = [node.program(HEAVY, gpu=SWITCHED) for _ in range(3)]
    until(lambda: any(program.locked for program in programs), "programs are paused")
    assert "the scheduler is off" in node.scheduler("off")
    until(lambda: not any(program.locked for program in programs), "all run", within_s=2)
    locks = [program.program.locks for program in programs]
    # Two readings of the programs.
    node.shared.let_pass(2.2)
    assert [program.program.locks for program in programs] == locks
    assert "the scheduler is on" in node.scheduler("on")
    until(lambda: all(program.program.locks > before for program, before in zip(programs, locks, strict=True)))


def test_own_leaves_the_programs_of_others_alone() -> None:
    environment = {"GPUCOMMONS_SCHEDULER_SHARE_PROGRAMS": "own"}
    with shared_node(1) as node:
        node.start_agent("--scheduler", environment=environment)
        theirs, ours = node.program(HEAVY, uid=MAIL), [node.program(HEAVY) for _ in range(2)]
        sentence = until(lambda: node.left_alone().get(theirs.pid))
        assert sentence == f'it runs as uid {MAIL}, and share_programs = "own" shares only those of uid 0'
        until(lambda: all(program.program.locks for program in ours), "our own are paused in turn")
        assert theirs.program.locks == 0
