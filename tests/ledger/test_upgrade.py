"""A ledger that release 0.1.0 wrote, opened by this one: every report is what 0.1.0 printed, and everything adds up.

`recorded/` holds the file and the reports of 0.1.0: the lab scenario, 30 hours in two runs with half an hour between,
minutes kept for 72 minutes.
"""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cli.test_accounts import run, state
from gpucommons.ledger.integrate import NS, Batch
from gpucommons.ledger.query import read_period, read_totals
from gpucommons.ledger.store import Store
from gpucommons.ledger.writer import LedgerWriter
from gpucommons.model.words import By
from ledger.builders import ALICE, batch, moment
from waiting import until

RECORDED = Path(__file__).with_name("recorded")
REPORTS: Mapping[str, Any] = json.loads((RECORDED / "reports-0.1.0.json").read_text())
SINCE = "2025-11-11T06:46:40+00:00"
# The columns that 0.1.0 printed, and their names today.
COLUMNS = {
    "held_gpu_hours": "held_gpu_hours",
    "active_gpu_hours": "active_gpu_hours",
    "wasted_gpu_hours": "idle_gpu_hours",
    "unjudged_gpu_hours": "unjudged_gpu_hours",
    "gpu_equivalent_hours": "gpu_equivalent_hours",
    "memory_gib_hours": "memory_gib_hours",
    "energy_kwh": "energy_kwh",
    "sm_gpu_hours": "sm_gpu_hours",
    "free_gpu_hours": "free_gpu_hours",
    "unknown_gpu_hours": "unknown_gpu_hours",
}
# 0.1.0 billed pods under no user, and named them without their namespace.
QUALIFIED = {name: f"inference/{name}" for name in ("llm-serve-6d9f7c5b8-x2x4k", "ray-worker-0")}

__all__ = ["state"]


@pytest.fixture
def old_ledger(state: Path) -> Path:
    path = state / "ledger.sqlite"
    path.write_bytes(gzip.decompress((RECORDED / "ledger-0.1.0.sqlite.gz").read_bytes()))
    return path


def names_today(by: By, name: str) -> set[str]:
    if by is By.USER:
        return set(QUALIFIED.values()) if name == "(none)" else {name}
    return {QUALIFIED.get(name, name) if by is By.POD else name}


# 0.1.0 had no rows by day.
@pytest.mark.parametrize("by", [By(name) for name in REPORTS if name in set(By)])
def test_every_report_is_that_of_the_old_release(old_ledger: Path, capsys: pytest.CaptureFixture[str], by: By) -> None:
    document = json.loads(run(capsys, "report", "--since", SINCE, "--by", by, "--format", "json"))["accounts"][SINCE]
    rows, old = document[f"{by}s"], REPORTS[by]
    named = {row[by]: names_today(by, row[by]) for row in old["rows"]}
    assert set(rows) == set().union(*named.values())
    for row in old["rows"]:
        for column, today in COLUMNS.items():
            if row.get(column) is not None:
                found = sum(rows[name][today] or 0.0 for name in named[row[by]])
                assert found == pytest.approx(row[column], abs=2e-4), (row[by], column)
        # 0.1.0 printed up to 2.4 for an owner that also used the share of another.
        if len(named[row[by]]) == 1 and row["efficiency_ratio"] is not None:
            (name,) = named[row[by]]
            assert rows[name]["efficiency_ratio"] == pytest.approx(min(1.0, row["efficiency_ratio"]), abs=2e-3)
    for reason, hours in old["gap_hours"].items():
        assert document["gap_hours"][reason] == pytest.approx(hours, abs=1e-4)


def test_it_adds_up(old_ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def report(by: By) -> Mapping[str, Any]:
        text = run(capsys, "report", "--since", SINCE, "--by", by, "--format", "json")
        document: Mapping[str, Any] = json.loads(text)["accounts"][SINCE]
        return document

    totals = [report(by)["total"] for by in By]
    of_gpus_only = totals[-1].keys() - totals[0].keys()
    assert of_gpus_only == {"free_gpu_hours", "unknown_gpu_hours"}
    totals[-1] = {name: value for name, value in totals[-1].items() if name not in of_gpus_only}
    assert all(total == totals[0] for total in totals), "the total is the same for every grouping"
    gpus = report(By.GPU)["gpus"].values()
    observed = {round(gpu["held_gpu_hours"] + gpu["free_gpu_hours"] + gpu["unknown_gpu_hours"], 4) for gpu in gpus}
    # 30 hours without the time between the two runs; the last of the samples, 20 s apart, ends them.
    assert observed == {round((30 * 3600 - 1820 - 20) / 3600, 4)}
    period = read_period(old_ledger, *REPORTS["period"])
    held = sum(amounts.held_ns for amounts in period.usage.values())
    assert held == sum(time.held_ns for time in period.slot_time.values())
    assert held == sum(totals.amounts.held_ns for totals in read_totals(old_ledger).values())


def test_what_the_old_release_billed_has_a_cost(old_ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It stored no models of GPUs: a price for all GPUs applies, and a price by model once this release has run."""

    def priced(price: str) -> Mapping[str, Any]:
        config = old_ledger.with_name("config.toml")
        config.write_text(f'[accounts]\nprice_per_gpu_hour = {price}\ncurrency = "EUR"\n')
        text = run(capsys, "report", "--since", SINCE, "--format", "json", "--config", str(config))
        total: Mapping[str, Any] = json.loads(text)["accounts"][SINCE]["total"]
        return total

    total = priced("2")
    assert total["cost"] == pytest.approx(2 * total["gpu_equivalent_hours"], abs=2e-6)
    assert total["unpriced_gpu_hours"] == 0
    total = priced('{ "*H200*" = 2 }')
    assert (total["cost"], total["unpriced_gpu_hours"]) == (None, total["held_gpu_hours"])
    uuids = {slot.gpu_uuid for slot, _ in read_period(old_ledger, *REPORTS["period"]).usage}
    store = Store(old_ledger, "run", "boot")
    store.begin(moment(0))
    store.write(1, Batch({}, {}, models=dict.fromkeys(uuids, "NVIDIA H200")), moment(1))
    store.close()
    total = priced('{ "*H200*" = 2 }')
    assert total["cost"] == pytest.approx(2 * total["gpu_equivalent_hours"], abs=2e-6)
    assert total["unpriced_gpu_hours"] == 0


def test_the_counters_continue(old_ledger: Path) -> None:
    before = read_totals(old_ledger)
    assert {"\t".join(key): list(totals.amounts) for key, totals in before.items()} == REPORTS["totals"]
    writer = LedgerWriter(old_ledger)
    writer.start(moment(0))
    writer.submit(batch(10, ALICE), moment(10))
    until(lambda: writer.state.writing and writer.state.backlog_s == 0, "written")
    assert writer.close(5.0)
    assert writer.state.failures == {}
    after = read_totals(old_ledger)
    assert after.keys() - before.keys() == {("user", "alice", "")}
    assert all(after[key] == totals for key, totals in before.items())
    assert sum(t.amounts.held_ns for t in after.values()) - sum(t.amounts.held_ns for t in before.values()) == 10 * NS
