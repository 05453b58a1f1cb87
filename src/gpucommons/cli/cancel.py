"""`gpucommons cancel ID`: end a lease, or take a request out of the queue."""

from typing import Annotated

import typer

from gpucommons.base.text import printable_lines
from gpucommons.cli.lease_requests import ask
from gpucommons.cli.options import AsJson, ConfigFile
from gpucommons.cli.output import show
from gpucommons.faces.documents.values import indented


def cancel(
    id: Annotated[str, typer.Argument(metavar="ID", help="The id that 'gpucommons queue' shows.")],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """End a lease, whose command then gets SIGTERM, or take a request out of the queue: your own, as root any."""
    answer = str(ask(config, {"request": "cancel", "id": id}))
    show(indented({"cancelled": id, "answer": answer}) if as_json else printable_lines([answer]))
