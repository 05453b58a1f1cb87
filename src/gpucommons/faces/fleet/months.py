"""What was billed on all nodes in a calendar month, from the series that the rules of fleet.yml record. Pure.

Each agent publishes the sums of its ledger for this month; the rules add them up by user and group. So a month is
as many series as there are users, however many nodes, and its sums are those of the ledgers.
"""

from collections.abc import Iterator, Mapping, Sequence

from gpucommons.base.periods import Period, month
from gpucommons.faces.fleet.queries import Sample
from gpucommons.model.accounts import Amounts
from gpucommons.model.fleet import FleetBilled, FleetMonth

COST = "cost"
_UNPRICED = "unpriced_gpu_seconds"
# The recorded quantity, the field of the amounts, and how many of its units the quantity's unit has.
_AMOUNTS = {
    "held_gpu_seconds": ("held_ns", 10**9),
    "gpu_equivalent_seconds": ("equivalent_ns", 10**9),
    "active_gpu_seconds": ("active_ns", 10**9),
    "idle_gpu_seconds": ("idle_ns", 10**9),
    "sm_gpu_seconds": ("sm_ns", 10**9),
    "energy_joules": ("energy_uj", 10**6),
}
QUANTITIES = (*_AMOUNTS, COST, _UNPRICED)
LABELS = ("user", "group", "currency")
# A month is recorded until its agents no longer publish it. The value of its end is searched for this long.
_RECORDED_AFTER_S = 7 * 86_400
_SEARCHED = "7d"


def month_query(quantity: str, name: str) -> str:
    """Asked at `query_time` of the month."""
    return f'last_over_time(gpucommons:fleet_month_{quantity}:sum{{month="{name}"}}[{_SEARCHED}])'


def query_time(period: Period, now_s: float) -> float:
    return min(now_s, period.until_s + _RECORDED_AFTER_S)


def fleet_month(name: str, now_s: float, answers: Mapping[str, Sequence[Sample]]) -> FleetMonth:
    """`answers` by quantity. Raises ValueError where the name is not a month."""
    rows: dict[tuple[str, str], FleetBilled] = {}
    for quantity, sample, value in _values(answers):
        key = (sample.labels.get("user", ""), sample.labels.get("group", ""))
        rows[key] = rows.get(key, FleetBilled()).plus(_bill(quantity, sample, value))
    return FleetMonth(name, month(name, now_s, None), rows)


def _values(answers: Mapping[str, Sequence[Sample]]) -> Iterator[tuple[str, Sample, float]]:
    for quantity, samples in answers.items():
        yield from ((quantity, sample, sample.value) for sample in samples if sample.value is not None)


def _bill(quantity: str, sample: Sample, value: float) -> FleetBilled:
    if quantity == COST:
        return FleetBilled(costs={sample.labels.get("currency", ""): value})
    if quantity == _UNPRICED:
        return FleetBilled(unpriced_s=value)
    field, unit = _AMOUNTS[quantity]
    return FleetBilled(Amounts(**{field: round(value * unit)}))
