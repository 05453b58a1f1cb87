"""GPU-hours and energy over any period, from the ledger: the query, the schema and the document of /api/v1/report.

Pure, except that the ledger is read by a function that is given.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from gpucommons.base.periods import Period, parse_period
from gpucommons.faces.documents.accounts import period_document, period_record
from gpucommons.faces.documents.parameters import BadParameter, Parameter, Value, text, word
from gpucommons.faces.documents.schema import Schema, by_key, or_null, record
from gpucommons.faces.documents.values import Json
from gpucommons.faces.documents.view import ENVELOPE, View
from gpucommons.model.accounts import PeriodAccounts
from gpucommons.model.viewer import Viewer
from gpucommons.model.words import By

SUMMARY = "GPU-hours and energy of any period, by user, group, namespace, pod, job, day or GPU"
PARAMETERS: tuple[Parameter, ...] = (
    text("since", "start of the period: an age such as 30d, or a date; default: 30d", 64),
    text("month", "this calendar month instead, such as 2026-11", 64),
    word("by", "what the rows are; default: user", By),
    text("user", "only what is billed to this user or pod"),
)
SCHEMA: Schema = record(
    **ENVELOPE,
    accounts=or_null(by_key({"anyOf": [period_record(by, str(by)).schema for by in By]}, "period, as it was given")),
)


class ReportQuery(NamedTuple):
    """`name` is the period as it was given. With `user`, only what is billed to that name."""

    name: str
    period: Period
    by: By = By.USER
    user: str | None = None


class LedgerUnreadable(Exception):
    """The ledger cannot be read: one line."""


ReadLedger = Callable[[ReportQuery], Awaitable[PeriodAccounts]]
"""Raises LedgerUnreadable."""


def read(given: Mapping[str, Value], now_s: float) -> ReportQuery:
    """Raises BadParameter."""
    since, month = (None if name not in given else str(given[name]) for name in ("since", "month"))
    try:
        name, period = parse_period(since, month, now_s, None)
    except ValueError as error:
        raise BadParameter("since" if month is None else "month", str(error)) from None
    return ReportQuery(name, period, By(str(given.get("by", By.USER))), str(given["user"]) if "user" in given else None)


async def document(view: View, viewer: Viewer, query: ReportQuery, ledger: ReadLedger) -> Json:
    """A viewer that does not see all gets what is billed to them; null where the viewer has no name."""
    accounts: Json = None
    if viewer.sees_accounts:
        accounts = report(query, await ledger(query))
    elif viewer.user is not None and query.user in (None, viewer.user):
        accounts = report(query, await ledger(query._replace(user=viewer.user)))
    return {**view.envelope(), "accounts": accounts}


def report(query: ReportQuery, period: PeriodAccounts) -> Json:
    return {query.name: period_document(period)}
