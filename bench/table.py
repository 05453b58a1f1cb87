"""Prints the result of a benchmark: an aligned table under a title that names the machine."""

import os
import platform
from collections.abc import Sequence


def machine() -> str:
    return f"{platform.system()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    print(f"\n{title}  ({machine()})\n")
    for number, row in enumerate(cells):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print(flush=True)
