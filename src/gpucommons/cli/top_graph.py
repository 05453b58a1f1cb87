"""History as blocks of text, for `gpucommons top`. Pure."""

from collections.abc import Iterable, Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"


def spark(readings: Iterable[float | None], width: int) -> str:
    """The values as at most `width` blocks, each the mean of several values; a gap is a space."""
    values = list(readings)
    if not values:
        return ""
    length = max(1, -(-len(values) // width))
    cells = []
    for start in range(0, len(values), length):
        known = [value for value in values[start : start + length] if value is not None]
        mean = sum(known) / len(known) if known else None
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
    known = [value for value in values if value is not None]
    if not known:
        return None
    return max(1, min(8 * height, round(8 * height * sum(known) / len(known))))


def _cell(level: int | None, line: int) -> str:
    eighths = 0 if level is None else level - 8 * line
    return " " if eighths <= 0 else _BLOCKS[min(8, eighths) - 1]
