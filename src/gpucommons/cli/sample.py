"""`gpucommons sample`: take one sample, print it, exit."""

from enum import StrEnum
from typing import Annotated

import typer

from gpucommons.cli.command_line import CommandError
from gpucommons.cli.one_sample import api_document, take_sample
from gpucommons.cli.options import AsJson, ConfigFile, Procfs, Simulate
from gpucommons.cli.output import show, show_data
from gpucommons.faces.dialects.all import DIALECTS
from gpucommons.faces.documents.values import indent


class SampleFormat(StrEnum):
    TEXT = "text"
    OPENMETRICS = "openmetrics"
    JSON = "json"


_DIALECTS = ", ".join(dialect.name for dialect in DIALECTS)


def sample(
    dialect: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Print one dialect: {_DIALECTS}. Default: those of the main /metrics.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[
        SampleFormat, typer.Option(help="Output format; json is the API's document of /api/v1/snapshot.")
    ] = SampleFormat.TEXT,
    as_json: AsJson = False,
    config: ConfigFile = None,
    simulate: Simulate = None,
    procfs: Procfs = None,
) -> None:
    """Print one sample of this node, within 3 seconds."""
    if dialect is not None and dialect not in {served.name for served in DIALECTS}:
        raise CommandError(f"--dialect: unknown dialect {dialect!r}; use one of {_DIALECTS}")
    agent, snapshot = take_sample(config, simulate, procfs)
    if as_json or format is SampleFormat.JSON:
        show(indent(api_document(snapshot, "snapshot")))
    else:
        body, _ = agent.exposition.metrics(dialect, openmetrics=format is SampleFormat.OPENMETRICS, gzip=False)
        show_data(body.decode())
