"""gpucommons_accounts_*: what the accounts of each user cost, where prices are set."""

from collections.abc import Iterator

from gpucommons.faces.exposition.families import Family, gauge
from gpucommons.model.accounts import NO_CHARGE
from gpucommons.model.snapshot import Snapshot
from gpucommons.rules.cost import cost_columns

COST = gauge(
    "gpucommons_accounts_cost",
    "Cost of what was billed to a user in a period (today, 7d, 30d), at the prices that are set now.",
    "user",
    "period",
    "currency",
    optional=("currency",),
)
CO2 = gauge(
    "gpucommons_accounts_co2_grams",
    "CO2 of the GPU energy of a user in a period (today, 7d, 30d), at the grams per kWh that are set now.",
    "user",
    "period",
)

CATALOGUE = (COST, CO2)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    """No series where no price is set, and none for a user whose cost is not known."""
    reading = snapshot.readings.accounts
    costs, grams = [], []
    for name, period in ({} if reading is None else reading.by_period).items():
        for user, amounts in period.rows.items():
            columns = cost_columns(amounts, period.charges.get(user, NO_CHARGE), period.prices)
            costs.append(((user, name, period.prices.currency), columns.get("cost")))
            grams.append(((user, name), columns.get("co2_g")))
    yield COST.of((labels, value) for labels, value in costs if value is not None)
    yield CO2.of((labels, value) for labels, value in grams if value is not None)
