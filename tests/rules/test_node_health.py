"""The health score of the node: its two anchors, and that a missing reading does not count as healthy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.model.host import CpuReading, MemoryReading, Pressure, PressureLine, PressureReading
from gpucommons.rules.health import node_health_of
from unhurried import unhurried


def pressure(cpu: float, memory: float) -> PressureReading:
    def some(avg10: float) -> Pressure:
        return Pressure(PressureLine(avg10, 0, 0, 0), None)

    return PressureReading(some(cpu), some(memory), None)


def test_idle_is_ten() -> None:
    health = node_health_of(CpuReading(8, 0, 0, 0, 0.0), MemoryReading(100, 100), pressure(0, 0))
    assert health is not None
    assert health.score == pytest.approx(10)
    assert health.completeness_ratio == pytest.approx(1)


def test_half_of_everything() -> None:
    health = node_health_of(CpuReading(8, 4, 0, 0, 0.5), MemoryReading(100, 50), pressure(20, 10))
    assert health is not None
    assert health.score == pytest.approx(5.7)


def test_without_readings_there_is_no_score() -> None:
    assert node_health_of(None, None, None) is None


def test_a_component_that_was_not_read_is_left_out() -> None:
    health = node_health_of(CpuReading(8, None, None, None, None), MemoryReading(100, 50), None)
    assert health is not None
    assert dict(health.components) == {"memory": 0.5}
    assert health.score == pytest.approx(5.0), "a missing CPU reading is not an idle CPU"
    assert health.completeness_ratio == pytest.approx(0.3)


reading = st.one_of(st.none(), st.floats(-10, 1e6))


@given(reading, reading, st.one_of(st.none(), st.integers(-5, 10**12)), st.floats(-5, 1e6), st.floats(-5, 1e6))
@unhurried(100)
def test_always_within_bounds(
    busy: float | None, load: float | None, available: int | None, psi_cpu: float, psi_memory: float
) -> None:
    health = node_health_of(
        CpuReading(4, load, load, load, busy), MemoryReading(10**9, available), pressure(psi_cpu, psi_memory)
    )
    assert health is not None
    assert 0 <= health.score <= 10
    assert 0 < health.completeness_ratio <= 1
    assert all(0 <= value <= 1 for value in health.components.values())
