"""`gpucommons queue`: leases, and the requests that wait."""

import time
from typing import Annotated

import typer

from gpucommons.cli.lease_requests import ask
from gpucommons.cli.lease_view import queue_text
from gpucommons.cli.options import ConfigFile
from gpucommons.cli.output import show
from gpucommons.faces.documents.values import indented


def queue(
    as_json: Annotated[bool, typer.Option("--json", help="Print the document of /api/v1/queue.")] = False,
    config: ConfigFile = None,
) -> None:
    """Print the leases of this node, and the requests that wait, in the order in which they are served."""
    document = ask(config, {"request": "queue"})
    show(indented(document) if as_json else queue_text(document, time.time()))
