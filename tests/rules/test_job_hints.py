"""Hints of a job: one for each cause, two at most, and none where nothing is wrong."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucommons.rules.job_hints import MAX_HINTS, JobOutcome, job_hints

GIB = 2**30
FINE = JobOutcome(3600.0, 1, 1, 0.1, 0.9, 0.05, 18 * GIB, 20 * GIB)


def test_a_job_that_uses_what_it_has_gets_no_hint() -> None:
    assert job_hints(FINE) == ()


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (
            {"idle_ratio": 0.81, "idle_cpu_ratio": 0.74},
            "GPU idle 81%: the program kept a CPU core busy 74% of that time: more loader workers?",
        ),
        (
            {"idle_ratio": 0.81, "idle_cpu_ratio": 0.2, "idle_disk_ratio": 0.6},
            "GPU idle 81%: the program waited for a disk 60% of that time: a faster disk?",
        ),
        ({"slots_held": 2}, "asked 2 GPUs, used 1: ask for fewer, or let the program use all of them"),
        ({"slots_used": 0}, "the GPU was held and never used: does the program find CUDA?"),
        ({"slots_held": 4, "slots_used": 0}, "4 GPUs were held and never used: does the program find CUDA?"),
        (
            {"asked_bytes": 40 * GIB, "peak_bytes": 6 * GIB},
            "asked 40 GiB, used 6 GiB: a smaller --memory fits on more GPUs and waits less",
        ),
        (
            {"asked_bytes": 40 * 10**9, "peak_bytes": 6_400_000_000},
            "asked 40 GB, used 6.4 GB: a smaller --memory fits on more GPUs and waits less",
        ),
    ],
)
def test_each_cause_has_a_hint_and_a_short_job_has_none(change: dict[str, Any], hint: str) -> None:
    job = FINE._replace(**change)
    assert job_hints(job) == (hint,)
    assert job_hints(job._replace(judged_s=59.0)) == ()


@pytest.mark.parametrize(
    "change",
    [
        # Idle time without a known cause gets no hint.
        {"idle_ratio": 0.9, "idle_cpu_ratio": 0.3, "idle_disk_ratio": 0.3},
        {"idle_ratio": 0.9, "idle_cpu_ratio": None, "idle_disk_ratio": None},
        {"idle_ratio": None},
        {"peak_bytes": None, "asked_bytes": 40 * GIB},
        {"peak_bytes": 1 * GIB, "asked_bytes": None},
        # Two GiB less would not find a GPU sooner.
        {"peak_bytes": 1 * GIB, "asked_bytes": 3 * GIB},
    ],
)
def test_what_is_not_known_or_not_worth_it_is_no_hint(change: dict[str, Any]) -> None:
    assert job_hints(FINE._replace(**change)) == ()


ratios = st.none() | st.floats(0, 1)
memory = st.none() | st.integers(0, 200 * GIB)


@given(
    st.builds(
        JobOutcome, st.floats(0, 1e7), st.integers(1, 8), st.integers(0, 8), ratios, ratios, ratios, memory, memory
    )
)
def test_there_are_two_at_most_and_each_has_its_reason(job: JobOutcome) -> None:
    hints = job_hints(job)
    assert len(hints) <= MAX_HINTS
    assert len(set(hints)) == len(hints)
    assert all(": " in hint for hint in hints)
