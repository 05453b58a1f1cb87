"""`gpucommons queue`: leases, and the requests that wait."""

import time

from gpucommons.cli.lease_requests import ask
from gpucommons.cli.lease_view import queue_lines
from gpucommons.cli.options import AsJson, ConfigFile
from gpucommons.cli.output import show, show_lines, terminal_width
from gpucommons.faces.documents.values import indented


def queue(
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Print the leases of this node, and the requests that wait, in the order in which they are served."""
    document = ask(config, {"request": "queue"})
    if as_json:
        show(indented(document))
    else:
        show_lines(queue_lines(document, time.time(), terminal_width()))
