"""The history against a complete list: the same means, gaps where nothing was read, and a bounded size."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo_node import DemoNode
from gpucommons.faces.history.history import COARSE_SPAN_S, FINE_SPAN_S, MAX_GPUS, NODE, SERIES, History, fold_values
from gpucommons.model.host import CpuReading
from gpucommons.model.snapshot import Readings, Snapshot
from played import snapshot_of
from unhurried import unhurried

CPU = "cpu_utilization_ratio"


def reading(monotonic_s: float, busy: float | None, wall_s: float = 0.0) -> Snapshot:
    cpu = None if busy is None else CpuReading(4, None, None, None, busy)
    return Snapshot(1, monotonic_s, wall_s + monotonic_s, "node-1", readings=Readings(cpu=cpu))


def same(found: Sequence[float], expected: Sequence[float]) -> bool:
    return len(found) == len(expected) and all(
        (math.isnan(a) and math.isnan(b)) or a == pytest.approx(b, rel=1e-6)
        for a, b in zip(found, expected, strict=True)
    )


@unhurried(60)
@given(
    st.lists(
        st.tuples(st.floats(0.05, 40.0), st.none() | st.floats(0, 1)),
        min_size=1,
        max_size=120,
    ),
    st.integers(10, 300),
)
def test_a_value_is_the_mean_of_the_readings_of_its_step(steps: list[tuple[float, float | None]], range_s: int) -> None:
    history = History()
    now_s = 5000.0
    by_second: dict[int, list[float]] = {}
    for gap_s, busy in steps:
        now_s += gap_s
        history.observe(reading(now_s, busy))
        if busy is not None:
            by_second.setdefault(math.floor(now_s + 0.05), []).append(busy)
    last = math.floor(now_s + 0.05)
    expected = [
        sum(by_second[second]) / len(by_second[second]) if second in by_second else math.nan
        for second in range(last - range_s + 1, last + 1)
    ]
    window = history.window(CPU, range_s, 4000)
    assert window.step_s == 1.0
    assert same(window.columns[NODE], expected)
    assert window.start_wall_s == pytest.approx(last - range_s + 1)


@unhurried(40)
@given(st.integers(1, 9000), st.integers(10, 800))
def test_an_hour_never_contains_older_values(seconds: int, points: int) -> None:
    history = History()
    for second in range(0, seconds, 7):
        history.observe(reading(1000.0 + second, (second % 100) / 100))
    window = history.window(CPU, FINE_SPAN_S, points)
    column = window.columns[NODE]
    assert len(column) <= points
    last = (seconds - 1) // 7 * 7
    for place, value in enumerate(column):
        start = window.start_wall_s - 1000.0 + place * window.step_s
        seen = [s for s in range(0, last + 1, 7) if start - 1e-6 <= s < start + window.step_s - 1e-6]
        expected = sum((s % 100) / 100 for s in seen) / len(seen) if seen else math.nan
        assert same([value], [expected])


def test_a_day_is_kept_in_steps_of_fifteen_seconds() -> None:
    history = History()
    for second in range(0, 90_000, 5):
        history.observe(reading(float(second), second / 90_000))
    window = history.window(CPU, COARSE_SPAN_S, 4000)
    column = window.columns[NODE]
    assert window.step_s == 30.0, "5760 steps do not fit into 4000 points"
    assert column[-1] == pytest.approx(1, abs=1e-3)
    assert column[0] == pytest.approx((90_000 - 86_400) / 90_000, abs=1e-3)
    assert history.covers(90_000 - COARSE_SPAN_S)
    assert not history.covers(0.0)


def test_a_window_can_end_in_the_past() -> None:
    history = History()
    for second in range(600):
        history.observe(reading(1000.0 + second, second / 1000))
    window = history.window(CPU, 60, 100, end_wall_s=1300.0)
    assert len(window.columns[NODE]) == 60
    assert window.columns[NODE][-1] == pytest.approx(0.3, abs=0.002)


def test_a_step_of_the_wall_clock_moves_nothing() -> None:
    history = History()
    for second in range(100):
        history.observe(reading(1000.0 + second, 0.5, wall_s=0.0 if second < 50 else 86_400.0))
    assert same(history.window(CPU, 100, 200).columns[NODE], [0.5] * 100)


def test_a_slow_sampler_leaves_no_gaps() -> None:
    history = History(interval_s=5.0)
    for number in range(20):
        history.observe(reading(1000.0 + 5 * number + 0.01, 0.5))
    window = history.window(CPU, 100, 100)
    assert window.step_s == 5.0
    assert same(window.columns[NODE], [0.5] * 20)


def test_the_size_of_sixteen_gpus_is_as_documented() -> None:
    history, node = History(), DemoNode(gpus=16)
    for second in range(3):
        history.observe(snapshot_of(node.readings(float(second)), second))
    columns = 16 * sum(name.startswith("gpu_") for name in SERIES) + sum(not n.startswith("gpu_") for n in SERIES)
    assert history.memory_bytes == columns * 4 * (3600 + 5760)
    assert history.memory_bytes < 64 * 2**20 / 10


def test_gpus_that_come_and_go_do_not_increase_the_size() -> None:
    history = History()
    for round_number in range(5):
        node = DemoNode(gpus=40)
        readings = node.gpu_reading(0.0)
        changed = tuple(
            type(gpu)(
                identity=type(gpu.identity)(
                    f"GPU-{round_number}-{gpu.identity.index}", gpu.identity.index, "H200", gpu.identity.pci_bus_id
                ),
                up=True,
                since_wall_s=0.0,
                readings=gpu.readings,
            )
            for gpu in readings.gpus
        )
        reading = type(readings)("1", "1", "1", changed, 40, 40)
        history.observe(snapshot_of(Readings(gpus=reading), round_number))
    assert len(history.subjects) == MAX_GPUS + 1
    assert f"GPU-{4}-39" in history.subjects


def test_a_lost_gpu_has_a_gap_and_not_a_zero() -> None:
    history = History()
    uuid = DemoNode().gpu_reading(0).gpus[2].identity.uuid
    for second in range(10):
        node = DemoNode(lost=2 if 3 <= second < 7 else None)
        history.observe(snapshot_of(node.readings(float(second)), second))
    column = history.window("gpu_power_watts", 10, 100).columns[uuid]
    assert [math.isnan(value) for value in column] == [False] * 3 + [True] * 4 + [False] * 3


def test_a_moment_is_always_averaged_with_the_same_neighbours() -> None:
    history = History()
    seen: dict[float, float] = {}
    for second in range(400):
        history.observe(reading(1000.0 + second, (second * 37 % 100) / 100))
        if second < 200:
            continue
        window = history.window(CPU, 120, 12)
        for place, value in enumerate(window.columns[NODE]):
            start_s = round(window.start_wall_s + place * window.step_s, 3)
            assert seen.setdefault(start_s, value) == value
    assert len(seen) < 40, "steps of 10 s"


def test_folding_averages_the_known_values() -> None:
    nan = math.nan
    assert same(fold_values([1, 3, nan, 5, nan, nan], 2), [2, 5, nan])
    assert fold_values([1, 2], 1) == [1, 2]
