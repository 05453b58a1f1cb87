"""`gpucommons report`: what was held, used and left idle over a period, from the ledger."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpucommons.base.address import job_address
from gpucommons.base.periods import parse_period
from gpucommons.base.text import Printable, parse_decimal, printable_lines
from gpucommons.cli.command_line import CommandError, NotFound, say
from gpucommons.cli.fleet import PrometheusUrl, fleet_report
from gpucommons.cli.job_view import co2_text, hint_lines, job_lines, node_lines
from gpucommons.cli.options import (
    AsJson,
    TableFormat,
    load_settings,
)
from gpucommons.cli.output import Line, plain_line, show, show_lines, terminal_width
from gpucommons.cli.reader import Reader, hidden_note, readable_file, reading
from gpucommons.cli.suggestions import users
from gpucommons.cli.text_table import Format, TextTable, wrap_lines
from gpucommons.cli.why import processes_of
from gpucommons.faces.documents.values import indent
from gpucommons.model.words import By

if TYPE_CHECKING:
    from gpucommons.config.settings import Settings
    from gpucommons.model.fleet import NodeUse

_EFFICIENCY = "efficiency_ratio"
_COST, _UNPRICED, _CURRENCY = "cost", "unpriced_gpu_hours", "currency"
# What people read, by the name of the column in the API and in CSV.
_TITLES = {
    "held_gpu_hours": "held",
    "active_gpu_hours": "active",
    "idle_gpu_hours": "idle",
    "unjudged_gpu_hours": "unjudged",
    "gpu_equivalent_hours": "equivalents",
    "memory_gib_hours": "memory",
    "energy_kwh": "energy",
    "sm_gpu_hours": "sm",
    "free_gpu_hours": "free",
    "unknown_gpu_hours": "unknown",
    _COST: "cost",
    "co2_g": "CO2",
    _EFFICIENCY: "efficiency",
}
_UNITS = {"gib_hours": "GiB h", "kwh": "kWh"}
# In the other formats only: the parts of the cost.
_NOT_IN_TABLES = ("gpu_cost", "energy_cost", _UNPRICED, _CURRENCY)
# From the first on, if the terminal is narrow.
_LEFT_OUT = ("unjudged", "sm", "unknown", "memory", "free", "efficiency", "equivalents")

Document = Mapping[str, Any]


class Rows(StrEnum):
    """`model.accounts.By`, and the month of a fleet."""

    USER = "user"
    GROUP = "group"
    NAMESPACE = "namespace"
    POD = "pod"
    JOB = "job"
    DAY = "day"
    GPU = "gpu"
    MONTH = "month"


@reading("simulate")
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
    by: Annotated[Rows, typer.Option(help="What the rows are. By month: with --fleet.")] = Rows.USER,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Only what is billed to this user or pod.", show_default=False, autocompletion=users
        ),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="One job instead: a Slurm job's id, lease-ID, or a pod as NAMESPACE/POD.",
            show_default=False,
        ),
    ] = None,
    fleet: Annotated[
        bool,
        typer.Option("--fleet", help="Sum up all nodes for a month (default: this one), from Prometheus."),
    ] = False,
    prometheus: PrometheusUrl = None,
    format: TableFormat = Format.TABLE,
    as_json: AsJson = False,
    *,
    reader: Reader,
) -> None:
    """Report GPU-hours held, active and idle, memory, energy, efficiency and cost, from the ledger."""
    if since is not None and month is not None:
        raise CommandError("--since and --month exclude each other: use one of them")
    if job is not None:
        if since or month or user or fleet or by is not Rows.USER or format in (Format.CSV, Format.MARKDOWN):
            raise CommandError("--job reports one job, with --json or as text: leave the other options out")
        _report_job(reader, job, as_json or format is Format.JSON, prometheus)
        return
    if fleet:
        if since or user:
            raise CommandError("--fleet reports calendar months: use --month, and leave --since and --user out")
        document = fleet_report(reader, prometheus, {"month": month, "by": by.value})
    else:
        document = _node_report(reader, since, month, by, user, prometheus)
    if as_json or format is Format.JSON:
        show(indent(document))
        return
    if document["accounts"] is None:
        raise CommandError(f"accounts of other owners are {document['hidden']['sentence']}")
    (period,) = document["accounts"].values()
    if format is not Format.TABLE:
        show(render(period, format))
        return
    show_lines(table_lines(period, terminal_width()))
    if user is not None and not any(period["total"].values()):
        say(f"no use by {user!r} in this period; 'gpucommons report' lists the users")
    show(hidden_note(document, "accounts"))


def _node_report(
    reader: Reader, since: str | None, month: str | None, by: "Rows", user: str | None, prometheus: str | None
) -> Document:
    if prometheus is not None:
        raise CommandError("--prometheus belongs to --fleet, or to --job: the nodes of one job")
    if by is Rows.MONTH:
        raise CommandError("--by month sums up all nodes: use it with --fleet")
    document = reader.ask("report", {"since": since, "month": month, "by": by.value, "user": user})
    return own_report(reader, since, month, By(by.value), user) if document is None else document


def _report_job(reader: Reader, id: str, as_json: bool, prometheus: str | None) -> None:
    nodes = _nodes_of_job(reader, id, prometheus)
    document = reader.ask("job", {"id": id})
    if document is None:
        try:
            document = _own_job(reader, id)
        except CommandError:
            # A machine without an agent: Prometheus has what the nodes of the job reported.
            if not nodes:
                raise
            document = {"hidden": None, "job": None}
    job = document["job"]
    limits = _limits(reader, id)
    document = {**document, "limits": limits} if limits else document
    hints = _node_hints(nodes)
    if nodes:
        document = {**document, "nodes": {name: asdict(use) for name, use in nodes.items()}, "node_hints": hints}
    if job is None and nodes and not as_json:
        url = job_address(load_settings(reader.config, {}).settings.fleet.job_url, id, None, None)
        link = [] if url is None else [f"dashboard: {url}"]
        title = f"job {id} on {len(nodes)} node{'s' if len(nodes) > 1 else ''}, from Prometheus"
        show(printable_lines([title, *node_lines(nodes), *hint_lines(hints), *link]))
        return
    if job is None and not nodes:
        hidden = document["hidden"]
        why = f", or it is another user's, which are {hidden['sentence']}" if hidden else ""
        raise NotFound(f"no job {id!r} in the ledger{why}: 'gpucommons report --by job' lists the jobs")
    if as_json:
        show(indent(document))
    else:
        of_all = hint_lines(hints) if len(nodes) > 1 else []
        lines = [*job_lines(job), *_limit_lines(limits), *node_lines(nodes), *of_all]
        show(printable_lines(wrap_lines(lines, terminal_width())))


def _node_hints(nodes: "Mapping[str, NodeUse]") -> list[str]:
    if not nodes:
        return []
    from gpucommons.faces.fleet.jobs import node_hints

    return list(node_hints(nodes))


def _limits(reader: Reader, id: str) -> Document:
    """What limits each process of the job now, by pid: the sentence of `why`. Empty for a job that has ended."""
    if reader.agent is None:
        return {}
    rows = processes_of(reader, id).values()
    return {str(row["pid"]): {"name": row["name"], **row["limit"]} for row in rows if row["limit"]}


def _limit_lines(limits: Document) -> list[str]:
    return [f"now: {limit['name']} (pid {pid}): {limit['sentence']}" for pid, limit in limits.items()]


def _nodes_of_job(reader: Reader, id: str, prometheus: str | None) -> "dict[str, NodeUse]":
    """What a Slurm job used on all of its nodes, where a Prometheus is known. It is asked only for Slurm's jobs."""
    if parse_decimal(id) is None or not (prometheus or load_settings(reader.config, {}).settings.fleet.prometheus_url):
        return {}
    from gpucommons.cli.slurm import nodes_of_job

    return nodes_of_job(id, prometheus, reader.config)


def _own_job(reader: Reader, id: str) -> Document:
    """The document without an agent, as `own_report`."""
    from gpucommons.agent.setting_rules import prices_of
    from gpucommons.faces.documents.job import BilledJob, job_document
    from gpucommons.ledger.errors import LedgerError
    from gpucommons.ledger.query import read_job

    try:
        settings, path = _own_ledger(reader)
        accounts = read_job(path, id)
    except LedgerError as error:
        raise CommandError(str(error)) from error
    reader.say_alone(f"this command reads {path}")
    billed = None if accounts is None else BilledJob(accounts, prices_of(settings.accounts), settings.fleet.job_url)
    job = None if billed is None else job_document(billed)
    return {"hidden": None, "job": job}


def own_report(reader: Reader, since: str | None, month: str | None, by: By, user: str | None) -> Document:
    """The document without an agent: from the ledger file, if this user may read it."""
    # Imported here: with an agent, they are not needed.
    from gpucommons.agent.setting_rules import prices_of
    from gpucommons.faces.documents.report import ReportQuery
    from gpucommons.faces.documents.report import report as report_document
    from gpucommons.ledger.errors import LedgerError
    from gpucommons.ledger.query import accounts_of, read_period

    try:
        name, period = parse_period(since, month, time.time(), None)
        settings, path = _own_ledger(reader)
        usage = read_period(path, *period, by_day=by is By.DAY)
    except (LedgerError, ValueError) as error:
        raise CommandError(str(error)) from error
    reader.say_alone(f"this command reads {path}")
    accounts = accounts_of(usage, by, user, prices_of(settings.accounts))
    return {"hidden": None, "accounts": report_document(ReportQuery(name, period, by, user), accounts)}


def _own_ledger(reader: Reader) -> "tuple[Settings, Path]":
    """The settings, and the ledger file of this user or of this node."""
    from gpucommons.agent.setting_rules import find_scenario
    from gpucommons.config.state_directory import file_of_node, ledger_file

    scenario = find_scenario(reader.simulate)
    settings = load_settings(reader.config, {}).settings
    own = ledger_file(settings, scenario.name if scenario else None)
    return settings, readable_file(reader, own, file_of_node(own), "ledger")


def render(period: Document, format: Format) -> Printable:
    """As CSV or Markdown, with exact numbers. `period` is one period of the API's document."""
    columns = _columns(period)
    table = _table(period, columns, [period["by"], *columns], _exact)
    if format is Format.CSV:
        return table.as_csv()
    notes = [line for note in _notes(period, ".4f") for line in ("", note)]
    return printable_lines([_title(period), "", *table.markdown_lines(), *notes])


def table_lines(period: Document, width: int | None) -> list[Line]:
    """For people: short titles and rounded numbers with their units."""
    columns = [column for column in _columns(period) if column not in _NOT_IN_TABLES]
    money = f"cost {period[_CURRENCY]}" if _CURRENCY in period else "cost"
    titles = [money if column == _COST else _TITLES[column] for column in columns]
    table = _table(period, columns, [period["by"], *titles], _human)
    return [
        plain_line(_title(period)),
        [],
        *table.fit(width),
        *(plain_line(note) for note in wrap_lines(_notes(period, ".2f"), width)),
    ]


def _title(period: Document) -> str:
    return f"{_when(period['since_unix_s'])} to {_when(period['until_unix_s'])}, by {period['by']}"


def _notes(period: Document, digits: str) -> list[str]:
    gaps = period.get("gap_hours", {})
    notes = [f"not observed, not billed: {hours:{digits}} h ({reason})" for reason, hours in gaps.items()]
    notes += [f"cost: {period['cost_note']}"] if "cost_note" in period else []
    unpriced = period["total"].get(_UNPRICED)
    if unpriced:
        notes.append(f"without a price: {unpriced:{digits}} h (no pattern of price_per_gpu_hour matches these GPUs)")
    return notes


def _columns(period: Document) -> list[str]:
    currency = [_CURRENCY] if _CURRENCY in period else []
    return [*(name for name in period["total"] if name != _EFFICIENCY), *currency, _EFFICIENCY]


def _table(
    period: Document, columns: Sequence[str], header: Sequence[str], cell: Callable[[str, float | None], str]
) -> TextTable:
    def cells(name: str, row: Document) -> list[str]:
        return [name, *(period[column] if column == _CURRENCY else cell(column, row.get(column)) for column in columns)]

    return TextTable(
        header,
        [cells(name, row) for name, row in period[f"{period['by']}s"].items()],
        cells("total", period["total"]),
        frozenset(range(1, len(columns) + 1)),
        shortest={period["by"]: 12},
        left_out=[title for title in _LEFT_OUT if title in header],
    )


def _exact(column: str, value: float | None) -> str:
    """A ten-thousandth of an hour is a third of a second."""
    return "" if value is None else f"{value:.{3 if column == _EFFICIENCY else 4}f}"


def _human(column: str, value: float | None) -> str:
    """Three digits and the unit: `0.86 h`, `1.2 kWh`."""
    if value is None:
        return ""
    if column == _EFFICIENCY:
        return f"{value:.0%}"
    if column == _COST:
        return f"{value:.2f}"
    if column == "co2_g":
        return co2_text(value)
    unit = next((unit for end, unit in _UNITS.items() if column.endswith(end)), "h")
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def _when(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%Y-%m-%d %H:%M %Z")
