"""`gpucommons report`: what was held, used and left idle over a period, from the ledger."""

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import typer

from gpucommons.base.period import parse_period
from gpucommons.base.printable import Printable, printable_lines
from gpucommons.cli.command_line import CommandError
from gpucommons.cli.options import (
    AsJson,
    CaFile,
    ConfigFile,
    Connect,
    PasswordFile,
    Simulate,
    load_settings,
    scenario_named,
)
from gpucommons.cli.output import show
from gpucommons.cli.own_files import readable_file
from gpucommons.cli.reader import Reader, hidden_note
from gpucommons.cli.text_table import Format, TextTable
from gpucommons.faces.documents.values import indented
from gpucommons.model.accounts import By

_EFFICIENCY = "efficiency_ratio"

Document = Mapping[str, Any]


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
    as_json: AsJson = False,
    connect: Connect = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
    config: ConfigFile = None,
    simulate: Simulate = None,
) -> None:
    """Report GPU-hours held, active and idle, memory, energy and efficiency, from the ledger."""
    if since is not None and month is not None:
        raise CommandError("--since and --month exclude each other: use one of them")
    reader = Reader(connect, password_file, ca_file, config, simulate)
    document = reader.ask("report", {"since": since, "month": month, "by": by.value, "user": user})
    if document is None:
        document = own_report(reader, since, month, by, user)
    if as_json or format is Format.JSON:
        show(indented(document))
        return
    if document["accounts"] is None:
        raise CommandError(f"accounts of other owners are {document['hidden']['sentence']}")
    (period,) = document["accounts"].values()
    show(rendered(period, format))
    if format is Format.TABLE:
        show(hidden_note(document, "accounts"))


def own_report(reader: Reader, since: str | None, month: str | None, by: By, user: str | None) -> Document:
    """The document without an agent: from the ledger file, if this user may read it."""
    # Imported here: with an agent, they are not needed.
    from gpucommons.config.state_directory import file_of_node, ledger_file
    from gpucommons.faces.documents.report import ReportQuery
    from gpucommons.faces.documents.report import report as report_document
    from gpucommons.ledger.accounts import accounts_of
    from gpucommons.ledger.errors import LedgerError
    from gpucommons.ledger.query import read_period

    scenario = scenario_named(reader.simulate)
    own = ledger_file(load_settings(reader.config, {}).settings, scenario.name if scenario else None)
    try:
        name, period = parse_period(since, month, time.time(), None)
        path = readable_file(reader, own, file_of_node(own), "ledger")
        usage = read_period(path, *period)
    except (LedgerError, ValueError) as error:
        raise CommandError(str(error)) from error
    reader.say_alone(f"this command reads {path}")
    found = report_document(ReportQuery(name, period, by, user), accounts_of(usage, by, user))
    return {"hidden": None, "accounts": found}


def rendered(period: Document, format: Format) -> Printable:
    """`period` is one period of the API's document."""
    table = _table(period)
    if format is Format.CSV:
        return table.as_csv()
    title = f"{_when(period['since_unix_s'])} to {_when(period['until_unix_s'])}, by {period['by']}"
    notes = [f"not observed, not billed: {hours:.4f} h ({reason})" for reason, hours in period["gap_hours"].items()]
    if format is Format.MARKDOWN:
        return printable_lines([title, "", *table.markdown_lines(), *(line for note in notes for line in ("", note))])
    return printable_lines([title, "", *table.lines(), *notes])


def _table(period: Document) -> TextTable:
    whole = period["total"]
    columns = [*(name for name in whole if name != _EFFICIENCY), _EFFICIENCY]

    def cells(name: str, row: Document) -> list[str]:
        return [name, *(_cell(column, row.get(column)) for column in columns)]

    return TextTable(
        [period["by"], *columns],
        [cells(name, row) for name, row in period[f"{period['by']}s"].items()],
        cells("total", whole),
        frozenset(range(1, len(columns) + 1)),
    )


def _cell(column: str, value: float | None) -> str:
    """A ten-thousandth of an hour is a third of a second."""
    return "" if value is None else f"{value:.{3 if column == _EFFICIENCY else 4}f}"


def _when(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%Y-%m-%d %H:%M %Z")
