"""Trees of processes that keep a core busy or wait for a disk."""

from gpucommons.model.process_identity import ProcessKey, ProcessRow, TreeActivity
from gpucommons.sources.host.processes import TreeWatch


def row(pid: int, parent: int, cpu_s: float, state: str = "S", start: int = 1) -> tuple[int, ProcessRow]:
    return pid, ProcessRow(ProcessKey(pid, start), f"p{pid}", cpu_s, 0, parent, state)


def watched(before: list[tuple[int, ProcessRow]], after: list[tuple[int, ProcessRow]]) -> TreeActivity | None:
    """Two passes with 5 seconds between."""
    watch = TreeWatch()
    assert watch.step(dict(before), 100.0) is None, "one pass shows no rate"
    return watch.step(dict(after), 105.0)


def test_a_busy_process_makes_every_tree_above_it_busy() -> None:
    before = [row(1, 0, 5), row(10, 1, 0), row(11, 10, 7), row(12, 10, 7), row(20, 1, 0)]
    after = [row(1, 0, 5), row(10, 1, 0), row(11, 10, 11.6), row(12, 10, 9), row(20, 1, 0)]
    assert watched(before, after) == TreeActivity(frozenset({1, 10, 11}), frozenset())


def test_two_processes_with_half_a_core_each_keep_none_busy() -> None:
    before, after = [row(10, 1, 0), row(11, 10, 0)], [row(10, 1, 2.5), row(11, 10, 2.5)]
    assert watched(before, after) == TreeActivity(frozenset(), frozenset())


def test_a_process_that_gets_little_of_a_core_and_waits_for_more() -> None:
    before = [row(10, 1, 0, "R"), row(11, 1, 0, "R"), row(12, 1, 0), row(13, 1, 0, "R")]
    after = [row(10, 1, 0.1, "R"), row(11, 1, 0.1), row(12, 1, 0.1, "R"), row(13, 1, 0.1, "R", start=2)]
    assert watched(before, after) == TreeActivity(frozenset({10}), frozenset())


def test_a_process_that_waits_for_a_disk() -> None:
    after = [row(10, 1, 0), row(11, 10, 0, "D"), row(12, 1, 0)]
    assert watched([row(10, 1, 0)], after) == TreeActivity(frozenset(), frozenset({10, 11}))


def test_a_reused_pid_is_a_new_process_and_a_new_one_counts_from_its_start() -> None:
    found = watched([row(10, 1, 900)], [row(10, 1, 4.8, start=2), row(11, 1, 1, start=3)])
    assert found == TreeActivity(frozenset({10}), frozenset())


def test_a_circle_of_parents_ends() -> None:
    """A pid may be reused between the reads of two processes of one pass."""
    found = watched([], [row(10, 11, 5), row(11, 10, 0)])
    assert found == TreeActivity(frozenset({10, 11}), frozenset())


def test_a_clock_that_stands_still_gives_no_rate() -> None:
    watch = TreeWatch()
    watch.step(dict([row(1, 0, 1)]), 1.0)
    assert watch.step(dict([row(1, 0, 1)]), 1.0) is None
