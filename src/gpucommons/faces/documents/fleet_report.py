"""GPU-hours and cost of all nodes in a month, or of twelve months: the document of /api/v1/fleet/report.

Pure, except that a month is read by a function that is given.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from gpucommons.base.periods import last_months, month
from gpucommons.faces.documents.accounts import ROW, BilledRow
from gpucommons.faces.documents.parameters import BadParameter, Parameter, Value, text, word
from gpucommons.faces.documents.schema import (
    ABSENT,
    INTEGER,
    NUMBER,
    NUMBER_OR_NULL,
    TEXT,
    Record,
    Schema,
    by_key,
    describe,
    one_of,
    or_null,
    record,
)
from gpucommons.faces.documents.values import Json
from gpucommons.faces.documents.view import HIDDEN
from gpucommons.model.fleet import FleetBilled, FleetBy, FleetMonth
from gpucommons.model.viewer import Viewer
from gpucommons.rules.privacy import find_fleet_accounts_hidden

SUMMARY = "GPU-hours, energy and cost of all nodes in a month, by user, group or month, from Prometheus"
PARAMETERS: tuple[Parameter, ...] = (
    text("month", "a calendar month such as 2026-11; default: this month", 7),
    word("by", "what the rows are; default: user. By month: this one and the eleven before it", FleetBy),
)
_LISTED_MONTHS = 12
_NONE = "(none)"
ReadMonth = Callable[[str], Awaitable[FleetMonth]]


class _Report(NamedTuple):
    by: FleetBy
    months: tuple[FleetMonth, ...]
    rows: Mapping[str, FleetBilled]

    @property
    def total(self) -> FleetBilled:
        return _sum(self.rows.values())

    @property
    def currencies(self) -> tuple[str, ...]:
        return tuple(sorted(self.total.costs))


# The columns of a node's report, without memory, which is not published by month.
_ROW = Record[BilledRow](
    {
        "cost": (NUMBER_OR_NULL, lambda row: row.costs.get("cost", ABSENT)),
        "unpriced_gpu_hours": (NUMBER, lambda row: row.costs.get("unpriced_gpu_hours", ABSENT)),
    },
    **{name: field for name, field in ROW.fields.items() if name != "memory_gib_hours"},
)


def _period_record(by: FleetBy) -> Record[_Report]:
    return Record[_Report](
        {
            "currency": (TEXT, lambda report: "".join(report.currencies) if len(report.currencies) == 1 else ABSENT),
            "cost_note": (
                describe(TEXT, "why there is no cost although nodes have prices"),
                lambda report: _cost_note(report) or ABSENT,
            ),
        },
        by=(one_of(by), lambda report: report.by.value),
        since_unix_s=(INTEGER, lambda report: report.months[0].period.since_s),
        until_unix_s=(INTEGER, lambda report: report.months[-1].period.until_s),
        **{f"{by}s": (by_key(_ROW.schema, by.value), lambda report: _rows(report))},
        total=(_ROW.schema, lambda report: _ROW.build(_bill(report.total, report.currencies))),
    )


_PERIODS = {by: _period_record(by) for by in FleetBy}
SCHEMA: Schema = record(
    hidden=or_null(HIDDEN.schema),
    accounts=describe(
        or_null(by_key({"anyOf": [period.schema for period in _PERIODS.values()]}, "month, or the first and the last")),
        "null where fleet.prometheus_url is not set, or the viewer has no name",
    ),
)


def read(given: Mapping[str, Value], now_s: float) -> tuple[FleetBy, list[str]]:
    """What the rows are, and the months to read. Raises BadParameter."""
    by = FleetBy(str(given.get("by", FleetBy.USER)))
    if by is FleetBy.MONTH:
        if "month" in given:
            raise BadParameter("month", "expected no month with by=month, which lists the last twelve")
        return by, last_months(_LISTED_MONTHS, now_s)
    name = str(given.get("month", last_months(1, now_s)[0]))
    try:
        month(name, now_s, None)
    except ValueError as error:
        raise BadParameter("month", str(error)) from None
    return by, [name]


async def document(by: FleetBy, names: Iterable[str], viewer: Viewer, read_month: ReadMonth) -> Json:
    """A viewer that does not see all gets what is billed to them; null where the viewer has no name."""
    hidden = HIDDEN.build_or_null(find_fleet_accounts_hidden(viewer))
    if not viewer.sees_accounts and viewer.user is None:
        return {"hidden": hidden, "accounts": None}
    months = tuple([_redact(await read_month(name), viewer) for name in names])
    name = months[0].name if len(months) == 1 else f"{months[0].name} to {months[-1].name}"
    return {"hidden": hidden, "accounts": {name: _PERIODS[by].build(_report(by, months))}}


def no_fleet() -> Json:
    return {"hidden": None, "accounts": None}


def _redact(use: FleetMonth, viewer: Viewer) -> FleetMonth:
    if viewer.sees_accounts:
        return use
    return use._replace(rows={key: billed for key, billed in use.rows.items() if key[0] == viewer.user})


def _report(by: FleetBy, months: tuple[FleetMonth, ...]) -> _Report:
    rows: dict[str, FleetBilled] = {}
    for use in months:
        for (user, group), billed in use.rows.items():
            name = {FleetBy.USER: user, FleetBy.GROUP: group, FleetBy.MONTH: use.name}[by] or _NONE
            rows[name] = rows.get(name, FleetBilled()).plus(billed)
    return _Report(by, months, rows)


def _rows(report: _Report) -> dict[str, Json]:
    """The greatest holder first, or the earliest month."""
    by_month = report.by is FleetBy.MONTH
    ordered = sorted(report.rows.items(), key=lambda row: (0 if by_month else -row[1].amounts.held_ns, row[0]))
    return {name: _ROW.build(_bill(billed, report.currencies)) for name, billed in ordered}


def _bill(billed: FleetBilled, currencies: tuple[str, ...]) -> BilledRow:
    """Costs in several currencies have no sum."""
    costs: dict[str, float | None] = {}
    if len(currencies) == 1:
        cost = billed.costs.get(currencies[0])
        costs["cost"] = None if cost is None else round(cost, 6)
    if currencies:
        costs["unpriced_gpu_hours"] = round(billed.unpriced_s / 3600, 6)
    return BilledRow(billed.amounts, costs)


def _cost_note(report: _Report) -> str:
    several = [currency or "no currency" for currency in report.currencies]
    return f"the nodes have prices in {' and '.join(several)}: no sum" if len(several) > 1 else ""


def _sum(rows: Iterable[FleetBilled]) -> FleetBilled:
    total = FleetBilled()
    for billed in rows:
        total = total.plus(billed)
    return total
