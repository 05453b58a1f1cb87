"""One job from the ledger: its amounts are those of the report by job, and its figures survive every way of writing."""

import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gpucommons.faces.documents.accounts import rows
from gpucommons.faces.documents.job import JOB, BilledJob, job_document
from gpucommons.ledger.backup import back_up, replace_damaged
from gpucommons.ledger.integrate import NS, Batch, Integrator
from gpucommons.ledger.query import accounts_of, read_job, read_period
from gpucommons.ledger.store import Store
from gpucommons.model.accounts import BILLION, NO_PRICES, JobFigures, Prices, sum_amounts
from gpucommons.model.allocations import (
    WHOLE_SHARE,
    Account,
    Holding,
    IdleCause,
    JobRequest,
    Slot,
    SlotUsage,
    UsageSample,
)
from gpucommons.model.words import By
from ledger.builders import ALICE, GPU, MIG, WALL_S, moment
from unhurried import unhurried

GIB = 2**30
LEASE = ALICE._replace(job="lease-7")
SLURM = Account("job", "4711", user="bob", job="4711")
POD = Account("pod", "train-0", "research", "uid", pod="train-0")
PRICES = Prices((("*H100*", 2 * BILLION),), BILLION // 4, "EUR", 400 * BILLION)


def sample(after_s: int, *holdings: tuple[Slot, Holding]) -> UsageSample:
    now = moment(after_s)
    slots = tuple(SlotUsage(slot, (holding,)) for slot, holding in holdings)
    requests = {"lease-7": JobRequest(1500, 20 * 2**20)}
    return UsageSample(now.monotonic_ns, now.wall_s, slots, {"GPU-0": "NVIDIA H100", "GPU-1": "NVIDIA A100"}, requests)


def holding(
    account: Account, sm: int, memory: int | None, cause: IdleCause | None = None, milliwatts: int = 300_000
) -> Holding:
    return Holding(account, WHOLE_SHARE, sm > 0, sm, memory, milliwatts, cause)


def flushed(samples: list[UsageSample], every: int) -> list[Batch]:
    integrator, batches = Integrator(5.0), []
    for number, each in enumerate(samples, 1):
        integrator.step(each)
        if number % every == 0:
            batches.append(integrator.take())
    return [*batches, integrator.take()]


def written(path: Path, batches: list[Batch]) -> Path:
    store = Store(path, "run", "boot")
    store.begin(moment(0))
    for number, each in enumerate(batches, 1):
        store.write(number, each, moment(number))
        store.write(number, each, moment(number))
    store.close()
    return path


def hundred_seconds() -> list[UsageSample]:
    """A lease of two GPUs: one is used for 20 s, the other never. While the first is idle, a core is busy for 60 s."""
    samples = []
    for second in range(101):
        busy = second < 20
        cause = None if busy else IdleCause.CPU if second < 80 else IdleCause.DISK if second < 90 else IdleCause.NEITHER
        first = holding(LEASE, 900_000 if busy else 0, (12 if busy else 3) * GIB, cause)
        samples.append(sample(second, (GPU, first), (MIG, holding(LEASE, 0, 1 * GIB, IdleCause.NEITHER))))
    return samples


@pytest.mark.parametrize("every", [1, 10, 1000])
def test_the_figures_of_a_job(tmp_path: Path, every: int) -> None:
    path = written(tmp_path / "ledger.sqlite", flushed(hundred_seconds(), every))
    job = read_job(path, "lease-7")
    assert job is not None
    begun = int(WALL_S)
    seen_ns = 180 * NS
    assert job.figures == JobFigures(begun, begun + 100, 12 * 2**20, seen_ns, 60 * NS, 10 * NS, 1500, 20 * 2**20), (
        "a batch that is written again counts once"
    )
    document = job_document(BilledJob(job, PRICES, "http://jobs/{job}?from={from_ms}&to={to_ms}"))
    assert document["dashboard_url"] == f"http://jobs/lease-7?from={begun}000&to={begun + 100}000"
    Draft202012Validator(JOB).validate(document)
    assert document["users"] == ["alice"]
    assert (document["waited_s"], document["ran_s"]) == (1.5, 100)
    assert document["busy_ratio"] == 0.1
    assert document["peak_memory_bytes"] == 12 * GIB, "on one GPU: what was asked is for each"
    assert document["asked_memory_bytes"] == 20 * GIB
    assert document["idle_cpu_ratio"] == round(60 / 180, 4)
    assert document["idle_disk_ratio"] == round(10 / 180, 4)
    assert document["hints"] == ["asked 2 GPUs, used 1: ask for fewer, or let the program use all of them"]
    period = accounts_of(read_period(path, begun - 60, begun + 3600), By.JOB, None, PRICES)
    assert document["total"] == rows(period)["lease-7"], "the same as the report by job"


def test_jobs_are_found_by_their_names_and_others_are_not(tmp_path: Path) -> None:
    samples = [
        sample(second, (GPU, holding(account, 1, None)))
        for start, account in ((0, SLURM), (20, POD), (40, ALICE))
        for second in range(start, start + 11)
    ]
    path = written(tmp_path / "ledger.sqlite", flushed(samples, 5))
    for name, account in (("4711", SLURM), ("research/train-0", POD), ("train-0", POD)):
        job = read_job(path, name)
        assert job is not None, name
        assert {found for _, found in job.usage} == {account}
        assert job.figures is not None
        assert (job.figures.peak_kib, job.figures.waited_ms, job.figures.asked_kib) == (None, None, None)
        document = job_document(BilledJob(job, NO_PRICES))
        Draft202012Validator(JOB).validate(document)
        assert "cost" not in str(document)
        assert document["peak_memory_bytes"] is None
        assert document["dashboard_url"] is None
    for name in ("", "471", "4711 ", "other/train-0", "alice", "lease-4711", "%", "' OR 1=1"):
        assert read_job(path, name) is None, name
    assert read_job(path, "4711", "bob") is not None
    assert read_job(path, "4711", "alice") is None, "another user's"


def test_a_restored_ledger_has_the_jobs(tmp_path: Path) -> None:
    path = written(tmp_path / "ledger.sqlite", flushed(hundred_seconds(), 10))
    before = read_job(path, "lease-7")
    back_up(path, 0.0)
    path.write_bytes(bytes(4096) + path.read_bytes()[4096:])
    replace_damaged(path, 0.0)
    assert before is not None
    assert read_job(path, "lease-7") == before


def test_figures_outlive_a_backlog(tmp_path: Path) -> None:
    batches = flushed(hundred_seconds(), 10)
    merged = batches[0]
    for _, later in pairwise(batches):
        merged = merged.merge(later)
    one = read_job(written(tmp_path / "one.sqlite", [merged]), "lease-7")
    many = read_job(written(tmp_path / "many.sqlite", batches), "lease-7")
    assert one == many != None  # noqa: E711


def test_pruning_removes_a_job_with_its_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "ledger.sqlite", flushed(hundred_seconds(), 10))
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM usage_day")
    assert read_job(path, "lease-7") is None


causes = st.none() | st.sampled_from(IdleCause)
steps = st.tuples(st.booleans(), st.none() | st.integers(0, 80 * GIB), causes)


@unhurried(25)
@given(st.lists(steps, min_size=2, max_size=40), st.integers(1, 10))
def test_the_figures_add_up_however_they_are_flushed(
    recorded: list[tuple[bool, int | None, IdleCause | None]], every: int
) -> None:
    samples = [
        sample(second, (GPU, holding(LEASE, 500_000 if busy else 0, memory, cause)))
        for second, (busy, memory, cause) in enumerate(recorded)
    ]
    billed = recorded[:-1]
    batches = flushed(samples, every)
    figures = [batch.jobs[LEASE] for batch in batches if LEASE in batch.jobs]
    merged = figures[0]
    for later in figures[1:]:
        merged = merged.merge(later)
    known = [memory // 1024 for _, memory, _ in billed if memory is not None]
    idle = [cause for busy, _, cause in billed if not busy and cause is not None]
    assert merged == JobFigures(
        int(WALL_S),
        int(WALL_S) + len(billed),
        max(known, default=None),
        len(idle) * NS,
        idle.count(IdleCause.CPU) * NS,
        idle.count(IdleCause.DISK) * NS,
        1500,
        20 * 2**20,
    )
    total = sum_amounts(amounts for batch in batches for amounts in batch.usage.values())
    assert merged.idle_seen_ns <= total.idle_ns
