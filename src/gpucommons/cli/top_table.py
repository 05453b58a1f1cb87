"""What the tables of `gpucommons top` are made of: columns, rows, their order; and history as blocks of text. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gpucommons.base.text import Printable, printable

# History as blocks of text, for `gpucommons top`. Pure.

_BLOCKS = "▁▂▃▄▅▆▇█"


def spark(readings: Iterable[float | None], width: int) -> str:
    """The values as at most `width` blocks, each the mean of several values; a gap is a space."""
    values = list(readings)
    if not values:
        return ""
    length = max(1, -(-len(values) // width))
    cells = []
    for start in range(0, len(values), length):
        present = [value for value in values[start : start + length] if value is not None]
        mean = sum(present) / len(present) if present else None
        cells.append(" " if mean is None else _BLOCKS[min(7, max(0, round(mean * 7)))])
    return "".join(cells).rjust(width)


def graph(readings: Sequence[float | None], width: int, height: int) -> list[str]:
    """Ratios as a filled area of `height` lines, the newest at the right; each column is a mean. A gap is empty."""
    length = max(1, -(-len(readings) // width))
    # The newest values fill whole columns; the oldest column may have fewer.
    first = len(readings) % length
    pieces = [readings[:first]] if first else []
    pieces += [readings[start : start + length] for start in range(first, len(readings), length)]
    levels = [_level(piece, height) for piece in pieces]
    lines = []
    for line in range(height - 1, -1, -1):
        text = "".join(_cell(level, line) for level in levels)
        lines.append(text.rjust(width))
    return lines


def _level(values: Sequence[float | None], height: int) -> int | None:
    """In eighths of a line. What was measured has at least one: 0 is not a gap."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    return max(1, min(8 * height, round(8 * height * sum(present) / len(present))))


def _cell(level: int | None, line: int) -> str:
    eighths = 0 if level is None else level - 8 * line
    return " " if eighths <= 0 else _BLOCKS[min(8, eighths) - 1]


# What the tables of `gpucommons top` are made of: columns, rows, their order, and how numbers are written. Pure.

MISSING = "-"
GRAVE = "bold red"
# By the level of a GPU's health or of a problem.
LEVEL_COLOURS = {"ok": "", "warning": "yellow", "critical": GRAVE, "lost": GRAVE}


class Column(NamedTuple):
    """`width` is that in a terminal of 80 columns. In a wider one it grows up to `most`, in a narrower one it shrinks.

    One that is `whole` is as wide as its texts: the table scrolls. The cells of a `state` have its colour.
    """

    title: str
    number: bool = True
    width: int = 0
    most: int = 0
    whole: bool = False
    state: bool = False


@dataclass(frozen=True, slots=True)
class TopRow:
    """`sort` has the value to sort by for each cell; a row that is not well has a `colour`.

    `parent` is the key of the row that this one stands below, in a tree.
    """

    key: str
    cells: tuple[Printable, ...]
    sort: tuple[float | str | None, ...]
    colour: str = ""
    search: str = ""
    parent: str = ""


def fit_columns(columns: Sequence[Column], spare: int) -> dict[str, int | None]:
    """The width of each column, by its title, where the terminal has `spare` columns more than 80; None: as its texts.

    A column of which nothing remains is left out.
    """
    widths: dict[str, int | None] = {}
    for column in columns:
        width = column.width
        if column.most and not column.whole:
            # A column that was not there yet also takes a gap.
            gap = 0 if column.width else 2
            more = max(-column.width, min(spare - gap, column.most - column.width))
            spare -= more + gap if more > 0 else more
            width += more
        if column.whole or width > 0:
            widths[column.title] = None if column.whole else width
    return widths


def printables(cells: Iterable[str]) -> tuple[Printable, ...]:
    return tuple(map(printable, cells))


def sum_known(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) if present else None


def arrange(rows: Iterable[TopRow], text: str, column: int | None, down: bool) -> list[TopRow]:
    """The rows that contain the text, sorted. Rows without a reading come last in both directions.

    A row with a parent stays below it; a parent is shown with those of its rows that contain the text, or with all.
    """
    needle = text.strip().lower()
    children: dict[str, list[TopRow]] = {}
    parents: list[TopRow] = []
    for row in rows:
        (children.setdefault(row.parent, []) if row.parent else parents).append(row)
    shown: list[TopRow] = []
    for parent in _sort(parents, column, down):
        below = _sort(children.get(parent.key, []), column, down)
        if not _contains(parent, needle):
            below = [row for row in below if _contains(row, needle)]
            if not below:
                continue
        shown.append(parent)
        shown += [_branch(row, "└─ " if row is below[-1] else "├─ ") for row in below]
    return shown


def _contains(row: TopRow, needle: str) -> bool:
    return needle in (row.search or " ".join(row.cells)).lower()


def _branch(row: TopRow, mark: str) -> TopRow:
    return replace(row, cells=(*row.cells[:-1], printable(f"{mark}{row.cells[-1]}")))


def _sort(rows: list[TopRow], column: int | None, down: bool) -> list[TopRow]:
    if column is None:
        return rows
    known_rows = [row for row in rows if row.sort[column] is not None]
    unknown = [row for row in rows if row.sort[column] is None]
    # A column holds either numbers or texts.
    return sorted(known_rows, key=_by(column), reverse=down) + unknown


def _by(column: int) -> Callable[[TopRow], Any]:
    def key(row: TopRow) -> Any:
        value = row.sort[column]
        return value.lower() if isinstance(value, str) else value

    return key


def of_node(row: TopRow, name: str) -> TopRow:
    """The row with the name of its node as the first cell."""
    first = printable(name)
    search = f"{first} {row.search or ' '.join(row.cells)}"
    return replace(row, cells=(first, *row.cells), sort=(name, *row.sort), search=search)


def about(basis: str | None) -> str:
    return "~" if basis == "apportioned" else ""


def percent(ratio: float | None) -> str:
    return MISSING if ratio is None else f"{100 * ratio:.0f} %"


def hundredths(ratio: float | None) -> str:
    """For a column whose title has the percent sign."""
    return MISSING if ratio is None else f"{100 * ratio:.0f}"


def watts(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0f} W"


def whole(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0f}"


def size(value: float | None) -> str:
    if value is None:
        return MISSING
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1000 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    return f"{whole // 3600} h" if whole < 48 * 3600 else f"{whole // 86400} d"
