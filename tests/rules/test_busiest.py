"""The choice of the busiest processes is right, bounded and stable."""

from hypothesis import given
from hypothesis import strategies as st

from gpucommons.model.process_identity import ProcessKey, ProcessRow
from gpucommons.sources.host.processes import Busiest, CpuWindow
from unhurried import unhurried


def row(pid: int, cpu_seconds: float = 0.0, rss: int = 0, start: int = 1) -> ProcessRow:
    return ProcessRow(ProcessKey(pid, start), f"p{pid}", cpu_seconds, rss)


def table(*rows: ProcessRow) -> dict[int, ProcessRow]:
    return {r.key.pid: r for r in rows}


def test_cpu_time_counts_over_the_last_minute_only() -> None:
    window = CpuWindow()
    for second in range(0, 200, 5):
        used = window.measure_use([row(1, min(second, 50)), row(2, second)], second)
    assert used[ProcessKey(1, 1)] == 0, "it used no CPU time in the last minute"
    assert 55 <= used[ProcessKey(2, 1)] <= 75


def test_all_cpu_time_of_a_new_process_counts() -> None:
    window = CpuWindow()
    window.measure_use([row(1, 1000.0)], 0)
    used = window.measure_use([row(1, 1001.0), row(2, 30.0)], 30)
    assert used == {ProcessKey(1, 1): 1.0, ProcessKey(2, 1): 30.0}


def test_the_choice_does_not_depend_on_the_order() -> None:
    idle = [row(pid) for pid in range(1, 1000)]
    choice = Busiest(2)
    choice.choose(table(*idle, row(5000), row(6000, rss=99)), 0)
    chosen = choice.choose(table(*idle, row(5000, cpu_seconds=3), row(6000, rss=99)), 30)
    assert ProcessKey(5000, 1) in chosen
    assert ProcessKey(6000, 1) in chosen
    assert len(chosen) <= 4


def test_near_equals_do_not_alternate() -> None:
    choice = Busiest(1)
    chosen = set()
    for second in range(0, 300, 5):
        rows = [row(1, cpu_seconds=second), row(2, rss=100 + (second % 10)), row(3, rss=104)]
        chosen |= {key for key in choice.choose(table(*rows), second) if key.pid in (2, 3)}
    assert len(chosen) == 1


def test_a_clearly_busier_process_replaces_another() -> None:
    choice = Busiest(1)
    choice.choose(table(row(1, rss=100), row(2, rss=10)), 0)
    chosen = choice.choose(table(row(1, rss=100), row(2, rss=1000)), 5)
    assert ProcessKey(2, 1) in chosen


rows = st.dictionaries(
    st.integers(1, 40), st.tuples(st.floats(0, 1e6), st.integers(0, 2**40), st.integers(1, 3)), max_size=40
)


@given(st.integers(0, 10), st.lists(rows, max_size=6))
@unhurried(100)
def test_bounded_present_and_repeatable(limit: int, passes: list[dict[int, tuple[float, int, int]]]) -> None:
    first, again = Busiest(limit), Busiest(limit)
    for second, entries in enumerate(passes):
        now = table(*(row(pid, cpu, rss, start) for pid, (cpu, rss, start) in entries.items()))
        chosen = first.choose(now, second * 10.0)
        assert chosen == again.choose(dict(reversed(now.items())), second * 10.0), "the order must not matter"
        assert len(chosen) <= 2 * limit
        assert all(now[key.pid].key == key for key in chosen)
        if len(now) <= limit:
            assert len(chosen) == len(now)
