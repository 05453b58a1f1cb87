"""`gpucommons report`: what was held, used and left idle over a period, from the ledger."""

import math
import time
from datetime import datetime
from typing import Annotated

import typer

from gpucommons.base.printable import Printable, printable_lines
from gpucommons.cli.options import ConfigFile, Simulate, load_settings, scenario_named
from gpucommons.cli.output import show
from gpucommons.cli.run import CommandError
from gpucommons.cli.text_table import Format, TextTable
from gpucommons.config.state_directory import ledger_file
from gpucommons.faces.documents.accounts import Row, hours, period_document, rows, total
from gpucommons.faces.documents.values import indented
from gpucommons.ledger.accounts import accounts_of
from gpucommons.ledger.errors import LedgerError
from gpucommons.ledger.period import Period, month, parse_since
from gpucommons.ledger.query import read_period
from gpucommons.model.accounts import By, PeriodAccounts

_DEFAULT_SINCE = "30d"
_EFFICIENCY = "efficiency_ratio"


def report(
    since: Annotated[
        str | None,
        typer.Option(
            metavar="30d|DATE", help="Start of the period: an age or a date. Default: 30d.", show_default=False
        ),
    ] = None,
    month: Annotated[
        str | None,
        typer.Option(metavar="YYYY-MM", help="Report this calendar month instead.", show_default=False),
    ] = None,
    by: Annotated[By, typer.Option(help="What the rows are.")] = By.USER,
    user: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only what is billed to this user or pod.", show_default=False),
    ] = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.TABLE,
    config: ConfigFile = None,
    simulate: Simulate = None,
) -> None:
    """Report GPU-hours held, active and idle, memory, energy and efficiency, from the ledger."""
    scenario = scenario_named(simulate)
    settings = load_settings(config, {}).settings
    period = _period(since, month, time.time())
    try:
        usage = read_period(ledger_file(settings, scenario.name if scenario else None), *period)
    except LedgerError as error:
        raise CommandError(str(error)) from error
    show(rendered(accounts_of(usage, by, user), since or month or _DEFAULT_SINCE, format))


def rendered(period: PeriodAccounts, name: str, format: Format) -> Printable:
    """`name` is the key of the period in the JSON document, as in the API."""
    if format is Format.JSON:
        return indented({"accounts": {name: period_document(period)}})
    table = _table(period)
    if format is Format.CSV:
        return table.as_csv()
    title = f"{_when(period.since_s)} to {_when(period.until_s)}, by {period.by}"
    notes = [f"not observed, not billed: {hours(ns):.4f} h ({reason})" for reason, ns in period.gap_ns.items()]
    if format is Format.MARKDOWN:
        return printable_lines([title, "", *table.markdown_lines(), *(line for note in notes for line in ("", note))])
    return printable_lines([title, "", *table.lines(), *notes])


def _period(since: str | None, of_month: str | None, now_s: float) -> Period:
    if since is not None and of_month is not None:
        raise CommandError("--since and --month exclude each other: use one of them")
    try:
        if of_month is not None:
            return month(of_month, now_s, None)
        since_s = parse_since(since or _DEFAULT_SINCE, now_s, None)
    except ValueError as error:
        raise CommandError(str(error)) from error
    return Period(since_s, max(since_s, math.ceil(now_s)))


def _table(period: PeriodAccounts) -> TextTable:
    whole = total(period)
    columns = [*(name for name in whole if name != _EFFICIENCY), _EFFICIENCY]

    def cells(name: str, row: Row) -> list[str]:
        return [name, *(_cell(column, row.get(column)) for column in columns)]

    return TextTable(
        [period.by.value, *columns],
        [cells(name, row) for name, row in rows(period).items()],
        cells("total", whole),
        frozenset(range(1, len(columns) + 1)),
    )


def _cell(column: str, value: float | None) -> str:
    """A ten-thousandth of an hour is a third of a second."""
    return "" if value is None else f"{value:.{3 if column == _EFFICIENCY else 4}f}"


def _when(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%Y-%m-%d %H:%M %Z")
