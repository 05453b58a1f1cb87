"""`gpucommons reservations`: what is reserved."""

from gpucommons.cli.lease_requests import ask
from gpucommons.cli.lease_view import reservation_lines
from gpucommons.cli.options import AsJson, ConfigFile
from gpucommons.cli.output import show, show_lines, terminal_width
from gpucommons.faces.documents.values import indented


def reservations(
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Print the reservations of this node, earliest first."""
    document = ask(config, {"request": "queue"})
    if as_json:
        show(indented(document["reservations"]))
    else:
        show_lines(reservation_lines(document, terminal_width()))
