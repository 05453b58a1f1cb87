"""`gpucommons parked`: the programs whose GPU memory is in host memory."""

import time

from gpucommons.cli.options import AsJson, ConfigFile
from gpucommons.cli.output import show, show_lines, terminal_width
from gpucommons.cli.parking_orders import read_parking
from gpucommons.cli.parking_view import table_lines
from gpucommons.cli.scheduler import SocketPath
from gpucommons.faces.documents.values import indented


def parked(as_json: AsJson = False, config: ConfigFile = None, socket_path: SocketPath = None) -> None:
    """Print the parked programs: since when, how much host memory they take, and why one is not back yet."""
    parking = read_parking(config, socket_path)
    if as_json:
        show(indented({"parking": parking}))
    else:
        show_lines(table_lines(parking, time.time(), terminal_width()))
