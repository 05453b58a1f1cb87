"""`gpucommons unreserve ID`: remove a reservation."""

from typing import Annotated

import typer

from gpucommons.base.text import printable_lines
from gpucommons.cli.lease_requests import ask
from gpucommons.cli.options import AsJson, ConfigFile
from gpucommons.cli.output import show
from gpucommons.faces.documents.values import indented


def unreserve(
    id: Annotated[str, typer.Argument(metavar="ID", help="The id that 'gpucommons reservations' shows.")],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Remove a reservation: your own, as root any."""
    answer = str(ask(config, {"request": "unreserve", "id": id}))
    show(indented({"removed": id, "answer": answer}) if as_json else printable_lines([answer]))
