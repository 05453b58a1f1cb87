"""The lines of a job's report: what is known is shown, with its unit, and nothing else."""

from typing import Any

from gpucommons.cli.job_view import figure_lines, job_lines

GIB = 2**30
JOB: dict[str, Any] = {
    "id": "lease-12",
    "users": ["alice"],
    "first_unix_s": 1_800_000_000,
    "last_unix_s": 1_800_003_120,
    "waited_s": 40.2,
    "ran_s": 3120,
    "slots": {"GPU-a": {"name": "1"}, "GPU-b": {"name": "2"}},
    "total": {
        "held_gpu_hours": 0.8666,
        "efficiency_ratio": 0.121,
        "energy_kwh": 0.2101,
        "cost": 2.2266,
        "co2_g": 79.8,
    },
    "busy_ratio": 0.19,
    "peak_memory_bytes": round(12.3 * GIB),
    "asked_memory_bytes": 20 * GIB,
    "hints": ["asked 2 GPUs, used 1: ask for fewer"],
    "currency": "EUR",
    "dashboard_url": "https://grafana.example.org/d/usage?var-job=lease-12",
}


def test_every_figure_and_the_hints() -> None:
    title, *rest = job_lines(JOB)
    assert title.startswith("lease-12 of alice: waited 40 s, ran 52 min on GPUs 1, 2, 2027-01-1")
    assert rest == [
        "0.867 GPU-hours, GPU busy 19% of the time, SM 12%, peak memory 12.3 GiB of 20 GiB asked, "
        "0.210 kWh, 2.23 EUR, 79.8 g CO2",
        "hint: asked 2 GPUs, used 1: ask for fewer",
        "dashboard: https://grafana.example.org/d/usage?var-job=lease-12",
    ]


def test_what_is_not_known_is_left_out() -> None:
    unknown = dict.fromkeys(("first_unix_s", "waited_s", "ran_s", "busy_ratio", "peak_memory_bytes"))
    total = {"held_gpu_hours": 1.0, "efficiency_ratio": None, "energy_kwh": None}
    job = {**JOB, **unknown, "slots": {"GPU-a": {"name": "1"}}, "total": total, "hints": [], "dashboard_url": None}
    assert list(job_lines(job)) == ["lease-12 of alice: ran on GPU 1", "1.000 GPU-hours"]
    assert list(figure_lines({**job, "total": {**total, "cost": None, "co2_g": None}})) == ["1.000 GPU-hours"]


def test_memory_that_was_not_asked_for_and_money_without_a_currency() -> None:
    job = {name: value for name, value in JOB.items() if name != "currency"} | {"asked_memory_bytes": None}
    figures = next(figure_lines(job))
    assert "peak memory 12.3 GiB, 0.210 kWh, 2.23, 79.8 g CO2" in figures
