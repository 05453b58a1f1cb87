"""`gpucommons check-config`: check a configuration file and print every value in force."""

from pathlib import Path
from typing import Annotated

import typer

from gpucommons.agent.sharing_checks import check_parking, check_scheduler
from gpucommons.agent.sharing_rules import check_rules
from gpucommons.base.printable import printable
from gpucommons.cli.options import load_settings
from gpucommons.cli.output import show_error, show_line
from gpucommons.config.load import as_toml, free_sections, keys, keys_of

# A longer value, such as a regular expression, moves the origin in its own line only.
_WIDEST_VALUE = 40


def check_config(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML file to check.")],
) -> None:
    """Check a configuration file and print the values in force.

    Each value is printed with its origin: default, file, environment or flag.
    """
    loaded = load_settings(file, {})
    check_scheduler(loaded.settings.scheduler)
    check_parking(loaded.settings.parking, loaded.settings.scheduler)
    check_rules(loaded.settings)
    rows = [
        (key.path, as_toml(getattr(getattr(loaded.settings, key.section), key.name)), loaded.origins[key.path])
        for key in keys()
    ]
    for section, row_type in free_sections():
        for name, row in getattr(loaded.settings, section).items():
            for key in keys_of(f"{section}.{name}", row_type):
                rows.append((key.path, as_toml(getattr(row, key.name)), loaded.origins[key.path]))
    path_width = max(len(path) for path, _, _ in rows)
    value_width = min(max(len(value) for _, value, _ in rows), _WIDEST_VALUE)
    for warning in loaded.warnings:
        show_error(printable(f"warning: {warning}"))
    for path, value, origin in rows:
        show_line(printable(f"{path:<{path_width}}  {value:<{value_width}}  {origin}"))
