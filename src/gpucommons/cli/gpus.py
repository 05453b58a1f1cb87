"""`gpucommons gpus`: the GPUs of this node, as a table or as the API's JSON."""

from typing import Annotated

import typer

from gpucommons.cli.fleet import OfFleet, PrometheusUrl, show_fleet
from gpucommons.cli.gpus_view import exact_gpus, gpu_lines, missing, problem_lines, summary_lines
from gpucommons.cli.options import AsJson, TableFormat
from gpucommons.cli.output import show, show_line, show_lines, terminal_width
from gpucommons.cli.reader import Reader, reading
from gpucommons.cli.text_table import Format
from gpucommons.faces.documents.values import indent

# Kinds of problems that leave a GPU of the node without an answer.
_NOT_ANSWERING = ("driver", "gpu_missing", "gpu_lost")


@reading("simulate", "procfs")
def gpus(
    wide: Annotated[bool, typer.Option("--wide", help="Show UUIDs too, even if lines exceed the terminal.")] = False,
    fleet: OfFleet = False,
    prometheus: PrometheusUrl = None,
    format: TableFormat = Format.TABLE,
    as_json: AsJson = False,
    *,
    reader: Reader,
) -> None:
    """List the GPUs: use, memory, heat, power, owner and state. Exit status 1 if one of the node's GPUs is lost."""
    as_json = as_json or format is Format.JSON
    if fleet or prometheus:
        show_fleet(reader, prometheus, Format.JSON if as_json else format)
        return
    document = reader.get("gpus")
    judged = reader.get("problems")
    if as_json:
        show(indent(document))
    elif document["gpus"] is None:
        show_line(missing(reader.get("snapshot")))
        show_lines(problem_lines(judged["problems"], terminal_width()))
    elif format is not Format.TABLE:
        show(exact_gpus(document["gpus"], reader.get("slots")["slots"]).render(format))
    else:
        show_lines(summary_lines(judged["summary"], terminal_width()))
        show_lines(gpu_lines(document["gpus"], reader.get("slots")["slots"], terminal_width(), wide))
        show_lines(problem_lines(judged["problems"], terminal_width()))
    if any(problem["kind"] in _NOT_ANSWERING for problem in judged["problems"].values()):
        raise typer.Exit(1)
