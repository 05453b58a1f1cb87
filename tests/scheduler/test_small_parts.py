"""GPU names, overhead, histograms, the turn clock: small pure parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.scheduler.policy.devices import MIB, KnownGpu, next_overhead, resolve
from gpucommons.scheduler.policy.state import TurnClock

GPUS = [
    KnownGpu("GPU-gone", 3, generation=1),
    KnownGpu("GPU-lost", 0, generation=2),
    KnownGpu("GPU-lore", 3, generation=2),
    KnownGpu("GPU-bb22", 1, generation=3),
    KnownGpu("GPU-aa11", 0, generation=3),
    KnownGpu("GPU-bb33", 2, mig=("MIG-17", "MIG-18"), generation=3),
]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("", "GPU-aa11"),
        ("all", "GPU-aa11"),
        ("ALL", "GPU-aa11"),
        ("none", "GPU-aa11"),
        ("void", "GPU-aa11"),
        ("2", "GPU-bb33"),
        (" 1 ", "GPU-bb22"),
        ("3", "GPU-lore"),
        ("GPU-gone", "GPU-gone"),
        ("GPU-lo", None),
        ("7", None),
        ("²", None),
        ("١", None),
        ("1_0", None),
        ("GPU-bb22", "GPU-bb22"),
        ("gpu-BB22", "GPU-bb22"),
        ("GPU-aa", "GPU-aa11"),
        ("GPU-bb", None),
        ("GPU-lost", "GPU-lost"),
        ("1,0", "GPU-bb22"),
        ("GPU-bb33,GPU-aa11", "GPU-bb33"),
        ("MIG-17", "MIG-17"),
        ("MIG-1", None),
        ("MIG-9", None),
        ("2:1", "MIG-18"),
        ("2:2", None),
        ("2:²", None),
        ("7:0", None),
        ("9" * 96, None),
    ],
)
def test_names_where_gpus_are_known(name: str, meant: str | None) -> None:
    assert resolve(name, GPUS) == meant


def test_names_where_no_gpu_is_known() -> None:
    assert {resolve(name, []) for name in ("", "all", "0", "GPU-x,GPU-y")} == {None}


def test_the_overhead_is_only_taken_where_it_shows() -> None:
    assert next_overhead(None, 0, None, hot=False) is None
    assert next_overhead(None, 0, 500 * MIB, hot=True) is None
    assert next_overhead(None, 256 * MIB, 900 * MIB, hot=False) is None
    assert next_overhead(None, 100 * MIB, 600 * MIB, hot=False) == 500 * MIB
    assert next_overhead(500 * MIB, 0, 1000 * MIB, hot=False) == 600 * MIB
    assert next_overhead(None, 0, 1 * MIB, hot=False) == 256 * MIB
    assert next_overhead(None, 0, 99_999 * MIB, hot=False) == 4096 * MIB
    assert next_overhead(300 * MIB, 999 * MIB, 5000 * MIB, hot=False) == 300 * MIB


@given(st.lists(st.tuples(st.floats(0.001, 50), st.integers(0, 5)), max_size=40))
def test_the_turn_clock_knows_what_its_window_began_with(steps: list[tuple[float, int]]) -> None:
    """The window's start on the clock is what a clock shows that was read at exactly that time."""
    clock, fine = TurnClock(0.0, 2.0), TurnClock(0.0, 1e9)
    now = 0.0
    at_window_start = 0.0
    boundary = 2.0
    for length_s, running in steps:
        end = now + length_s
        while boundary <= end:
            fine.advance(boundary)
            at_window_start = fine.billed_s
            boundary += 2.0
        fine.advance(end)
        clock.advance(end)
        assert clock.billed_s == pytest.approx(fine.billed_s)
        assert clock.window_billed_s == pytest.approx(at_window_start, abs=1e-6)
        clock.running = fine.running = running
        now = end
