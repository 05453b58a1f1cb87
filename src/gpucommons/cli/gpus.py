"""`gpucommons gpus`: take one sample and print the GPUs of this node, as a table or as the API's JSON."""

import sys
from typing import Annotated

import typer

from gpucommons.cli.gpus_view import missing, render
from gpucommons.cli.one_sample import api_document, take_sample
from gpucommons.cli.options import ConfigFile, Procfs, Simulate
from gpucommons.cli.output import show, show_line
from gpucommons.faces.documents.values import indented


def gpus(
    as_json: Annotated[bool, typer.Option("--json", help="Print the API's document of /api/v1/gpus.")] = False,
    config: ConfigFile = None,
    simulate: Simulate = None,
    procfs: Procfs = None,
) -> None:
    """List the GPUs with memory, utilisation, power and health."""
    _, snapshot = take_sample(config, simulate, procfs)
    document = api_document(snapshot, "gpus" if as_json else "snapshot")
    if as_json:
        show(indented(document))
    elif document["gpus"] is None:
        show_line(missing(document))
    else:
        render(document["gpus"], sys.stdout)
