"""The ledger: what was billed, how the file is written, and the event log."""

from collections.abc import Iterator

from gpucommons.faces.dialects.gpucommons.owners import AMOUNTS
from gpucommons.faces.exposition.families import Family, Metric, counter, gauge
from gpucommons.model.accounts import NO_CHARGE, AccountsReading
from gpucommons.model.cost import cost_columns
from gpucommons.model.snapshot import Snapshot

# gpucommons_ledger_*: whether the ledger is written, what waits, and what is missing from it.

LEDGER_WRITING = gauge(
    "gpucommons_ledger_writing", "Result of the last flush of the ledger: 1 if on disk, 0 if it failed."
)
DURABLE = gauge("gpucommons_ledger_durable", "Durability of the owners' totals: 1 if they survive a restart, 0 if not.")
LAST_FLUSH = gauge("gpucommons_ledger_last_flush_timestamp_seconds", "Unix time of the last successful flush.")
BACKLOG = gauge("gpucommons_ledger_backlog_seconds", "Usage in memory that is not written yet.")
LOST = counter("gpucommons_ledger_lost_seconds_total", "Usage dropped because it could not be written for an hour.")
FAILURES = counter("gpucommons_ledger_failures_total", "Flushes of the ledger that failed, by reason.", "reason")
GAPS = counter(
    "gpucommons_ledger_gap_seconds_total", "Time not billed to any owner, by the reason it was not observed.", "reason"
)
SIZE = gauge("gpucommons_ledger_file_bytes", "Size of the ledger file.")

LEDGER_CATALOGUE = (LEDGER_WRITING, DURABLE, LAST_FLUSH, BACKLOG, LOST, FAILURES, GAPS, SIZE)


def collect_ledger(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.ledger
    # A node on which no GPU was ever seen keeps no ledger.
    if reading is None or not reading.ledger.begun:
        return
    ledger = reading.ledger
    yield LEDGER_WRITING.value(int(ledger.writing))
    yield DURABLE.value(int(ledger.durable))
    yield LAST_FLUSH.value(ledger.last_flush_wall_s)
    yield BACKLOG.value(ledger.backlog_s)
    yield LOST.value(ledger.lost_s)
    yield FAILURES.of(((reason,), count) for reason, count in ledger.failures.items())
    yield GAPS.of(((reason,), ns / 1e9) for reason, ns in ledger.gap_ns.items())
    yield SIZE.value(ledger.file_bytes)


# gpucommons_accounts_*: what the accounts of each user cost, where prices are set.

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


def _month_gauge(what: str, help: str, *labels: str) -> Metric:
    name = f"gpucommons_accounts_month_{what}"
    return gauge(name, f"{help}, in a calendar month.", "month", "user", "group", *labels, optional=("group", *labels))


# A gauge of the ledger's sum, and not a counter: the sum over nodes is exact, whenever Prometheus scraped them.
_MONTH = tuple(
    (_month_gauge(what, help), AMOUNTS[what])
    for what, help in (
        ("held_gpu_seconds", "Time for which a user held GPUs and MIG devices, divided among sharers"),
        ("gpu_equivalent_seconds", "Held time of a user, weighted by the held fraction of the GPU"),
        ("active_gpu_seconds", "Part of the held time in which the user's processes used the GPU"),
        ("idle_gpu_seconds", "Part of the held time in which the user did not use the GPU"),
        ("sm_gpu_seconds", "Held time of a user, weighted by the SM utilization"),
    )
)
MONTH_ENERGY = _month_gauge("energy_joules", "GPU energy due to a user")
MONTH_COST = _month_gauge("cost", "Cost of what was billed to a user at the prices that are set now", "currency")
MONTH_UNPRICED = _month_gauge(
    "unpriced_gpu_seconds", "Held time of a user on GPUs without a price, where prices are set"
)

ACCOUNTS_CATALOGUE = (COST, CO2, *(metric for metric, _ in _MONTH), MONTH_ENERGY, MONTH_COST, MONTH_UNPRICED)


def collect_accounts(snapshot: Snapshot) -> Iterator[Family]:
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
    yield from _collect_months(AccountsReading() if reading is None else reading)


def _collect_months(reading: AccountsReading) -> Iterator[Family]:
    for metric, amount in _MONTH:
        yield metric.of((tuple(key), amount(billed.amounts)) for key, billed in reading.months.items())
    # The ledger stores 0 for "not measured"; no GPU draws 0 W.
    yield MONTH_ENERGY.of(
        (tuple(key), AMOUNTS["energy_joules"](billed.amounts))
        for key, billed in reading.months.items()
        if billed.amounts.energy_uj
    )
    columns = {key: cost_columns(*billed, reading.prices) for key, billed in reading.months.items()}
    currency = reading.prices.currency
    yield MONTH_COST.of(
        ((*key, currency), cost) for key, row in columns.items() if (cost := row.get("cost")) is not None
    )
    yield MONTH_UNPRICED.of(
        (tuple(key), hours * 3600) for key, row in columns.items() if (hours := row.get("unpriced_gpu_hours"))
    )


# gpucommons_event_log_writing: whether the agent's own event log can be written.

EVENT_LOG_WRITING = gauge(
    "gpucommons_event_log_writing", "State of the agent's event log: 1 if it can be written, 0 if not."
)

EVENT_LOG_CATALOGUE = (EVENT_LOG_WRITING,)


def collect_event_log(snapshot: Snapshot) -> Iterator[Family]:
    reading = snapshot.readings.ledger
    if reading is not None and reading.ledger.begun:
        yield EVENT_LOG_WRITING.value(int(reading.event_log_writing))


CATALOGUE = (
    *LEDGER_CATALOGUE,
    *ACCOUNTS_CATALOGUE,
    *EVENT_LOG_CATALOGUE,
)


def collect(snapshot: Snapshot) -> Iterator[Family]:
    yield from collect_ledger(snapshot)
    yield from collect_accounts(snapshot)
    yield from collect_event_log(snapshot)
