"""`gpucommons version`."""

import platform

import typer

from gpucommons import __version__


def version() -> None:
    """Print the version of gpucommons and of the Python that runs it."""
    typer.echo(f"gpucommons {__version__} (Python {platform.python_version()}, {platform.system()})")
