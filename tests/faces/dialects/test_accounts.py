"""gpucommons_accounts_*: the cost and the CO2 of the accounts, equal to the API's, and only where a price is set."""

from typing import Any

from demo_node import DemoNode
from gpucommons.faces.dialects.gpucommons.accounts import CO2, COST, collect_accounts
from gpucommons.faces.documents.accounts import accounts
from gpucommons.ledger.query import PeriodUsage, accounts_of
from gpucommons.model.accounts import AccountsReading, Amounts
from gpucommons.model.snapshot import Readings, Snapshot
from gpucommons.model.words import By
from ledger.builders import ALICE, GPU
from played import snapshot_of


def series(snapshot: Snapshot) -> dict[str, dict[tuple[str, ...], float]]:
    return {family.metric.name: dict(family.points) for family in collect_accounts(snapshot)}


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


def test_without_prices_there_are_no_series() -> None:
    usage = PeriodUsage(0, 60, {(GPU, ALICE): Amounts(10**12, energy_uj=10**12)})
    reading = AccountsReading({"today": accounts_of(usage, By.USER)})
    assert series(snapshot_of(Readings(accounts=reading))) == {COST.name: {}, CO2.name: {}}
    assert series(snapshot_of(Readings())) == {COST.name: {}, CO2.name: {}}
