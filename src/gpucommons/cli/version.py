"""`gpucommons version`."""

import platform

import typer

from gpucommons import __version__


def version() -> None:
    """Print the versions of gpucommons and of Python."""
    typer.echo(f"gpucommons {__version__} (Python {platform.python_version()}, {platform.system()})")
