"""`gpucommons unreserve ID`: remove a reservation."""

import sys
from typing import Annotated

import typer

from gpucommons.base.printable import printable
from gpucommons.cli.lease_requests import ask
from gpucommons.cli.options import ConfigFile
from gpucommons.faces.documents.values import indented


def unreserve(
    id: Annotated[str, typer.Argument(metavar="ID", help="The id that 'gpucommons reservations' shows.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    config: ConfigFile = None,
) -> None:
    """Remove a reservation: your own, as root any."""
    answer = str(ask(config, {"request": "unreserve", "id": id}))
    sys.stdout.write(indented({"removed": id, "answer": answer}) if as_json else f"{printable(answer)}\n")
