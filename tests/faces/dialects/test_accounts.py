"""gpucommons_accounts_*: the cost and the CO2 of the accounts, equal to the API's, and only where a price is set."""

from typing import Any

import pytest

from demo_node import DemoNode
from gpucommons.faces.dialects.gpucommons.accounts import CO2, COST, collect_accounts
from gpucommons.faces.documents.accounts import accounts
from gpucommons.ledger.query import PeriodUsage, accounts_of
from gpucommons.model.accounts import AccountsReading, Amounts, Billed, Charge, MonthKey, Prices
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.words import By
from ledger.builders import ALICE, GPU
from played import snapshot_of

NOVEMBER = MonthKey("2026-11", "alice", "lab")


def series(snapshot: Snapshot) -> dict[str, dict[tuple[str, ...], float]]:
    """Those that have a point."""
    families = {family.metric.name: dict(family.points) for family in collect_accounts(snapshot)}
    return {name: points for name, points in families.items() if points}


def test_the_metrics_equal_the_document() -> None:
    snapshot = snapshot_of(DemoNode().readings(30.0))
    document: Any = accounts(snapshot)
    found = series(snapshot)
    rows = {(user, period): row for period, each in document.items() for user, row in each["users"].items()}
    costs = {(*key, "EUR"): row["cost"] for key, row in rows.items() if row["cost"] is not None}
    grams = {key: row["co2_g"] for key, row in rows.items() if row["co2_g"] is not None}
    assert found == {COST.name: costs, CO2.name: grams}
    assert costs
    assert grams


def test_without_prices_there_are_no_costs() -> None:
    usage = PeriodUsage(0, 60, {(GPU, ALICE): Amounts(10**12, energy_uj=10**12)})
    reading = AccountsReading({"today": accounts_of(usage, By.USER)}, months={NOVEMBER: Billed(Amounts(3 * 10**9))})
    assert series(snapshot_of(Readings(accounts=reading))) == {
        f"gpucommons_accounts_month_{what}": {NOVEMBER: value}
        for what, value in (
            ("held_gpu_seconds", 3.0),
            ("gpu_equivalent_seconds", 0.0),
            ("active_gpu_seconds", 0.0),
            ("idle_gpu_seconds", 0.0),
            ("sm_gpu_seconds", 0.0),
        )
    }, "and energy that was not measured is absent"
    assert series(snapshot_of(Readings())) == {}


def test_a_month_has_its_cost_in_the_currency_and_what_has_no_price() -> None:
    charge = Charge(2_500_000_000 * 3600 * 10**9, 3600 * 10**9, 60 * 10**9)
    prices = Prices((("*", 2_500_000_000),), currency="EUR")
    reading = AccountsReading(months={NOVEMBER: Billed(Amounts(3660 * 10**9), charge)}, prices=prices)
    found = series(snapshot_of(Readings(accounts=reading)))
    assert found["gpucommons_accounts_month_cost"] == {(*NOVEMBER, "EUR"): 2.5}
    assert found["gpucommons_accounts_month_unpriced_gpu_seconds"] == {NOVEMBER: pytest.approx(60, abs=0.01)}
