"""Rows and columns as aligned text, Markdown or CSV. Pure.

Names come from users and may hold any character: what is not printable is escaped. A terminal gets a table that fits
its width: columns are shortened, then left out, as the table says. A pipe gets every column in full.
In CSV, a cell that a spreadsheet would take for a formula begins with an apostrophe.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpucommons.base.text import Printable, printable, printable_lines
from gpucommons.cli.output import Line, Span, plain_line

_GAP = "  "
_ELLIPSIS = "…"
_BELOW = "    "
# The beginning of a UUID or a hash is enough to recognise it.
_UUID = re.compile(r"\b((?:GPU|MIG)-[0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.ASCII)
_HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{4,}\b", re.ASCII)
# By the first word of a state.
_STATE_COLOURS = {
    "free": "green",
    "active": "green",
    "UP": "green",
    "held": "yellow",
    "parked": "yellow",
    "paused": "yellow",
    "running": "yellow",
    "reserved": "yellow",
    "unknown": "yellow",
    "(unknown)": "yellow",
    "(free)": "green",
    "(lost)": "bold red",
    "lost": "bold red",
    "not": "bold red",
    "hot": "red",
    "ok": "green",
    "warning": "yellow",
    "critical": "red",
    "DOWN": "bold red",
    "starting": "yellow",
}
# The wide letters are the same to a spreadsheet in East Asian languages.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_NUMBER = re.compile(r"-[0-9]+(\.[0-9]+)?", re.ASCII)


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    MARKDOWN = "markdown"


@dataclass(frozen=True, slots=True)
class TextTable:
    """`numbers` are the right-aligned columns. `total` is a last row; aligned text puts a rule above it.

    For a narrow terminal: `shortest` has the columns that may be shortened, with their least width; `left_out` has the
    columns that are left out, the first one first. `states` are the columns with a colour. `sentence` is the last
    column, if it has sentences: where the table does not fit, each stands in full below its row.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    total: Sequence[str] | None = None
    numbers: frozenset[int] = frozenset()
    shortest: Mapping[str, int] = field(default_factory=dict)
    left_out: Sequence[str] = ()
    states: Sequence[str] = ()
    sentence: str = ""

    def fit(self, width: int | None) -> list[Line]:
        """The table for a terminal of this width; in full where there is none."""
        rows: list[list[str]] = [[printable(cell) for cell in row] for row in self.rows]
        total: list[list[str]] = [] if self.total is None else [[printable(cell) for cell in self.total]]
        everything = [[title.upper() for title in self.header], *rows, *total]
        natural = [max(len(row[column]) for row in everything) for column in range(len(self.header))]
        if width is not None and self.sentence and sum(natural) + len(_GAP) * (len(natural) - 1) > width:
            return list(self._with_sentences_below(width))
        shown = [*range(len(self.header))] if width is None else self._choose_columns(natural, width)
        widths = natural if width is None else self._shorten_columns(natural, shown, width)
        # What was folded may leave more room than it had to.
        widths = [max(len(shorten(row[column], size)) for row in everything) for column, size in enumerate(widths)]
        lines = [self._line(row, shown, widths, is_title=number == 0) for number, row in enumerate(everything)]
        if total:
            lines.insert(-1, plain_line(_GAP.join("-" * widths[column] for column in shown)))
        return lines if width is None else [cut(line, width) for line in lines]

    def _with_sentences_below(self, width: int) -> Iterator[Line]:
        assert self.header[-1] == self.sentence
        table = replace(self, header=self.header[:-1], rows=[row[:-1] for row in self.rows], sentence="")
        title, *lines = table.fit(width)
        yield title
        for line, row in zip(lines, self.rows, strict=True):
            yield line
            if row[-1]:
                yield from map(plain_line, wrap_lines([f"{_BELOW}{printable(row[-1])}"], width))

    def _choose_columns(self, natural: Sequence[int], width: int) -> list[int]:
        """The columns that remain: those left out are the empty ones and, until the rest fits, the next of the list."""
        shown = [*range(len(self.header))]
        least = [min(size, self.shortest.get(title, size)) for size, title in zip(natural, self.header, strict=True)]
        empty = [title for title in self.left_out if self._is_empty(title)]
        for title in dict.fromkeys([*empty, *self.left_out]):
            if sum(least[column] for column in shown) + len(_GAP) * (len(shown) - 1) <= width:
                break
            shown.remove(self.header.index(title))
        return shown

    def _is_empty(self, title: str) -> bool:
        column = self.header.index(title)
        return not any(row[column] for row in self.rows)

    def _shorten_columns(self, natural: Sequence[int], shown: Sequence[int], width: int) -> list[int]:
        """Takes the room from the widest column that may be shortened."""
        widths = list(natural)
        least = {column: self.shortest[self.header[column]] for column in shown if self.header[column] in self.shortest}
        excess = sum(widths[column] for column in shown) + len(_GAP) * (len(shown) - 1) - width
        while excess > 0:
            possible = [column for column, size in least.items() if widths[column] > size]
            if not possible:
                break
            widest = max(possible, key=lambda column: widths[column])
            widths[widest] -= 1
            excess -= 1
        return widths

    def _line(self, row: Sequence[str], shown: Sequence[int], widths: Sequence[int], is_title: bool) -> Line:
        spans: list[Span] = []
        for column in shown:
            cell = shorten(row[column], widths[column])
            aligned = cell.rjust(widths[column]) if column in self.numbers else cell.ljust(widths[column])
            text = aligned if column == shown[-1] else aligned + _GAP
            spans.append(Span(printable(text), "bold" if is_title else self._colour(column, cell)))
        while spans and not spans[-1].text.strip():
            spans.pop()
        return [*spans[:-1], Span(printable(spans[-1].text.rstrip()), spans[-1].colour)] if spans else []

    def _colour(self, column: int, cell: str) -> str:
        return state_colour(cell) if self.header[column] in self.states else ""

    def render(self, format: Format) -> Printable:
        """In a format other than a table for a terminal."""
        return self.as_csv() if format is Format.CSV else self.as_markdown()

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


def exact_table(rows: Sequence[Mapping[str, object]], header: Sequence[str]) -> TextTable:
    """Values as they are, for CSV and Markdown: what is unknown is empty, a list has commas."""
    return TextTable(header, [[_exact(row[title]) for title in header] for row in rows])


def _exact(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def shorten(text: str, width: int) -> str:
    """At most `width` characters: hashes and UUIDs are folded first, then the end is left out."""
    if len(text) <= width:
        return text
    folded = _fold(text)
    return folded if len(folded) <= width else folded[: max(0, width - 1)] + _ELLIPSIS


def _fold(text: str) -> str:
    return _HASH.sub(rf"\1{_ELLIPSIS}", _UUID.sub(rf"\1{_ELLIPSIS}", text))


def state_colour(state: str) -> str:
    """The colour of a state by its first word; empty for a state that needs no attention.

    What comes before a comma is a problem: `xid_31, busy`.
    """
    first, comma, _ = state.partition(", ")
    return _STATE_COLOURS.get(first.split(" ", 1)[0], "yellow" if comma else "")


def cut(line: Line, width: int) -> Line:
    """At most `width` characters of the line."""
    left, spans = width, []
    for span in line:
        if left > 0:
            spans.append(Span(printable(shorten(span.text, left)), span.colour))
        left -= len(span.text)
    return spans


def wrap_lines(lines: Iterable[str], width: int | None) -> list[str]:
    """Long lines continue on the next one, indented below their beginning, with hashes and UUIDs folded."""
    # Imported here: most commands do not need it.
    from textwrap import wrap

    if width is None:
        return list(lines)
    wrapped: list[str] = []
    for line in lines:
        if len(line) <= width:
            wrapped.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())]
        wrapped += wrap(_fold(line).lstrip(), width, initial_indent=indent, subsequent_indent=f"{indent}    ")
    return wrapped


def _csv_cell(cell: str) -> str:
    """A negative number is not a formula."""
    formula = cell.startswith(_FORMULA) and _NUMBER.fullmatch(cell) is None
    return f"'{printable(cell)}" if formula else printable(cell)


def _markdown_cell(cell: str) -> str:
    return printable(cell).replace("\\", "\\\\").replace("|", "\\|")
