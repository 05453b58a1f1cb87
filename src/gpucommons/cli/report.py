"""`gpucommons report`: what was held, used and wasted over a period, from the ledger."""

import json
import sys
import time
from dataclasses import fields
from datetime import datetime
from decimal import Decimal
from typing import Annotated

import typer

from gpucommons.cli.options import ConfigFile, Simulate, load_settings, scenario_named
from gpucommons.cli.run import CommandError
from gpucommons.cli.text_table import Format, TextTable
from gpucommons.config.state_directory import ledger_file
from gpucommons.ledger.errors import LedgerError
from gpucommons.ledger.period import Period, month, parse_since
from gpucommons.ledger.query import read_period
from gpucommons.ledger.report import By, Report, ReportRow
from gpucommons.ledger.report import report as make_report

_DEFAULT_SINCE = "30d"
_OF_GPUS = ("free_hours", "unknown_hours")
_EFFICIENCY = "efficiency_ratio"
_COLUMNS = {
    "held_hours": "held_gpu_hours",
    "active_hours": "active_gpu_hours",
    "wasted_hours": "wasted_gpu_hours",
    "unjudged_hours": "unjudged_gpu_hours",
    "equivalent_hours": "gpu_equivalent_hours",
    "memory_gib_hours": "memory_gib_hours",
    "energy_kwh": "energy_kwh",
    "sm_hours": "sm_gpu_hours",
    "free_hours": "free_gpu_hours",
    "unknown_hours": "unknown_gpu_hours",
}


def report(
    since: Annotated[
        str | None,
        typer.Option(metavar="30d|DATE", help="From so long ago, or from a date. Default: 30d.", show_default=False),
    ] = None,
    month: Annotated[
        str | None, typer.Option(metavar="YYYY-MM", help="A calendar month instead.", show_default=False)
    ] = None,
    by: Annotated[By, typer.Option(help="One row for each of these.")] = By.USER,
    user: Annotated[str | None, typer.Option(metavar="NAME", help="Only this user's.", show_default=False)] = None,
    format: Annotated[Format, typer.Option(help="How to print it.")] = Format.TABLE,
    config: ConfigFile = None,
    simulate: Simulate = None,
) -> None:
    """Report GPU-hours held, active and wasted, memory, energy and efficiency, from the ledger."""
    scenario = scenario_named(simulate)
    settings = load_settings(config, {}).settings
    period = _period(since, month, time.time())
    try:
        usage = read_period(ledger_file(settings, scenario.name if scenario else None), *period)
    except LedgerError as error:
        raise CommandError(str(error)) from error
    sys.stdout.write(rendered(make_report(usage, by, user), format))


def rendered(made: Report, format: Format) -> str:
    if format is Format.JSON:
        return json.dumps(_as_json(made), indent=2, ensure_ascii=False) + "\n"
    grid = _grid(made)
    if format is Format.CSV:
        return grid.as_csv()
    told = f"{_when(made.since_s)} to {_when(made.until_s)}, by {made.by}"
    notes = [f"not seen, billed to nobody: {hours} h ({reason})" for reason, hours in made.gap_hours.items()]
    if format is Format.MARKDOWN:
        return f"{told}\n\n{grid.as_markdown()}" + "".join(f"\n{note}\n" for note in notes)
    return f"{told}\n\n{grid.as_table()}" + "".join(f"{note}\n" for note in notes)


def _period(since: str | None, of_month: str | None, now_s: float) -> Period:
    if since is not None and of_month is not None:
        raise CommandError("--since and --month exclude each other: give one")
    try:
        if of_month is not None:
            return month(of_month, now_s, None)
        since_s = parse_since(since or _DEFAULT_SINCE, now_s, None)
    except ValueError as error:
        raise CommandError(str(error)) from error
    # What happened in this minute is filed under its beginning.
    return Period(since_s, max(since_s, int(now_s) + 60))


def _names(made: Report) -> list[str]:
    shown = [item.name for item in fields(ReportRow) if item.name in _COLUMNS]
    return [name for name in shown if name not in _OF_GPUS or made.by is By.GPU]


def _grid(made: Report) -> TextTable:
    names = _names(made)
    header = [made.by.value, *(_COLUMNS[name] for name in names), _EFFICIENCY]
    return TextTable(
        header,
        [_cells(row, names) for row in made.rows],
        _cells(made.total, names),
        frozenset(range(1, len(header))),
    )


def _cells(row: ReportRow, names: list[str]) -> list[str]:
    return [row.name, *(_cell(getattr(row, name)) for name in names), _cell(row.efficiency)]


def _cell(value: Decimal | None) -> str:
    return "" if value is None else str(value)


def _as_json(made: Report) -> dict[str, object]:
    return {
        "by": made.by.value,
        "since_unix_s": made.since_s,
        "until_unix_s": made.until_s,
        "rows": [{made.by.value: row.name, **_numbers(row, _names(made))} for row in made.rows],
        "total": _numbers(made.total, _names(made)),
        "gap_hours": {reason: float(hours) for reason, hours in made.gap_hours.items()},
    }


def _numbers(row: ReportRow, names: list[str]) -> dict[str, float | None]:
    values = {_COLUMNS[name]: getattr(row, name) for name in names} | {_EFFICIENCY: row.efficiency}
    return {name: None if value is None else float(value) for name, value in values.items()}


def _when(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%Y-%m-%d %H:%M %Z")
