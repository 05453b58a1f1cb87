"""Rows and columns as aligned text, Markdown or CSV. Pure.

Names come from users and may hold any character: what is not printable is escaped.
In CSV, a cell that a spreadsheet would take for a formula begins with an apostrophe.
"""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpucommons.base.printable import Printable, printable, printable_lines

_LONGEST = 48
_FORMULA = ("=", "+", "-", "@")
_NUMBER = re.compile(r"-[0-9]+(\.[0-9]+)?", re.ASCII)


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    MARKDOWN = "markdown"


@dataclass(frozen=True, slots=True)
class TextTable:
    """`numbers` are the right-aligned columns. `total` is a last row; aligned text puts a rule above it."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    total: Sequence[str] | None = None
    numbers: frozenset[int] = frozenset()

    def as_table(self) -> Printable:
        return printable_lines(self.lines())

    def lines(self) -> list[str]:
        rows: list[list[str]] = [[printable(cell, _LONGEST) for cell in row] for row in self.rows]
        total: list[list[str]] = [] if self.total is None else [[printable(cell) for cell in self.total]]
        everything = [[title.upper() for title in self.header], *rows, *total]
        widths = [max(len(row[column]) for row in everything) for column in range(len(self.header))]
        lines = [self._aligned(row, widths) for row in everything]
        if total:
            lines.insert(-1, "  ".join("-" * width for width in widths))
        return lines

    def as_markdown(self) -> Printable:
        return printable_lines(self.markdown_lines())

    def markdown_lines(self) -> list[str]:
        marks = ["---:" if column in self.numbers else "---" for column in range(len(self.header))]
        rows = [self.header, marks, *self.rows, *([] if self.total is None else [self.total])]
        return ["| " + " | ".join(_markdown_cell(cell) for cell in row) + " |" for row in rows]

    def as_csv(self) -> Printable:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        rows = [self.header, *self.rows, *([] if self.total is None else [self.total])]
        writer.writerows([_csv_cell(cell) for cell in row] for row in rows)
        # No cell has a line break.
        return printable_lines(out.getvalue().splitlines())

    def _aligned(self, row: Sequence[str], widths: Sequence[int]) -> str:
        cells = (
            cell.rjust(width) if column in self.numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()


def _csv_cell(cell: str) -> str:
    """A negative number is not a formula."""
    formula = cell.startswith(_FORMULA) and _NUMBER.fullmatch(cell) is None
    return f"'{printable(cell)}" if formula else printable(cell)


def _markdown_cell(cell: str) -> str:
    return printable(cell).replace("\\", "\\\\").replace("|", "\\|")
