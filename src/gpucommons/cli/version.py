"""`gpucommons version`."""

import platform

from gpucommons import __version__
from gpucommons.base.text import printable
from gpucommons.cli.options import AsJson
from gpucommons.cli.output import show, show_line
from gpucommons.faces.documents.values import indent


def version(as_json: AsJson = False) -> None:
    """Print the versions of gpucommons and of Python."""
    python, system = platform.python_version(), platform.system()
    if as_json:
        show(indent({"gpucommons_version": __version__, "python_version": python, "system": system}))
    else:
        show_line(printable(f"gpucommons {__version__} (Python {python}, {system})"))
