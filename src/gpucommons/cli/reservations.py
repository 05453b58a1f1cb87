"""`gpucommons reservations`: what is reserved."""

from typing import Annotated

import typer

from gpucommons.cli.lease_requests import ask
from gpucommons.cli.lease_view import reservations_text
from gpucommons.cli.options import ConfigFile
from gpucommons.cli.output import show
from gpucommons.faces.documents.values import indented


def reservations(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the reservations of the document of /api/v1/queue.")
    ] = False,
    config: ConfigFile = None,
) -> None:
    """Print the reservations of this node, earliest first."""
    document = ask(config, {"request": "queue"})
    show(indented(document["reservations"]) if as_json else reservations_text(document))
