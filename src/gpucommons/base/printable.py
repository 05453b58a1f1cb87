"""Text from outside, safe to show in a terminal. Pure.

Names come from users, pods, drivers and files. Control characters (escape sequences, newlines), bidirectional marks and
invisible characters can change or hide what a terminal shows: they are shown escaped.

The functions return the type Printable, and the commands print nothing else. `tests/house/test_output.py` checks it.
"""

from collections.abc import Iterable


class Printable(str):
    """Printable characters and our own line breaks. Made in this module only; joined with other text it is a str."""

    __slots__ = ()


def printable(text: str, most: int = 10_000) -> Printable:
    """One line: the text with what is not printable escaped, and at most `most` characters of it."""
    safe = text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)
    return Printable(safe if len(safe) <= most else safe[: most - 1] + "…")


def printable_lines(lines: Iterable[str]) -> Printable:
    """Lines, each with its line break. A break inside a line is escaped like every other control character."""
    return Printable("".join(f"{printable(line, len(line) * 10)}\n" for line in lines))


def printable_json(text: str) -> Printable:
    """A JSON text with the same value. Only strings in it can have such characters, and JSON has an escape for each."""
    return Printable("".join(c if c.isprintable() or c == "\n" else _json_escaped(c) for c in text))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _json_escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
