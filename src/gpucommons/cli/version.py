"""`gpucommons version`."""

import platform

from gpucommons import __version__
from gpucommons.base.printable import printable
from gpucommons.cli.output import show_line


def version() -> None:
    """Print the versions of gpucommons and of Python."""
    show_line(printable(f"gpucommons {__version__} (Python {platform.python_version()}, {platform.system()})"))
